#include "models/hf/vision.h"

namespace memest::hf {

VisionConfig::VisionConfig(const Config& f, const Options& o) : file(f), options(o) {
  hidden = f.size("hidden_size");
  layers = layer_count(f);
  heads = f.size("num_attention_heads");
  head_dim = f.has("head_dim") ? f.size("head_dim") : hidden / heads;
  channels = f.size("num_channels");
  image = f.size("image_size");
  patch = f.size("patch_size");
  if (patch > image)
    throw f.error("patch_size", "expected at most the image_size " + std::to_string(image) + ", found " + std::to_string(patch));
  act = f.text_or("hidden_act", "gelu");
  hidden_dropout = f.number_or("hidden_dropout_prob", 0.0);
  attention_dropout = f.number_or("attention_probs_dropout_prob", 0.0);
  qkv_bias = f.boolean_or("qkv_bias", true);
}

std::vector<nn::InputSpec> VisionNetwork::inputs() const {
  const nn::SizeExpression batch("batch"), image("image");
  std::vector<nn::InputSpec> list{{"pixel_values", {batch, nn::SizeExpression(std::to_string(c_.channels)), image, image}, DType::float32}};
  if (options_.labels) list.push_back({"labels", {batch}, DType::int64});
  return list;
}
void VisionNetwork::check_size(const X& pixel_values) const {
  if (pixel_values.size(2) == c_.image && pixel_values.size(3) == c_.image) return;
  throw Error("Input image size (" + std::to_string(pixel_values.size(2)) + "*" + std::to_string(pixel_values.size(3)) +
                  ") doesn't match model (" + std::to_string(c_.image) + "*" + std::to_string(c_.image) + ").",
              "the config's image_size is " + std::to_string(c_.image));
}

namespace {

class PatchEmbeddings final : public Unary {
 public:
  PatchEmbeddings(std::string type, const VisionConfig& c)
      : Unary(std::move(type)), projection(child<Conv2d>("projection", c.channels, c.hidden, c.patch, c.patch)) {}

 protected:
  X forward(X pixel_values) override {
    pixel_values = pixel_values.to(projection.own_parameters()[0].second.dtype());
    return projection(pixel_values).flatten(2).transpose(1, 2);
  }

 private:
  Conv2d& projection;
};

class VisionAttention final : public Mixer {
 public:
  VisionAttention(std::string type, const VisionConfig& c, Pair (*eager)(X, X, X, AttentionCall))
      : Mixer(std::move(type)),
        attend_(c.options.attention == Attention::eager ? eager : sdpa_attention_forward),
        head_dim_(c.head_dim),
        dropout_(c.attention_dropout),
        q_proj(child<Linear>("q_proj", c.hidden, c.heads * c.head_dim, c.qkv_bias)),
        k_proj(child<Linear>("k_proj", c.hidden, c.heads * c.head_dim, c.qkv_bias)),
        v_proj(child<Linear>("v_proj", c.hidden, c.heads * c.head_dim, c.qkv_bias)),
        o_proj(child<Linear>("o_proj", c.heads * c.head_dim, c.hidden)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1);
    const Dims hidden_shape = input_shape + Dims{-1, head_dim_};
    X query_states = q_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_states = k_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_states = v_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    auto [attn_output, attn_weights] =
        attend_(query_states, key_states, value_states,
                {.mask = call.mask, .dropout = training ? dropout_ : 0.0, .training = training, .causal = false});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = o_proj(attn_output);
    return {attn_output, attn_weights};
  }

 private:
  Pair (*attend_)(X, X, X, AttentionCall);
  I head_dim_;
  double dropout_;
  Linear &q_proj, &k_proj, &v_proj, &o_proj;
};

}  // namespace

UnaryPtr make_patch_embeddings(std::string type, const VisionConfig& c) { return std::make_shared<PatchEmbeddings>(std::move(type), c); }
MixerPtr make_vision_attention(std::string type, const VisionConfig& c, Pair (*eager)(X, X, X, AttentionCall)) {
  return std::make_shared<VisionAttention>(std::move(type), c, eager);
}

}  // namespace memest::hf
