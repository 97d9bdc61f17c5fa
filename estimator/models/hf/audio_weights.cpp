#include "models/hf/audio_weights.h"

namespace memest::hf {

void add_whisper_encoder(Weights& tower, const Config& c, const std::string& prefix) {
  constexpr I kMost = 10'000;
  const I width = c.size("d_model"), intermediate = c.size("encoder_ffn_dim"), count = c.size("encoder_layers");
  if (count > kMost)
    throw c.error("encoder_layers", "expected at most " + std::to_string(kMost) + " layers, found " + std::to_string(count));
  tower.conv1d("conv1", c.size("num_mel_bins"), width, 3);
  tower.conv1d("conv2", width, width, 3);
  Weights& positions = tower.part("embed_positions", "Embedding");
  positions.new_parameter("weight", {c.size("max_source_positions"), width});
  positions.own_parameters()[0].second->requires_grad = false;
  Weights& layers = tower.part("layers", "ModuleList");
  for (I i = 0; i < count; ++i) {
    Weights& layer = layers.part(std::to_string(i), prefix + "EncoderLayer");
    Weights& attention = layer.part("self_attn", prefix + "Attention");
    attention.linear("k_proj", width, width, false);
    for (const char* name : {"v_proj", "q_proj", "out_proj"}) attention.linear(name, width, width);
    layer.norm("self_attn_layer_norm", width);
    layer.linear("fc1", width, intermediate);
    layer.linear("fc2", intermediate, width);
    layer.norm("final_layer_norm", width);
  }
  tower.norm("layer_norm", width);
}

}  // namespace memest::hf
