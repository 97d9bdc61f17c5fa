// models/cohere and cohere2: attention and MLP side by side, LayerNorm without bias in fp32.
#include "models/hf/decoder.h"
#include "models/hf/rotate.h"

namespace memest::hf {
namespace {

class CohereAttention final : public DecoderAttention {
 public:
  CohereAttention(const DecoderConfig& c, I layer, std::string type, bool rope, bool qk_norm)
      : DecoderAttention(c, layer, std::move(type), {c.attention_bias, c.attention_bias, c.attention_bias, c.attention_bias}), rope_(rope) {
    if (!qk_norm) return;
    q_norm_ = register_module("q_norm", std::make_shared<HeadNorm>(Dims{heads_, head_dim_}));
    k_norm_ = register_module("k_norm", std::make_shared<HeadNorm>(Dims{kv_heads_, head_dim_}));
  }

 protected:
  void project(Frame& f) override {
    f.query = (*q_proj_)(f.hidden_states).view(f.hidden_shape);
    f.key = (*k_proj_)(f.hidden_states).view(f.hidden_shape);
    f.value = (*v_proj_)(f.hidden_states).view(f.hidden_shape);
    if (q_norm_) {
      f.query = (*q_norm_)(f.query);
      f.key = (*k_norm_)(f.key);
    }
    for (X* x : {&f.query, &f.key, &f.value}) *x = x->transpose(1, 2);
  }
  void rotate(Frame& f, const LayerCall& call) override {
    if (rope_)
      std::tie(f.query, f.key) = apply_rotary_cohere(f.query, f.key, call.position_embeddings.first, call.position_embeddings.second);
  }

 private:
  /// CohereLayerNorm with a weight for each head.
  class HeadNorm final : public Unary {
   public:
    explicit HeadNorm(const Dims& sizes) : Unary("CohereLayerNorm") { new_parameter("weight", sizes); }

   protected:
    X forward(X hidden_states) override {
      const DType input_dtype = hidden_states.dtype();
      hidden_states = hidden_states.to(DType::float32);
      X mean = hidden_states.mean(-1, true);
      X variance = hidden_states.sub(mean).pow(2).mean(-1, true);
      hidden_states = hidden_states.sub(mean).mul(variance.add(1e-5).rsqrt());
      hidden_states = X(parameter(0)).to(DType::float32).mul(hidden_states);
      return hidden_states.to(input_dtype);
    }
  };
  bool rope_;
  UnaryPtr q_norm_, k_norm_;
};

class CohereDecoderLayer final : public DecoderLayer {
 public:
  CohereDecoderLayer(const DecoderConfig& c, const std::string& prefix, MixerPtr attention)
      : DecoderLayer(prefix + "DecoderLayer", c.options),
        self_attn_(register_module("self_attn", std::move(attention))),
        mlp_(register_module("mlp", make_gated_mlp(prefix + "MLP", c.hidden, c.intermediate, false, c.act))),
        input_layernorm_(register_module("input_layernorm", make_norm(Norm::cohere, c.hidden, prefix + "LayerNorm"))) {}

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states;
    hidden_states = (*input_layernorm_)(hidden_states);
    auto [hidden_states_attention, weights] = (*self_attn_)(hidden_states, call);
    X hidden_states_mlp = (*mlp_)(hidden_states);
    hidden_states = residual.add(hidden_states_attention).add(hidden_states_mlp);
    return hidden_states;
  }

 private:
  MixerPtr self_attn_;
  UnaryPtr mlp_, input_layernorm_;
};

DecoderForm cohere_form(const std::string& prefix) {
  DecoderForm f;
  f.prefix = prefix;
  f.norm = Norm::cohere;
  f.norm_type = prefix + "LayerNorm";
  f.rotary = [prefix](const DecoderConfig& c) {
    return std::make_shared<RotaryEmbedding>(prefix + "RotaryEmbedding", c.file, c.head_dim,
                                             RotaryEmbedding::Form{.table = RotaryEmbedding::Table::interleaved});
  };
  f.logits = [](X logits, const DecoderConfig&) { return logits.mul(0.0625); };
  return f;
}
NetworkPtr cohere(const Config& config, const Options& o) {
  DecoderForm f = cohere_form("Cohere");
  f.layer = [](const DecoderConfig& c, I i) -> DecoderLayerPtr {
    auto attention = std::make_shared<CohereAttention>(c, i, "CohereAttention", true, c.file.boolean_or("use_qk_norm", false));
    return std::make_shared<CohereDecoderLayer>(c, "Cohere", attention);
  };
  return make_decoder(config, o, std::move(f));
}
NetworkPtr cohere2(const Config& given, const Options& o) {
  Config config = given;
  const I pattern = config.size_or("sliding_window_pattern", 4);
  default_layer_types(config, [pattern](I i) { return (i + 1) % pattern ? "sliding_attention" : "full_attention"; });
  DecoderForm f = cohere_form("Cohere2");
  f.layer = [](const DecoderConfig& c, I i) -> DecoderLayerPtr {
    auto attention = std::make_shared<CohereAttention>(c, i, "Cohere2Attention", c.sliding(i), false);
    return std::make_shared<CohereDecoderLayer>(c, "Cohere2", attention);
  };
  f.masks = DecoderForm::Masks::by_layer_type;
  f.both_masks = true;
  return make_decoder(config, o, std::move(f));
}
const Family cohere_family{{"cohere"}, decoder_classes("Cohere", cohere)};
const Family cohere2_family{{"cohere2"}, decoder_classes("Cohere2", cohere2)};

}  // namespace
}  // namespace memest::hf
