// models/minicpmv4_6/modeling_minicpmv4_6.py (transformers 5.24): its parameters.
#include "models/hf/composite.h"
#include "models/hf/weights_only.h"

namespace memest::hf {
namespace {

void add_attention(Weights& owner, I width) {
  Weights& attention = owner.part("self_attn", "MiniCPMV4_6VisionAttention");
  for (const char* name : {"k_proj", "v_proj", "q_proj", "out_proj"}) attention.linear(name, width, width);
}

void add_vision_tower(Weights& tower, const Config& c) {
  const I hidden = c.size("hidden_size"), intermediate = c.size("intermediate_size"), patch = square_size(c, "patch_size"),
          side = square_size(c, "image_size") / patch;
  const std::vector<I> window = c.integers("window_kernel_size");
  if (window.size() != 2 || window[0] < 1 || window[1] < 1) throw c.error("window_kernel_size", "expected two sizes");
  Weights& embeddings = tower.part("embeddings", "MiniCPMV4_6VisionEmbeddings");
  embeddings.conv("patch_embedding", c.size_or("num_channels", 3), hidden, patch);
  embeddings.embedding("position_embedding", checked_mul(side, side), hidden);
  Weights& layers = tower.part("encoder", "MiniCPMV4_6VisionEncoder").part("layers", "ModuleList");
  for (I i = 0; i < layer_count(c); ++i) {
    Weights& layer = layers.part(std::to_string(i), "MiniCPMV4_6VisionEncoderLayer");
    layer.norm("layer_norm1", hidden);
    add_attention(layer, hidden);
    layer.norm("layer_norm2", hidden);
    Weights& mlp = layer.part("mlp", "MiniCPMV4_6VisionMLP");
    mlp.linear("fc1", hidden, intermediate);
    mlp.linear("fc2", intermediate, hidden);
  }
  tower.norm("post_layernorm", hidden);
  const I patches = checked_mul(window[0], window[1]), wide = checked_mul(hidden, patches), wider = checked_mul(intermediate, patches);
  Weights& merger = tower.part("vit_merger", "MiniCPMV4_6ViTWindowAttentionMerger");
  add_attention(merger, hidden);
  merger.norm("layer_norm1", hidden);
  merger.norm("pre_norm", wide);
  merger.linear("linear_1", wide, wider);
  merger.linear("linear_2", wider, hidden);
}

NetworkPtr minicpmv4_6(const Config& config, const Options& o) {
  const Config vision = config.section("vision_config");
  const std::vector<I> kernel = config.integers("merge_kernel_size");
  if (kernel.size() != 2 || kernel[0] < 1 || kernel[1] < 1) throw config.error("merge_kernel_size", "expected two sizes");
  auto network = std::make_shared<WeightsOnly>("MiniCPMV4_6ForConditionalGeneration", o);
  Weights& model = network->part("model", "MiniCPMV4_6Model");
  add_vision_tower(model.part("vision_tower", "MiniCPMV4_6VisionModel"), vision);
  const DecoderParts text = text_decoder(config.section("text_config"), o);
  model.register_module("language_model", make_decoder_body(text));
  const I hidden = vision.size("hidden_size"), merged = checked_mul(hidden, checked_mul(kernel[0], kernel[1])),
          times = config.size("merger_times");
  constexpr I kMostTimes = 100;
  if (times > kMostTimes) throw config.error("merger_times", "expected at most 100");
  Weights& mlps = model.part("merger", "MiniCPMV4_6Merger").part("mlp", "ModuleList");
  for (I i = 0; i < times; ++i) {
    Weights& mlp = mlps.part(std::to_string(i), "MiniCPMV4_6DownsampleMLP");
    mlp.norm("pre_norm", merged);
    mlp.linear("linear_1", merged, merged);
    mlp.linear("linear_2", merged, i + 1 < times ? hidden : text.config->hidden);
  }
  network->linear("lm_head", text.config->hidden, text.config->vocab, false);
  if (config.boolean_or("tie_word_embeddings", false) || text.config->file.boolean_or("tie_word_embeddings", false))
    network->tie("lm_head.weight", "model.language_model.embed_tokens.weight");
  return network;
}
const Family minicpmv4_6_family{{"minicpmv4_6"}, {{Task::image_text_to_text, "MiniCPMV4_6ForConditionalGeneration", minicpmv4_6}}};

}  // namespace
}  // namespace memest::hf
