// Attention by batched products of [batch * heads, length, width], whatever the attention that is asked for: MVP's, and that of LED's
// decoder.
#pragma once
#include <string>
#include <utility>

#include "models/hf/seq2seq.h"

namespace memest::hf {

class BatchedAttention : public CrossMixer {
 public:
  BatchedAttention(std::string type, const Seq2SeqConfig& c, I heads, I layer);

 protected:
  Pair forward(const X& hidden_states, const X& key_value_states, X attention_mask, Cache* cache) override;

 private:
  I layer_, heads_, head_dim_;
  double dropout_;
  Linear &k_proj, &v_proj, &q_proj, &out_proj;
};

}  // namespace memest::hf
