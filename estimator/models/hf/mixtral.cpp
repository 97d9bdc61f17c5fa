// models/mixtral and the mixtures with a softmax router over a llama body: qwen2_moe, qwen3_moe, olmoe, flex_olmo, mellum.
#include <algorithm>

#include "models/hf/llama_form.h"
#include "models/hf/moe.h"
#include "models/hf/rotate.h"

namespace memest::hf {
namespace {

Biases all(bool b) { return {b, b, b, b}; }
UnaryPtr dense(const DecoderConfig& c, const std::string& type) { return make_gated_mlp(type, c.hidden, c.intermediate, false, c.act); }

// ---- mixtral
NetworkPtr mixtral(const Config& config, const Options& o) {
  constexpr MoeFields fields{"num_local_experts", "num_experts_per_tok", "intermediate_size"};
  DecoderForm f = llama_form(
      "Mixtral", [](const DecoderConfig& c, I i, const std::string& type) { return make_attention(c, i, type, {}); },
      [fields](const DecoderConfig& c, I) {
        const MoeSizes sizes(c, fields);
        MoeBlockForm block{.kind = MoeBlockForm::Kind::mixtral, .type = "MixtralSparseMoeBlock"};
        block.jitter = c.file.number_or("router_jitter_noise", 0.0);
        auto gate = make_softmax_router(c, "MixtralTopKRouter", sizes, {.float_first = true, .cast_back = false});
        return make_moe_block(c, block, gate, make_experts(c, "MixtralExperts", sizes));
      });
  f.masks = DecoderForm::Masks::sliding_if_set;
  f.aux_loss = load_balancing(fields);
  return make_decoder(config, o, std::move(f));
}
const Family mixtral_family{{"mixtral"}, decoder_classes("Mixtral", mixtral, {Task::question_answering, Task::token_cls})};

// ---- qwen2_moe, qwen3_moe
/// Whether a layer has experts: mlp_only_layers, decoder_sparse_step.
bool sparse(const DecoderConfig& c, I layer) {
  const Config& f = c.file;
  if (f.has("mlp_only_layers")) {
    const auto dense_layers = f.integers("mlp_only_layers");
    if (std::find(dense_layers.begin(), dense_layers.end(), layer) != dense_layers.end()) return false;
  }
  return f.integer_or("num_experts", 0) > 0 && (layer + 1) % f.size_or("decoder_sparse_step", 1) == 0;
}
SoftmaxRouter qwen_router(const DecoderConfig& c) { return {.normalize = c.file.boolean_or("norm_topk_prob", false)}; }

NetworkPtr qwen2_moe(const Config& given, const Options& o) {
  Config config = given;
  const bool window = config.boolean_or("use_sliding_window", false);
  const I last = config.integer_or("max_window_layers", 28);
  if (!window) {
    ConfigValue zero;
    zero.value = std::int64_t{0};
    config.set("sliding_window", std::move(zero));
  }
  default_layer_types(config, [=](I i) { return (i + 1) % 2 != 0 && i < last && window ? "sliding_attention" : "full_attention"; });
  DecoderForm f = llama_form(
      "Qwen2Moe",
      [](const DecoderConfig& c, I i, const std::string& type) {
        const bool b = c.file.boolean_or("qkv_bias", true);
        return make_attention(c, i, type, {b, b, b, false});
      },
      [](const DecoderConfig& c, I i) {
        if (!sparse(c, i)) return dense(c, "Qwen2MoeMLP");
        const MoeSizes sizes(c, {});
        auto gate = make_softmax_router(c, "Qwen2MoeTopKRouter", sizes, qwen_router(c));
        auto experts = make_experts(c, "Qwen2MoeExperts", sizes);
        auto shared = make_gated_mlp("Qwen2MoeMLP", c.hidden, c.file.size("shared_expert_intermediate_size"), false, c.act);
        return make_moe_block(c, {.kind = MoeBlockForm::Kind::qwen2, .type = "Qwen2MoeSparseMoeBlock"}, gate, experts, shared);
      });
  f.masks = DecoderForm::Masks::by_layer_type;
  f.both_masks = true;
  f.aux_loss = load_balancing();
  return make_decoder(config, o, std::move(f));
}
const Family qwen2_moe_family{{"qwen2_moe"}, decoder_classes("Qwen2Moe", qwen2_moe, {Task::question_answering, Task::token_cls})};

/// q_norm and k_norm over each head.
MixerPtr qwen3_attention(const DecoderConfig& c, I i, const std::string& type) {
  return make_attention_with_qk_norm(c, i, type, all(c.attention_bias), QkNorm::before_transpose, Norm::llama);
}
UnaryPtr qwen3_block(const DecoderConfig& c, const std::string& prefix) {
  const MoeSizes sizes(c, {});
  auto experts = make_experts(c, prefix + "Experts", sizes);
  auto gate = make_softmax_router(c, prefix + "TopKRouter", sizes, qwen_router(c));
  return make_moe_block(c, {.kind = MoeBlockForm::Kind::qwen3, .type = prefix + "SparseMoeBlock"}, gate, experts);
}
NetworkPtr qwen3_moe(const Config& given, const Options& o) {
  Config config = given;
  if (!config.boolean_or("use_sliding_window", false)) config.set("sliding_window", {});
  DecoderForm f = llama_form("Qwen3Moe", qwen3_attention, [](const DecoderConfig& c, I i) {
    return sparse(c, i) ? qwen3_block(c, "Qwen3Moe") : dense(c, "Qwen3MoeMLP");
  });
  f.masks = DecoderForm::Masks::sliding_if_set;
  f.aux_loss = load_balancing();
  return make_decoder(config, o, std::move(f));
}
const Family qwen3_moe_family{{"qwen3_moe"}, decoder_classes("Qwen3Moe", qwen3_moe, {Task::question_answering, Task::token_cls})};

// ---- mellum
NetworkPtr mellum(const Config& given, const Options& o) {
  Config config = given;
  default_layer_types(config, [](I) { return "full_attention"; });
  DecoderForm f = llama_form("Mellum", qwen3_attention, [](const DecoderConfig& c, I i) {
    return sparse_by_type(c, i, [](I) { return true; }) ? qwen3_block(c, "Mellum") : dense(c, "MellumMLP");
  });
  f.masks = DecoderForm::Masks::by_layer_type;
  f.only_used_masks = true;
  f.rotary_by_layer_type = true;
  f.rotary = [](const DecoderConfig& c) { return rotary_of_types(c, "MellumRotaryEmbedding"); };
  f.aux_loss = load_balancing();
  return make_decoder(config, o, std::move(f));
}
const Family mellum_family{{"mellum"}, decoder_classes("Mellum", mellum)};

// ---- olmoe, flex_olmo
/// OlmoeAttention: norms over the whole projections, which may be clipped.
class OlmoeAttention final : public DecoderAttention {
 public:
  OlmoeAttention(const DecoderConfig& c, I layer, const std::string& type, Norm norm, bool cast, bool clip)
      : DecoderAttention(c, layer, type, all(c.attention_bias)),
        cast_(cast),
        clip_(clip),
        q_norm_(register_module("q_norm", make_norm(norm, heads_ * head_dim_, "RMSNorm"))),
        k_norm_(register_module("k_norm", make_norm(norm, kv_heads_ * head_dim_, "RMSNorm"))) {}

