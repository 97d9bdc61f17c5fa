// models/granitemoe: its mixture of experts, which granitemoehybrid has too, and the shared MLP beside it.
#pragma once
#include "models/hf/decoder.h"

namespace memest::hf {

/// GraniteMoeMoE: the experts of the best logits.
UnaryPtr make_granite_block(const DecoderConfig& c, const std::string& prefix);
/// GraniteMoeSharedMLP, of shared_intermediate_size.
UnaryPtr make_granite_shared_mlp(const DecoderConfig& c, const std::string& prefix);

}  // namespace memest::hf
