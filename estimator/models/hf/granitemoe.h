// models/granitemoe: its mixture of experts, which granitemoehybrid has too.
#pragma once
#include "models/hf/decoder.h"

namespace memest::hf {

/// GraniteMoeMoE: the experts of the best logits.
UnaryPtr make_granite_block(const DecoderConfig& c, const std::string& prefix);

}  // namespace memest::hf
