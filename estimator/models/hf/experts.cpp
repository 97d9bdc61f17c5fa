#include "models/hf/experts.h"

#include <functional>

#include "device/grouped_mm.h"
#include "ops/grouped_matmul.h"
#include "ops/indexing.h"

namespace memest::hf {

I tokens_of_expert(I i, I count, I total) {
  const auto end = [&](I n) { return I(__int128(total) * n / count); };
  return end(i + 1) - end(i);
}

ExpertParameters expert_parameters(const nn::Module& root) {
  ExpertParameters sum;
  if (auto* experts = dynamic_cast<const RoutedExperts*>(&root)) {
    const std::function<I(const nn::Module&)> parameters = [&](const nn::Module& m) {
      I n = 0;
      for (auto& [name, p] : m.own_parameters())
        if (p) n += p.numel();
      for (auto& [name, child] : m.children()) n += parameters(*child);
      return n;
    };
    sum.total = parameters(root);
    sum.active = sum.total / experts->count * experts->per_token;
    return sum;
  }
  for (auto& [name, child] : root.children()) {
    const ExpertParameters of_child = expert_parameters(*child);
    sum.total += of_child.total;
    sum.active += of_child.active;
  }
  return sum;
}

bool switch_experts(const nn::Module& root, const std::string& from, const std::string& to) {
  bool any = false;
  for (auto& [name, child] : root.children()) {
    auto* experts = dynamic_cast<Experts*>(child.get());
    any |= experts ? experts->switch_implementation(from, to) : switch_experts(*child, from, to);
  }
  return any;
}

Experts::Experts(ExpertsForm form, const Options& options)
    : Module(form.type), RoutedExperts(form.count, form.per_token), form_(std::move(form)), implementation_(options.experts) {
  const I up = form_.gated ? checked_mul(I{2}, form_.intermediate) : form_.intermediate;
  const char* name = form_.gated ? "gate_up_proj" : "up_proj";
  auto sizes = [&](I out, I in) { return form_.transposed ? Dims{form_.count, in, out} : Dims{form_.count, out, in}; };
  new_parameter(name, sizes(up, form_.hidden));
  new_parameter(std::string(name) + "_bias", {form_.count, up}, form_.bias);
  new_parameter("down_proj", sizes(form_.hidden, form_.intermediate));
  new_parameter("down_proj_bias", {form_.count, form_.hidden}, form_.bias);
  if (!form_.apply_gate) act_fn_ = &child<Activation>("act_fn", form_.act);
}
X Experts::weight(Parameter which) const { return parameter(which); }

X Experts::forward(X hidden_states, X top_k_index, X top_k_weights) {
  if (implementation_ == "eager") return eager(hidden_states, top_k_index, top_k_weights);
  if (implementation_ == "batched_mm") return batched_mm(hidden_states, top_k_index, top_k_weights);
  return grouped_mm(hidden_states, top_k_index, top_k_weights);
}

/// _apply_gate, or the activation alone; `proj_out` is the name of the caller.
X Experts::gate(X gate_up_out) {
  if (form_.apply_gate) return form_.apply_gate(std::move(gate_up_out));
  if (!form_.gated) return (*act_fn_)(gate_up_out);
  std::vector<X> halves = gate_up_out.chunk(2, -1);
  X gate = halves[0], up = halves[1];
  halves.clear();
  return (*act_fn_)(gate).mul(up);
}

namespace {

X index(X self, X indices) { return ops::index(std::move(self), Tensors{std::move(indices)}); }

/// _batched_linear.
X batched_linear(const X& input, const X& weight, const X& bias, bool transposed) {
  X out = transposed ? input.unsqueeze(1).bmm(weight).squeeze(1) : weight.bmm(input.unsqueeze(-1)).squeeze(-1);
  if (bias) ops::add_(out, bias, 1);
  return out;
}
/// _grouped_mm.
X grouped(const X& input, X weight, const X& offs) {
  const RunSettings& s = runtime().settings;
  X cast = input.to(weight.dtype());
  if (has_grouped_mm(s.torch, s.device)) return ops::grouped_mm(std::move(cast), std::move(weight), offs, {}, {});
  return ops::grouped_mm_fallback(std::move(cast), std::move(weight), offs);
}
/// _grouped_linear.
X grouped_linear(const X& input, const X& weight, const X& offs, const X& bias, bool transposed) {
  X out = grouped(input, transposed ? weight : weight.transpose(-2, -1), offs);
  if (bias) ops::add_(out, bias, 1);
  return out;
}

}  // namespace

// integrations/moe.py batched_mm_experts_forward
X Experts::batched_mm(const X& hidden_states, const X& top_k_index, const X& top_k_weights) {
  const I num_top_k = top_k_index.size(-1), num_tokens = hidden_states.size(0), hidden_dim = hidden_states.size(-1);
  X selected_hidden_states = aten("repeat_interleave", {Tensor(hidden_states), num_top_k, I{0}});
  X sample_weights = top_k_weights.reshape({-1});
  X expert_ids = top_k_index.reshape({-1});
  X selected_weights = index(weight(kUp), expert_ids), selected_biases;
  if (form_.bias) selected_biases = index(weight(kUpBias), expert_ids);
  X proj_out = batched_linear(selected_hidden_states, selected_weights, selected_biases, form_.transposed);
  proj_out = gate(proj_out);
  selected_weights = index(weight(kDown), expert_ids);
  if (form_.bias) selected_biases = index(weight(kDownBias), expert_ids);
  proj_out = batched_linear(proj_out, selected_weights, selected_biases, form_.transposed);
  X weighted_out = proj_out.mul(sample_weights.unsqueeze(-1));
  X final_hidden_states = weighted_out.view({num_tokens, num_top_k, hidden_dim}).sum(1);
  return final_hidden_states.to(hidden_states.dtype());
}

// integrations/moe.py grouped_mm_experts_forward
X Experts::grouped_mm(const X& hidden_states, const X& top_k_index, const X& top_k_weights) {
  const I num_top_k = top_k_index.size(-1), num_tokens = hidden_states.size(0), hidden_dim = hidden_states.size(-1);
  X sample_weights = top_k_weights.reshape({-1});
  X expert_ids = top_k_index.reshape({-1});
  std::vector<X> sorted = aten_list("sort", {Tensor(expert_ids)});
  X expert_ids_g = sorted[0], perm = sorted[1];
  sorted.clear();
  X selected_hidden_states_g = index(hidden_states, aten("floor_divide", {Tensor(perm), num_top_k}));
  X sample_weights_g = index(sample_weights, perm);
  X histc_input = expert_ids_g.to(DType::int32);
  X tokens_per_expert = aten("histc", {Tensor(histc_input), form_.count, I{0}, form_.count - 1});
  X offsets = aten("cumsum", {Tensor(tokens_per_expert), I{0}}, {{"dtype", DType::int32}});
  X selected_biases;
  if (form_.bias) selected_biases = index(weight(kUpBias), expert_ids_g);
  X proj_out = grouped_linear(selected_hidden_states_g, weight(kUp), offsets, selected_biases, form_.transposed);
  proj_out = gate(proj_out);
  if (form_.bias) selected_biases = index(weight(kDownBias), expert_ids_g);
  proj_out = grouped_linear(proj_out, weight(kDown), offsets, selected_biases, form_.transposed);
  X weighted_out = proj_out.mul(sample_weights_g.unsqueeze(-1));
  X inv_perm = aten("empty_like", {Tensor(perm)});
  aten("index_put_", {Tensor(inv_perm), make_list({Tensor(perm)}), Tensor(arange(perm.size(0)))});
  weighted_out = index(weighted_out, inv_perm);
  X final_hidden_states = weighted_out.view({num_tokens, num_top_k, hidden_dim}).sum(1);
  X result = final_hidden_states.to(hidden_states.dtype());
  return leave(result, sample_weights, expert_ids, expert_ids_g, perm, selected_hidden_states_g, sample_weights_g, histc_input,
               tokens_per_expert, offsets, selected_biases, proj_out, weighted_out, inv_perm);
}

// models/mixtral/modeling_mixtral.py MixtralExperts.forward; how many tokens an expert gets is assumed.
X Experts::eager(const X& hidden_states, const X& top_k_index, const X& top_k_weights) {
  const I pairs = top_k_index.numel();
  ops::note_data_dependent("the experts' inputs", "tokens are spread evenly over the experts");
  X final_hidden_states = aten("zeros_like", {Tensor(hidden_states)});
  X expert_mask, expert_hit;
  {
    NoGrad no_grad;
    expert_mask = aten("one_hot", {Tensor(top_k_index), form_.count + 1});
    expert_mask = expert_mask.permute({2, 1, 0});
    ops::AssumedSelection hit(std::min(form_.count, pairs));
    expert_hit = aten("nonzero", {Tensor(aten("gt", {Tensor(aten("sum", {Tensor(expert_mask), list_of(Dims{-1, -2})})), I{0}}))});
  }
  const std::vector<X> rows = expert_hit.unbind(0);
  X expert_idx, top_k_pos, token_idx, current_state, gate, up, current_hidden_states;
  I i = 0;
  for (auto& row : rows) {
    I tokens = 0;
    while (tokens == 0 && i < form_.count) tokens = tokens_of_expert(i++, form_.count, pairs);
    const I expert = i - 1;
    expert_idx = row;
    expert_idx = expert_idx.select(0, 0);
    { X is_beyond = aten("eq", {Tensor(expert_idx), form_.count}); }
    ops::AssumedSelection share(tokens);
    std::vector<X> where = aten_list("where", {Tensor(expert_mask.select(0, expert))});
    top_k_pos = where[0], token_idx = where[1];
    where.clear();
    current_state = index(hidden_states, token_idx);
    auto project = [&](const X& input, Parameter w, Parameter b) -> X {
      X matrix = weight(w).select(0, expert);
      if (form_.transposed) {
        X product = input.matmul(matrix);
        return form_.bias ? product.add(X(weight(b)).select(0, expert)) : product;
      }
      return ops::linear(input, std::move(matrix), form_.bias ? Tensor(weight(b).select(0, expert)) : Tensor());
    };
    if (form_.apply_gate) {
      X gate_up = project(current_state, kUp, kUpBias);
      current_hidden_states = form_.apply_gate(gate_up);
    } else if (form_.gated) {
      std::vector<X> halves = project(current_state, kUp, kUpBias).chunk(2, -1);
      gate = halves[0], up = halves[1];
      halves.clear();
      current_hidden_states = (*act_fn_)(gate).mul(up);
    } else {
      current_hidden_states = (*act_fn_)(project(current_state, kUp, kUpBias));
    }
    current_hidden_states = project(current_hidden_states, kDown, kDownBias);
    current_hidden_states = current_hidden_states.mul(X(ops::index(top_k_weights.unsqueeze(2), Tensors{token_idx, top_k_pos})));
    aten("index_add_",
         {Tensor(final_hidden_states), I{0}, Tensor(token_idx), Tensor(current_hidden_states.to(final_hidden_states.dtype()))});
  }
  return final_hidden_states;
}

}  // namespace memest::hf
