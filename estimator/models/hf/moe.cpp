#include "models/hf/moe.h"

#include <algorithm>

#include "ops/indexing.h"

namespace memest::hf {

MoeSizes::MoeSizes(const DecoderConfig& c, const MoeFields& fields)
    : experts(c.file.size(fields.experts)),
      top_k(c.file.size(fields.top_k)),
      hidden(c.hidden),
      intermediate(c.file.size(fields.intermediate)) {
  if (top_k > experts)
    throw c.file.error(fields.top_k, "each token takes " + std::to_string(top_k) + " experts, but there are " + std::to_string(experts));
}

std::shared_ptr<Experts> make_experts(const DecoderConfig& c, std::string type, const MoeSizes& sizes) {
  return std::make_shared<Experts>(ExpertsForm{.type = std::move(type),
                                               .count = sizes.experts,
                                               .per_token = sizes.top_k,
                                               .hidden = sizes.hidden,
                                               .intermediate = sizes.intermediate,
                                               .act = c.act},
                                   c.options);
}

bool sparse_by_type(const DecoderConfig& c, I layer, bool (*otherwise)(I)) {
  if (!c.file.has("mlp_layer_types")) return otherwise(layer);
  const auto types = c.file.texts("mlp_layer_types");
  if (I(types.size()) != c.layers)
    throw c.file.error("mlp_layer_types",
                       "expected " + std::to_string(c.layers) + " entries, one for each layer, found " + std::to_string(types.size()));
  const std::string& type = types[std::size_t(layer)];
  if (type != "sparse" && type != "dense")
    throw c.file.error("mlp_layer_types", "expected 'sparse' or 'dense', found '" + type.substr(0, 60) + "'");
  return type == "sparse";
}

std::shared_ptr<RotaryEmbedding> rotary_of_types(const DecoderConfig& c, std::string type, double default_factor) {
  RotaryEmbedding::Form form;
  std::vector<std::string> types = c.layer_types;
  std::sort(types.begin(), types.end());
  types.erase(std::unique(types.begin(), types.end()), types.end());
  const auto parameters = c.file.has("rope_parameters") ? c.file.section_if("rope_parameters") : std::nullopt;
  for (auto& t : types) {
    double factor = default_factor;
    if (parameters && parameters->has(t)) factor = parameters->section(t).number_or("partial_rotary_factor", default_factor);
    if (!(factor > 0 && factor <= 1))
      throw c.file.error("rope_parameters", "expected a partial_rotary_factor above 0 and at most 1, found " + std::to_string(factor));
    form.layer_types.emplace_back(t, I(double(c.head_dim) * factor));
  }
  return std::make_shared<RotaryEmbedding>(std::move(type), c.file, c.head_dim, std::move(form));
}

// ---- routers -------------------------------------------------------------------------------------------------------------------

Pair topk(X x, I k, bool sorted) {
  std::vector<X> result = aten_list("topk", {Tensor(std::move(x)), k, I{-1}, true, sorted});
  return {result[0], result[1]};
}

namespace {

class SoftmaxTopK final : public Router {
 public:
  SoftmaxTopK(const DecoderConfig& c, std::string type, const MoeSizes& sizes, SoftmaxRouter form)
      : Router(std::move(type), c), form_(form), sizes_(sizes) {
    new_parameter("weight", {sizes.experts, sizes.hidden});
  }

 protected:
  Routing forward(X hidden_states) override {
    hidden_states = hidden_states.reshape({-1, sizes_.hidden});
    X router_logits = ops::linear(hidden_states, parameter(0), {});
    X router_probs = form_.float_first ? router_logits.to_float().softmax(-1) : router_logits.softmax(-1, DType::float32);
    auto [router_top_value, router_indices] = topk(router_probs, sizes_.top_k);
    if (form_.normalize) router_top_value = ops::div_(router_top_value, router_top_value.sum(-1, true));
    if (form_.cast_back) router_top_value = router_top_value.to(router_logits.dtype());
    X router_scores = router_top_value;
    return {router_logits, router_scores, router_indices};
  }

