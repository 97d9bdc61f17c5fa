// What the vision transformers share (models/vit/modeling_vit.py): patches, attention and the head's loss.
#pragma once
#include "models/hf/decoder.h"

namespace memest::hf {

struct VisionConfig {
  VisionConfig(const Config& file, const Options& options);
  Config file;
  Options options;
  I hidden, layers, heads, head_dim, channels, image, patch;
  std::string act;
  double hidden_dropout, attention_dropout;
  bool qkv_bias;
  I patches() const { return (image / patch) * (image / patch); }
};

/// ViTPatchEmbeddings: a convolution of the patches, flattened; called `projection`.
UnaryPtr make_patch_embeddings(std::string type, const VisionConfig& c);
/// ViTAttention. `eager`: the module's eager_attention_forward.
MixerPtr make_vision_attention(std::string type, const VisionConfig& c, Pair (*eager)(X query, X key, X value, AttentionCall call));

/// A network on pixel_values: its inputs and sizes.
class VisionNetwork : public Network {
 public:
  VisionNetwork(std::string type, const VisionConfig& c) : Network(std::move(type), c.options), c_(c) {}
  std::vector<nn::InputSpec> inputs() const override;
  std::vector<std::pair<std::string, I>> default_sizes() const override { return {{"image", c_.image}}; }

 protected:
  /// "Input image size doesn't match model", as these classes say it.
  void check_size(const X& pixel_values) const;
  const VisionConfig c_;
};

}  // namespace memest::hf