 protected:
  void project(Frame& f) override {
    f.query = (*q_norm_)((*q_proj_)(f.hidden_states));
    f.key = (*k_norm_)((*k_proj_)(f.hidden_states));
    f.value = (*v_proj_)(f.hidden_states);
    if (clip_)
      for (X* x : {&f.query, &f.key, &f.value}) aten("clamp_", {Tensor(*x), -1.0, 1.0});
    for (X* x : {&f.query, &f.key, &f.value}) *x = x->view(f.hidden_shape).transpose(1, 2);
  }
  void rotate(Frame& f, const LayerCall& call) override {
    if (!cast_) return DecoderAttention::rotate(f, call);
    std::tie(f.query, f.key) = apply_rotary_cast(f.query, f.key, call.position_embeddings.first, call.position_embeddings.second);
  }

 private:
  bool cast_, clip_;
  UnaryPtr q_norm_, k_norm_;
};
UnaryPtr olmoe_block(const DecoderConfig& c, const std::string& prefix) {
  const MoeSizes sizes(c, {.intermediate = "intermediate_size"});
  auto gate = make_softmax_router(c, prefix + "TopKRouter", sizes, qwen_router(c));
  auto experts = make_experts(c, prefix + "Experts", sizes);
  return make_moe_block(c, {.kind = MoeBlockForm::Kind::olmoe, .type = prefix + "SparseMoeBlock"}, gate, experts);
}
NetworkPtr olmoe(const Config& config, const Options& o) {
  DecoderForm f = llama_form(
      "Olmoe",
      [](const DecoderConfig& c, I i, const std::string& type) -> MixerPtr {
        return std::make_shared<OlmoeAttention>(c, i, type, Norm::llama, false, c.file.has("clip_qkv"));
      },
      [](const DecoderConfig& c, I) { return olmoe_block(c, "Olmoe"); });
  f.aux_loss = load_balancing();
  return make_decoder(config, o, std::move(f));
}
const Family olmoe_family{{"olmoe"}, {{Task::causal_lm, "OlmoeForCausalLM", olmoe}, {Task::base, "OlmoeModel", olmoe}}};

NetworkPtr flex_olmo(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "FlexOlmo";
  f.norm = Norm::olmo2;
  f.norm_type = "FlexOlmoRMSNorm";
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "FlexOlmoDecoderLayer";
    form.order = LayerForm::Order::post;
    form.norm = Norm::olmo2;
    form.norm_type = "FlexOlmoRMSNorm";
    form.norms = {"post_attention_layernorm", "post_feedforward_layernorm"};
    auto attention = std::make_shared<OlmoeAttention>(c, i, "FlexOlmoAttention", Norm::olmo2, true, false);
    return make_layer(c, form, attention, olmoe_block(c, "FlexOlmo"));
  };
  f.rotary = [](const DecoderConfig& c) {
    return std::make_shared<RotaryEmbedding>("FlexOlmoRotaryEmbedding", c.file, c.head_dim, RotaryEmbedding::Form{.cast = false});
  };
  f.aux_loss = load_balancing();
  return make_decoder(config, o, std::move(f));
}
const Family flex_olmo_family{{"flex_olmo"},
                              {{Task::causal_lm, "FlexOlmoForCausalLM", flex_olmo}, {Task::base, "FlexOlmoModel", flex_olmo}}};

}  // namespace
}  // namespace memest::hf