 private:
  SoftmaxRouter form_;
  MoeSizes sizes_;
};

class GroupTopK final : public Router {
 public:
  GroupTopK(const DecoderConfig& c, std::string type, const MoeSizes& sizes, GroupRouter form)
      : Router(std::move(type), c),
        form_(form),
        sizes_(sizes),
        groups_(c.file.size_or("n_group", 1)),
        topk_group_(c.file.size_or("topk_group", 1)),
        normalize_(c.file.boolean_or("norm_topk_prob", true)) {
    if (sizes.experts % groups_ != 0)
      throw c.file.error("n_group", std::to_string(sizes.experts) + " experts do not make " + std::to_string(groups_) + " equal groups");
    if (topk_group_ > groups_)
      throw c.file.error("topk_group", std::to_string(topk_group_) + " groups are taken, but there are " + std::to_string(groups_));
    if (sizes.experts / groups_ < 2 && !form.optional_groups)
      throw c.file.error("n_group", "a group's score is the sum of its best two experts, and it has only one");
    Tensor weight = host_tensor({sizes.experts, sizes.hidden}, form.fp32_weight ? DType::float32 : runtime().default_dtype);
    weight->requires_grad = true;
    register_parameter("weight", std::move(weight));
    if (form.correction_bias) new_buffer("e_score_correction_bias", {sizes.experts}, DType::float32);
  }

 protected:
  Routing forward(X hidden_states) override {
    hidden_states = hidden_states.view({-1, sizes_.hidden});
    X router_logits;
    if (form_.cast_to_fp32) {
      X input = hidden_states.to_float();
      router_logits = ops::linear(std::move(input), X(parameter(0)).to_float(), {});
    } else {
      router_logits = ops::linear(hidden_states, parameter(0), {});
    }
    X scores = form_.scores == GroupRouter::Scores::sigmoid ? router_logits.sigmoid() : router_logits.softmax(-1);
    X scores_for_choice = form_.correction_bias ? scores.add(X(buffer(0))) : scores;
    X group_scores, group_idx, group_mask, score_mask;
    if (!form_.optional_groups || groups_ > 1) {
      const I per_group = sizes_.experts / groups_;
      X best = topk(scores_for_choice.view({-1, groups_, per_group}), 2).first;  // topk(...)[0]: the indices are gone before the sum
      group_scores = std::move(best).sum(-1);
      group_idx = topk(group_scores, topk_group_, false).second;
      group_mask = aten("zeros_like", {Tensor(group_scores)});
      aten("scatter_", {Tensor(group_mask), I{1}, Tensor(group_idx), I{1}});
      score_mask = group_mask.unsqueeze(-1).expand({-1, groups_, per_group}).reshape({-1, sizes_.experts});
      X excluded = aten("bitwise_not", {Tensor(score_mask.to(DType::boolean))});
      scores_for_choice = aten("masked_fill", {Tensor(scores_for_choice), Tensor(std::move(excluded)), -1e30});
    }
    X topk_indices = topk(scores_for_choice, sizes_.top_k, false).second;
    X topk_weights = ops::gather(scores, 1, topk_indices, false);
    X denominator;
    if (normalize_) {
      denominator = topk_weights.sum(-1, true).add(1e-20);
      topk_weights = ops::div_(topk_weights, denominator);
    }
    topk_weights = topk_weights.mul(1.0);
    return {router_logits, topk_weights, topk_indices};
  }

 private:
  GroupRouter form_;
  MoeSizes sizes_;
  I groups_, topk_group_;
  bool normalize_;
};

// ---- blocks --------------------------------------------------------------------------------------------------------------------

class MoeBlock final : public Unary {
 public:
  MoeBlock(const DecoderConfig& c, const MoeBlockForm& form, RouterPtr gate, std::shared_ptr<Experts> experts, UnaryPtr shared)
      : Unary(form.type), form_(form), gate_(std::move(gate)), experts_(std::move(experts)), shared_(std::move(shared)) {
    using Kind = MoeBlockForm::Kind;
    const bool experts_first = form.kind == Kind::qwen3 || form.kind == Kind::deepseek;
    if (experts_first) register_module("experts", experts_);
    register_module(form.gate, gate_);
    if (!experts_first) register_module("experts", experts_);
    if (shared_) register_module(form.kind == Kind::qwen2 ? "shared_expert" : "shared_experts", shared_);
    if (form.kind == Kind::qwen2) shared_gate_ = &child<Linear>("shared_expert_gate", c.hidden, 1, false);
  }

