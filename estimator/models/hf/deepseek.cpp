// models/deepseek_v2, deepseek_v3, and the families with their layers: glm4_moe_lite, axk1, mistral4, youtu.
#include "models/hf/mla.h"
#include "models/hf/moe.h"

namespace memest::hf {
namespace {

constexpr MoeFields kRouted{.experts = "n_routed_experts"};

UnaryPtr dense(const DecoderConfig& c, const std::string& prefix) {
  return make_gated_mlp(prefix + "MLP", c.hidden, c.intermediate, c.mlp_bias, c.act);
}
UnaryPtr shared_experts(const DecoderConfig& c, const std::string& prefix, const MoeSizes& sizes, const char* count = "n_shared_experts") {
  return make_gated_mlp(prefix + "MLP", c.hidden, checked_mul(sizes.intermediate, c.file.size(count)), c.mlp_bias, c.act);
}
bool after_dense_layers(const DecoderConfig& c, I layer) { return layer >= c.file.integer_or("first_k_dense_replace", 0); }

using MakeMlp = std::function<UnaryPtr(const DecoderConfig& c, I layer)>;
DecoderForm latent_form(const std::string& prefix, MlaForm mla, MakeMlp mlp) {
  DecoderForm f;
  f.prefix = prefix;
  f.norm_type = prefix + "RMSNorm";
  mla.type = prefix + "Attention";
  f.layer = [prefix, mla, mlp](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = prefix + "DecoderLayer";
    form.norm_type = prefix + "RMSNorm";
    MixerPtr attention = make_latent_attention(c, i, mla);
    return make_layer(c, form, attention, mlp(c, i));
  };
  f.rotary = [prefix](const DecoderConfig& c) {
    return std::make_shared<RotaryEmbedding>(prefix + "RotaryEmbedding", c.file, rotary_width(c.file, c.head_dim));
  };
  return f;
}

/// DeepseekV3MoE.
UnaryPtr grouped_block(const DecoderConfig& c, const std::string& prefix, GroupRouter router = {}) {
  const MoeSizes sizes(c, kRouted);
  auto experts = make_experts(c, prefix + "Experts", sizes);
  auto gate = make_group_router(c, prefix + "TopkRouter", sizes, router);
  return make_moe_block(c, {.kind = MoeBlockForm::Kind::deepseek, .type = prefix + "MoE"}, gate, experts, shared_experts(c, prefix, sizes));
}

NetworkPtr deepseek_v3(const Config& config, const Options& o) {
  DecoderForm f = latent_form("DeepseekV3", {}, [](const DecoderConfig& c, I i) {
    return after_dense_layers(c, i) ? grouped_block(c, "DeepseekV3") : dense(c, "DeepseekV3");
  });
  return make_decoder(with_mla_head_dim(config), o, std::move(f));
}
const Family deepseek_v3_family{{"deepseek_v3"}, decoder_classes("DeepseekV3", deepseek_v3, {Task::token_cls})};

NetworkPtr glm4_moe_lite(const Config& config, const Options& o) {
  DecoderForm f = latent_form("Glm4MoeLite", {}, [](const DecoderConfig& c, I i) {
    return sparse_by_type(c, i, [](I layer) { return layer > 0; }) ? grouped_block(c, "Glm4MoeLite") : dense(c, "Glm4MoeLite");
  });
  return make_decoder(with_mla_head_dim(config), o, std::move(f));
}
const Family glm4_moe_lite_family{
    {"glm4_moe_lite"}, {{Task::causal_lm, "Glm4MoeLiteForCausalLM", glm4_moe_lite}, {Task::base, "Glm4MoeLiteModel", glm4_moe_lite}}};

/// Its layers have no experts.
NetworkPtr youtu(const Config& config, const Options& o) {
  return make_decoder(with_mla_head_dim(config), o, latent_form("Youtu", {}, [](const DecoderConfig& c, I) { return dense(c, "Youtu"); }));
}
const Family youtu_family{{"youtu"}, {{Task::causal_lm, "YoutuForCausalLM", youtu}, {Task::base, "YoutuModel", youtu}}};

/// A block and the norm of what it gives.
class NormedBlock final : public Unary {
 public:
  NormedBlock(const DecoderConfig& c, const std::string& prefix) : Unary(prefix + "MoE"), inner_(grouped_block(c, prefix)) {
    for (auto& [name, module] : inner_->children()) register_module(name, module);
    norm_ = register_module("post_mlp_layernorm", make_norm(Norm::llama, c.hidden, prefix + "RMSNorm"));
  }

 protected:
  X forward(X hidden_states) override {
    hidden_states = (*inner_)(hidden_states);
    return (*norm_)(hidden_states);
  }

