// What encoder-decoder models share.
#pragma once
#include "models/hf/decoder.h"

namespace memest::hf {

/// A class that takes input_ids of src_seq tokens, and labels or decoder_input_ids of tgt_seq.
class Seq2SeqNetwork : public Network {
 public:
  using Network::Network;
  std::vector<nn::InputSpec> inputs() const override;
};

/// shift_tokens_right of bart, t5's _shift_right: the ids behind the start token, -100 replaced by padding.
X shift_tokens_right(X input_ids);

}  // namespace memest::hf
