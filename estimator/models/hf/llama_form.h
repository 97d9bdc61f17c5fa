// A decoder whose layers, norms and rotary embedding are llama's by another name (modeling_*.py, transformers 5.24).
#pragma once
#include "models/hf/decoder.h"

namespace memest::hf {

/// The form with PREFIXRMSNorm, PREFIXDecoderLayer, PREFIXRotaryEmbedding and PREFIXAttention; `mlp` of each layer.
DecoderForm llama_form(const std::string& prefix,
                       std::function<MixerPtr(const DecoderConfig& c, I layer, const std::string& type)> attention,
                       std::function<UnaryPtr(const DecoderConfig& c, I layer)> mlp);

}  // namespace memest::hf