 protected:
  X forward(X hidden_states) override {
    using Kind = MoeBlockForm::Kind;
    const I width = hidden_states.size(-1);
    const Dims shape = hidden_states.sizes();
    if (training && form_.jitter > 0) {
      X noise = aten("uniform_", {Tensor(aten("empty_like", {Tensor(hidden_states)})), 0.9, 1.1});
      hidden_states = aten("mul_", {Tensor(hidden_states), Tensor(std::move(noise))});
    }
    switch (form_.kind) {
      case Kind::mixtral: {
        hidden_states = hidden_states.view({-1, width});
        auto [logits, top_k_weights, top_k_index] = (*gate_)(hidden_states);
        hidden_states = (*experts_)(hidden_states, top_k_index, top_k_weights);
        hidden_states = hidden_states.reshape(shape);
        return hidden_states;
      }
      case Kind::olmoe: {
        hidden_states = hidden_states.view({-1, width});
        auto [logits, top_k_weights, top_k_index] = (*gate_)(hidden_states);
        return (*experts_)(hidden_states, top_k_index, top_k_weights).reshape(shape);
      }
      case Kind::qwen3: {
        X hidden_states_reshaped = hidden_states.view({-1, width});
        auto [logits, routing_weights, selected_experts] = (*gate_)(hidden_states_reshaped);
        return (*experts_)(hidden_states_reshaped, selected_experts, routing_weights).reshape(shape);
      }
      case Kind::deepseek: {
        X residuals = hidden_states;
        auto [logits, topk_weights, topk_indices] = (*gate_)(hidden_states);
        hidden_states = hidden_states.view({-1, width});
        hidden_states = (*experts_)(hidden_states, topk_indices, topk_weights).view(shape);
        hidden_states = hidden_states.add((*shared_)(residuals));
        return hidden_states;
      }
      case Kind::qwen2: {
        X hidden_states_reshaped = hidden_states.view({-1, width});
        X shared_expert_output = (*shared_)(hidden_states_reshaped);
        auto [logits, routing_weights, selected_experts] = (*gate_)(hidden_states_reshaped);
        X expert_output = (*experts_)(hidden_states_reshaped, selected_experts, routing_weights);
        shared_expert_output = (*shared_gate_)(hidden_states_reshaped).sigmoid().mul(shared_expert_output);
        expert_output = expert_output.add(shared_expert_output);
        return expert_output.reshape(shape);
      }
      case Kind::ernie: {
        hidden_states = hidden_states.view({-1, width});
        X shared_output;
        if (shared_) shared_output = (*shared_)(hidden_states);
        auto [logits, top_k_weights, top_k_index] = (*gate_)(hidden_states);
        X final_hidden_states = (*experts_)(hidden_states, top_k_index, top_k_weights);
        if (shared_) final_hidden_states = final_hidden_states.add(shared_output);
        final_hidden_states = final_hidden_states.reshape(shape);
        return final_hidden_states.to(hidden_states.dtype());
      }
    }
    return {};
  }

 private:
  MoeBlockForm form_;
  RouterPtr gate_;
  std::shared_ptr<Experts> experts_;
  UnaryPtr shared_;
  Linear* shared_gate_ = nullptr;
};

}  // namespace

RouterPtr make_softmax_router(const DecoderConfig& c, std::string type, const MoeSizes& sizes, SoftmaxRouter form) {
  return std::make_shared<SoftmaxTopK>(c, std::move(type), sizes, form);
}
RouterPtr make_group_router(const DecoderConfig& c, std::string type, const MoeSizes& sizes, GroupRouter form) {
  return std::make_shared<GroupTopK>(c, std::move(type), sizes, form);
}
UnaryPtr make_moe_block(const DecoderConfig& c, const MoeBlockForm& form, RouterPtr gate, std::shared_ptr<Experts> experts,
                        UnaryPtr shared) {
  return std::make_shared<MoeBlock>(c, form, std::move(gate), std::move(experts), std::move(shared));
}

// ---- the loss of load balancing ------------------------------------------------------------------------------------------------

X load_balancing_loss(const std::vector<X>& gate_logits, I num_experts, I top_k) {
  X tokens_per_expert_sum = zeros({num_experts}, DType::float32);
  X router_prob_sum = zeros({num_experts}, DType::float32);
  X routing_weights, selected_experts, unused;
  for (auto& layer_gate : gate_logits) {
    routing_weights = layer_gate.softmax(-1);
    std::tie(unused, selected_experts) = topk(routing_weights, top_k);
    tokens_per_expert_sum =
        tokens_per_expert_sum.add(aten("histc", {Tensor(selected_experts.reshape({-1}).to(DType::int32)), num_experts, I{0}, num_experts}));
    router_prob_sum = router_prob_sum.add(routing_weights.to_float().sum(0));
  }
  X tokens_per_expert = tokens_per_expert_sum.div(1.0);
  X router_prob_per_expert = router_prob_sum.div(1.0);
  X overall_loss = aten("sum", {Tensor(tokens_per_expert.mul(router_prob_per_expert.unsqueeze(0)))});
  return overall_loss.mul(1);
}
std::function<X(const std::vector<X>&, const DecoderConfig&)> load_balancing(MoeFields fields) {
  return [fields](const std::vector<X>& logits, const DecoderConfig& c) {
    return load_balancing_loss(logits, c.file.size(fields.experts), c.file.size(fields.top_k));
  };
}

}  // namespace memest::hf
