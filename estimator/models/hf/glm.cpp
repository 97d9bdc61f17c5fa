// models/glm, glm4, helium: neighbours are rotated, with half of each table repeated by twos.
#include "models/hf/decoder.h"
#include "models/hf/rotate.h"

namespace memest::hf {
namespace {

template <Pair (*Rotate)(X, X, X, X)>
class RotatedAttention final : public DecoderAttention {
 public:
  using DecoderAttention::DecoderAttention;

 protected:
  void rotate(Frame& f, const LayerCall& call) override {
    std::tie(f.query, f.key) = Rotate(f.query, f.key, call.position_embeddings.first, call.position_embeddings.second);
  }
};
using GlmAttention = RotatedAttention<apply_rotary_glm>;
using HeliumAttention = RotatedAttention<apply_rotary_helium>;

DecoderForm glm_form(const std::string& prefix, LayerForm form) {
  DecoderForm f;
  f.prefix = prefix;
  f.norm_type = prefix + "RMSNorm";
  form.type = prefix + "DecoderLayer";
  form.norm_type = prefix + "RMSNorm";
  f.layer = [prefix, form](const DecoderConfig& c, I i) {
    const bool b = c.attention_bias;
    auto attention = std::make_shared<GlmAttention>(c, i, prefix + "Attention", Biases{b, b, b, false});
    return make_layer(c, form, attention, make_fused_gated_mlp(prefix + "MLP", c.hidden, c.intermediate, c.act));
  };
  f.rotary = [prefix](const DecoderConfig& c) {
    return std::make_shared<RotaryEmbedding>(prefix + "RotaryEmbedding", c.file, rotary_width(c.file, c.head_dim, 0.5));
  };
  return f;
}
NetworkPtr glm(const Config& config, const Options& o) { return make_decoder(config, o, glm_form("Glm", {})); }
NetworkPtr glm4(const Config& config, const Options& o) {
  LayerForm form;
  form.order = LayerForm::Order::glm4;
  form.norms = {"input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"};
  return make_decoder(config, o, glm_form("Glm4", form));
}
NetworkPtr helium(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "Helium";
  f.norm = Norm::helium;
  f.norm_type = "HeliumRMSNorm";
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "HeliumDecoderLayer";
    form.norm = Norm::helium;
    form.norm_type = "HeliumRMSNorm";
    const bool b = c.attention_bias;
    auto attention = std::make_shared<HeliumAttention>(c, i, "HeliumAttention", Biases{b, b, b, false});
    return make_layer(c, form, attention, make_gated_mlp("HeliumMLP", c.hidden, c.intermediate, c.mlp_bias, c.act));
  };
  f.rotary = [](const DecoderConfig& c) { return std::make_shared<RotaryEmbedding>("HeliumRotaryEmbedding", c.file, c.head_dim); };
  return make_decoder(config, o, std::move(f));
}
const Family glm_family{{"glm"}, decoder_classes("Glm", glm, {Task::token_cls})};
const Family glm4_family{{"glm4"}, decoder_classes("Glm4", glm4, {Task::token_cls})};
const Family helium_family{{"helium"}, decoder_classes("Helium", helium, {Task::token_cls})};

}  // namespace
}  // namespace memest::hf
