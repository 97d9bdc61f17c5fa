// models/qwen3_next: the gated delta net, and the gated attention of the layers between; qwen3_5 and olmo_hybrid build on them.
#pragma once
#include "models/hf/decoder.h"

namespace memest::hf {

struct GatedDeltaNetForm {
  std::string prefix;  ///< of the class names
  bool joint = false;  ///< in_proj_qkvz and in_proj_ba (qwen3_next); else a projection for each part (qwen3_5)
};
MixerPtr make_gated_delta_net(const DecoderConfig& c, I layer, const GatedDeltaNetForm& form);
/// Qwen3NextAttention: the output times the sigmoid of a gate from q_proj.
MixerPtr make_gated_attention(const DecoderConfig& c, I layer, const std::string& prefix);
/// layer_types where the file gives none, and partial_rotary_factor.
Config with_delta_net_layers(Config config);
/// Such a layer with `mlp` behind it.
DecoderLayerPtr make_delta_net_layer(const DecoderConfig& c, I layer, const GatedDeltaNetForm& form, UnaryPtr mlp);
/// A block of experts beside a shared one that has a gate.
UnaryPtr make_delta_net_experts(const DecoderConfig& c, const std::string& prefix, bool norm_topk_prob);

}  // namespace memest::hf
