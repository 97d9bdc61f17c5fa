// models/olmo, olmo2, olmo3, exaone4: tables of the rotary embedding stay in fp32, norms after the attention and the MLP; exaone_moe.
#include "models/hf/llama_form.h"
#include "models/hf/moe.h"
#include "models/hf/rotate.h"

namespace memest::hf {
namespace {

/// Olmo's rotation casts its results back.
class OlmoAttention : public DecoderAttention {
 public:
  OlmoAttention(const DecoderConfig& c, I layer, const std::string& type)
      : DecoderAttention(c, layer, type, {c.attention_bias, c.attention_bias, c.attention_bias, c.attention_bias}),
        clip_(c.file.has("clip_qkv")) {}

 protected:
  void project(Frame& f) override {
    f.query = (*q_proj_)(f.hidden_states);
    f.key = (*k_proj_)(f.hidden_states);
    f.value = (*v_proj_)(f.hidden_states);
    for (X* x : {&f.query, &f.key, &f.value}) {
      if (clip_) aten("clamp_", {Tensor(*x), -1.0, 1.0});
    }
    for (X* x : {&f.query, &f.key, &f.value}) *x = x->view(f.hidden_shape).transpose(1, 2);
  }
  void rotate(Frame& f, const LayerCall& call) override {
    std::tie(f.query, f.key) = apply_rotary_cast(f.query, f.key, call.position_embeddings.first, call.position_embeddings.second);
  }

 private:
  bool clip_;
};

class Olmo2Attention final : public DecoderAttention {
 public:
  Olmo2Attention(const DecoderConfig& c, I layer, const std::string& type)
      : DecoderAttention(c, layer, type, {c.attention_bias, c.attention_bias, c.attention_bias, c.attention_bias}),
        q_norm_(register_module("q_norm", make_norm(Norm::olmo2, heads_ * head_dim_, "Olmo2RMSNorm"))),
        k_norm_(register_module("k_norm", make_norm(Norm::olmo2, kv_heads_ * head_dim_, "Olmo2RMSNorm"))) {}

 protected:
  void project(Frame& f) override {
    f.query = (*q_norm_)((*q_proj_)(f.hidden_states));
    f.key = (*k_norm_)((*k_proj_)(f.hidden_states));
    f.value = (*v_proj_)(f.hidden_states);
    for (X* x : {&f.query, &f.key, &f.value}) *x = x->view(f.hidden_shape).transpose(1, 2);
  }
  void rotate(Frame& f, const LayerCall& call) override {
    std::tie(f.query, f.key) = apply_rotary_cast(f.query, f.key, call.position_embeddings.first, call.position_embeddings.second);
  }

 private:
  UnaryPtr q_norm_, k_norm_;
};

/// Exaone4Attention: no rotary embedding in the full layers of a model with windows.
class Exaone4Attention final : public DecoderAttention {
 public:
  Exaone4Attention(const DecoderConfig& c, I layer, const std::string& type)
      : DecoderAttention(c, layer, type, {}),
        rope_(!c.sliding_window || c.sliding(layer)),
        q_norm_(register_module("q_norm", make_norm(Norm::llama, head_dim_, "Exaone4RMSNorm"))),
        k_norm_(register_module("k_norm", make_norm(Norm::llama, head_dim_, "Exaone4RMSNorm"))) {}

 protected:
  void project(Frame& f) override {
    DecoderAttention::project(f);
    f.query = (*q_norm_)(f.query);
    f.key = (*k_norm_)(f.key);
  }
  void rotate(Frame& f, const LayerCall& call) override {
    if (rope_) DecoderAttention::rotate(f, call);
  }

