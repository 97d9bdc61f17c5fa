// Experts of a mixture: the weights of all as one parameter, and the three ways of integrations/moe.py (transformers 5.24) to run them.
#pragma once
#include "models/hf/module.h"
#include "models/hf/options.h"

namespace memest::hf {

/// What the decorator @use_experts_implementation and the class say.
struct ExpertsForm {
  std::string type;  ///< of the class: "MixtralExperts"
  I count = 0, hidden = 0, intermediate = 0;
  std::string act = "silu";
  bool gated = true;        ///< gate_up_proj; else up_proj
  bool transposed = false;  ///< [count, in, out]
  bool bias = false;
  bool act_in_call = true;               ///< the activation is a module, act_fn
  X (*apply_gate)(X gate_up) = nullptr;  ///< _apply_gate of the class itself
};

/// experts(hidden_states [tokens, hidden], top_k_index and top_k_weights [tokens, k]).
class Experts final : public Module<Experts> {
 public:
  Experts(ExpertsForm form, const Options& options);
  X forward(X hidden_states, X top_k_index, X top_k_weights);

 private:
  enum Parameter : std::size_t { kUp, kUpBias, kDown, kDownBias };
  X weight(Parameter which) const;
  X gate(X proj_out);
  X eager(const X& hidden_states, const X& top_k_index, const X& top_k_weights);
  X batched_mm(const X& hidden_states, const X& top_k_index, const X& top_k_weights);
  X grouped_mm(const X& hidden_states, const X& top_k_index, const X& top_k_weights);

  ExpertsForm form_;
  std::string implementation_;
  Activation* act_fn_ = nullptr;
};

/// Tokens that the i-th of `count` experts gets of `total`, where they are spread evenly.
I tokens_of_expert(I i, I count, I total);

}  // namespace memest::hf