 private:
  UnaryPtr inner_, norm_;
};
NetworkPtr axk1(const Config& config, const Options& o) {
  DecoderForm f = latent_form("AXK1", {}, [](const DecoderConfig& c, I i) -> UnaryPtr {
    if (!sparse_by_type(c, i, [](I layer) { return layer > 0; })) return dense(c, "AXK1");
    return std::make_shared<NormedBlock>(c, "AXK1");
  });
  return make_decoder(with_mla_head_dim(config), o, std::move(f));
}
const Family axk1_family{{"axk1"}, decoder_classes("AXK1", axk1, {Task::token_cls})};

NetworkPtr mistral4(const Config& config, const Options& o) {
  DecoderForm f = latent_form("Mistral4", {.query_scale = true}, [](const DecoderConfig& c, I i) {
    constexpr GroupRouter router{
        .scores = GroupRouter::Scores::softmax, .fp32_weight = false, .cast_to_fp32 = false, .correction_bias = false};
    return after_dense_layers(c, i) ? grouped_block(c, "Mistral4", router) : dense(c, "Mistral4");
  });
  return make_decoder(with_mla_head_dim(config), o, std::move(f));
}
const Family mistral4_family{{"mistral4"}, decoder_classes("Mistral4", mistral4, {Task::token_cls})};

// ---- deepseek_v2
/// DeepseekV2TopkRouter: the weights are the scores of the best, of all experts or of the best groups'.
class DeepseekV2Router final : public Router {
 public:
  DeepseekV2Router(const DecoderConfig& c, const MoeSizes& sizes)
      : Router("DeepseekV2TopkRouter", c), sizes_(sizes), method_(c.file.text_or("topk_method", "greedy")) {
    if (method_ != "greedy" && method_ != "group_limited_greedy")
      throw c.file.error("topk_method", "expected 'greedy' or 'group_limited_greedy', found '" + method_.substr(0, 60) + "'");
    if (method_ != "greedy") {
      groups_ = c.file.size("n_group");
      topk_group_ = c.file.size("topk_group");
      if (sizes.experts % groups_ != 0)
        throw c.file.error("n_group", std::to_string(sizes.experts) + " experts do not make " + std::to_string(groups_) + " equal groups");
      if (topk_group_ > groups_)
        throw c.file.error("topk_group", std::to_string(topk_group_) + " groups are taken, but there are " + std::to_string(groups_));
    }
    Tensor weight = host_tensor({sizes.experts, sizes.hidden}, DType::float32);
    weight->requires_grad = true;
    register_parameter("weight", std::move(weight));
  }

 protected:
  Routing forward(X hidden_states) override {
    hidden_states = hidden_states.view({-1, sizes_.hidden});
    X input = hidden_states.to_float();
    X router_logits = ops::linear(std::move(input), X(parameter(0)).to_float(), {});
    X scores = router_logits.softmax(-1, DType::float32);
    X topk_weights, topk_indices, group_scores, group_idx, group_mask, score_mask;
    if (groups_ > 0) {
      const I per_group = sizes_.experts / groups_;
      group_scores = aten_list("max", {Tensor(scores.view({-1, groups_, per_group})), I{-1}})[0];
      group_idx = topk(group_scores, topk_group_, false).second;
      group_mask = aten("zeros_like", {Tensor(group_scores)});
      aten("scatter_", {Tensor(group_mask), I{1}, Tensor(group_idx), I{1}});
      score_mask = group_mask.unsqueeze(-1).expand({-1, groups_, per_group}).reshape({-1, sizes_.experts});
      X excluded = aten("bitwise_not", {Tensor(score_mask.to(DType::boolean))});
      scores = aten("masked_fill", {Tensor(scores), Tensor(std::move(excluded)), 0.0});
    }
    std::tie(topk_weights, topk_indices) = topk(scores, sizes_.top_k, false);
    topk_weights = topk_weights.mul(1.0);
    return {router_logits, topk_weights, topk_indices};
  }

 private:
  MoeSizes sizes_;
  std::string method_;
  I groups_ = 0, topk_group_ = 0;
};
NetworkPtr deepseek_v2(const Config& config, const Options& o) {
  DecoderForm f = latent_form("DeepseekV2", {.complex_rotary = true}, [](const DecoderConfig& c, I i) -> UnaryPtr {
    if (!after_dense_layers(c, i)) return dense(c, "DeepseekV2");
    const MoeSizes sizes(c, kRouted);
    auto experts = make_experts(c, "DeepseekV2Experts", sizes);
    auto gate = std::make_shared<DeepseekV2Router>(c, sizes);
    return make_moe_block(c, {.kind = MoeBlockForm::Kind::deepseek, .type = "DeepseekV2Moe"}, gate, experts,
                          shared_experts(c, "DeepseekV2", sizes));
  });
  f.rotary = [](const DecoderConfig& c) {
    return std::make_shared<RotaryEmbedding>("DeepseekV2RotaryEmbedding", c.file, c.head_dim,
                                             RotaryEmbedding::Form{.table = RotaryEmbedding::Table::complex, .cast = false});
  };
  return make_decoder(with_mla_head_dim(config), o, std::move(f));
}
const Family deepseek_v2_family{{"deepseek_v2"}, decoder_classes("DeepseekV2", deepseek_v2)};

}  // namespace
}  // namespace memest::hf
