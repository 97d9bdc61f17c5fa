// What DeBERTa and DeBERTa-v2 share: their heads and the mask.
#pragma once
#include "models/hf/encoder.h"

namespace memest::hf {

/// config.pos_att_type: a list, or a text with |.
struct DebertaTypes {
  bool c2p = false, p2c = false;
  I count = 0;
};
DebertaTypes deberta_types(const Config& file);
/// get_attention_mask: [batch, length] to [batch, 1, length, length].
X deberta_mask(const X& attention_mask);
/// The heads of PREFIXForMaskedLM and the rest; the body is the family's.
EncoderForm deberta_form(const std::string& prefix);

}  // namespace memest::hf