 private:
  bool rope_;
  UnaryPtr q_norm_, k_norm_;
};

template <class A>
DecoderForm post_norm_form(const std::string& prefix, Norm norm, bool cast) {
  DecoderForm f;
  f.prefix = prefix;
  f.norm = norm;
  f.norm_type = prefix + "RMSNorm";
  f.layer = [prefix, norm](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = prefix + "DecoderLayer";
    form.order = LayerForm::Order::post;
    form.norm = norm;
    form.norm_type = prefix + "RMSNorm";
    form.norms = {"post_attention_layernorm", "post_feedforward_layernorm"};
    auto attention = std::make_shared<A>(c, i, prefix + "Attention");
    return make_layer(c, form, attention, make_gated_mlp(prefix + "MLP", c.hidden, c.intermediate, false, c.act));
  };
  f.rotary = [prefix, cast](const DecoderConfig& c) {
    return std::make_shared<RotaryEmbedding>(prefix + "RotaryEmbedding", c.file, c.head_dim, RotaryEmbedding::Form{.cast = cast});
  };
  return f;
}

NetworkPtr olmo(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "Olmo";
  f.norm = Norm::layer_norm_plain;
  f.norm_type = "OlmoLayerNorm";
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "OlmoDecoderLayer";
    form.norm = Norm::layer_norm_plain;
    form.norm_type = "OlmoLayerNorm";
    auto attention = std::make_shared<OlmoAttention>(c, i, "OlmoAttention");
    return make_layer(c, form, attention, make_gated_mlp("OlmoMLP", c.hidden, c.intermediate, false, c.act));
  };
  f.rotary = [](const DecoderConfig& c) {
    return std::make_shared<RotaryEmbedding>("OlmoRotaryEmbedding", c.file, c.head_dim, RotaryEmbedding::Form{.cast = false});
  };
  return make_decoder(config, o, std::move(f));
}
NetworkPtr olmo2(const Config& config, const Options& o) {
  return make_decoder(config, o, post_norm_form<Olmo2Attention>("Olmo2", Norm::olmo2, false));
}
NetworkPtr olmo3(const Config& given, const Options& o) {
  Config config = given;
  default_layer_types(config, [](I i) { return (i + 1) % 4 != 0 ? "sliding_attention" : "full_attention"; });
  DecoderForm f = post_norm_form<Olmo2Attention>("Olmo3", Norm::olmo2, false);
  f.masks = DecoderForm::Masks::by_layer_type;
  f.both_masks = true;
  f.rotary_by_layer_type = true;
  f.rotary = [](const DecoderConfig& c) {
    RotaryEmbedding::Form form{.cast = false};
    for (const char* type : {"full_attention", "sliding_attention"})
      if (std::find(c.layer_types.begin(), c.layer_types.end(), type) != c.layer_types.end())
        form.layer_types.emplace_back(type, c.head_dim);
    return std::make_shared<RotaryEmbedding>("Olmo3RotaryEmbedding", c.file, c.head_dim, form);
  };
  return make_decoder(config, o, std::move(f));
}
/// Exaone4Config.__post_init__.
Config with_exaone_windows(Config config) {
  // Files with layer_types may write the pattern out ("LLLG").
  const bool counts = config.has("sliding_window") && !config.has("layer_types");
  const I pattern = counts ? config.size_or("sliding_window_pattern", 4) : 0;
  default_layer_types(config, [=](I i) { return pattern > 0 && (i + 1) % pattern != 0 ? "sliding_attention" : "full_attention"; });
  return config;
}
NetworkPtr exaone4(const Config& config, const Options& o) {
  DecoderForm f = post_norm_form<Exaone4Attention>("Exaone4", Norm::llama, true);
  f.masks = DecoderForm::Masks::by_layer_type;
  return make_decoder(with_exaone_windows(config), o, std::move(f));
}
/// exaone4's attention under llama's layers, and deepseek's mixture after the first layers.
NetworkPtr exaone_moe(const Config& config, const Options& o) {
  DecoderForm f = llama_form(
      "ExaoneMoe",
      [](const DecoderConfig& c, I i, const std::string& type) -> MixerPtr { return std::make_shared<Exaone4Attention>(c, i, type); },
      [](const DecoderConfig& c, I i) -> UnaryPtr {
        auto mlp = [&](I width) { return make_gated_mlp("ExaoneMoeMLP", c.hidden, width, false, c.act); };
        const bool listed = c.file.has("mlp_layer_types");
        if (!(listed ? sparse_by_type(c, i, nullptr) : i >= c.file.integer_or("first_k_dense_replace", 1))) return mlp(c.intermediate);
        const MoeSizes sizes(c, {});
        auto experts = make_experts(c, "ExaoneMoeExperts", sizes);
        auto gate = make_group_router(c, "ExaoneMoeTopkRouter", sizes, {});
        auto shared = mlp(checked_mul(sizes.intermediate, c.file.size("num_shared_experts")));
        return make_moe_block(c, {.kind = MoeBlockForm::Kind::deepseek, .type = "ExaoneMoeSparseMoEBlock"}, gate, experts, shared);
      });
  f.masks = DecoderForm::Masks::by_layer_type;
  f.only_used_masks = true;
  return make_decoder(with_exaone_windows(config), o, std::move(f));
}
const Family olmo_family{{"olmo"}, decoder_classes("Olmo", olmo)};
const Family olmo2_family{{"olmo2"}, decoder_classes("Olmo2", olmo2)};
const Family olmo3_family{{"olmo3"}, decoder_classes("Olmo3", olmo3)};
const Family exaone_moe_family{{"exaone_moe"},
                               {{Task::causal_lm, "ExaoneMoeForCausalLM", exaone_moe}, {Task::base, "ExaoneMoeModel", exaone_moe}}};
const Family exaone4_family{{"exaone4"}, decoder_classes("Exaone4", exaone4, {Task::question_answering, Task::token_cls})};

}  // namespace
}  // namespace memest::hf
