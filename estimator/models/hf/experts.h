// Experts of a mixture: the weights of all as one parameter, and the three ways of integrations/moe.py (transformers 5.24) to run them.
#pragma once
#include "models/hf/module.h"
#include "models/hf/options.h"

namespace memest::hf {

/// A module that holds the weights of all experts of a layer, of which a token meets some.
struct RoutedExperts {
  RoutedExperts(I experts, I chosen) : count(experts), per_token(chosen) {}
  virtual ~RoutedExperts() = default;
  const I count, per_token;
};
/// Parameters of a model's routed experts: of all, and of those that one token meets.
struct ExpertParameters {
  I total = 0, active = 0;
};
ExpertParameters expert_parameters(const nn::Module& root);

/// What the decorator @use_experts_implementation and the class say.
struct ExpertsForm {
  std::string type;  ///< of the class: "MixtralExperts"
  I count = 0, per_token = 0, hidden = 0, intermediate = 0;
  std::string act = "silu";
  bool gated = true;        ///< gate_up_proj; else up_proj
  bool transposed = false;  ///< [count, in, out]
  bool bias = false;
  bool act_in_call = true;               ///< the activation is a module, act_fn
  X (*apply_gate)(X gate_up) = nullptr;  ///< _apply_gate of the class itself
};

/// experts(hidden_states [tokens, hidden], top_k_index and top_k_weights [tokens, k]).
class Experts final : public Module<Experts>, public RoutedExperts {
 public:
  Experts(ExpertsForm form, const Options& options);
  X forward(X hidden_states, X top_k_index, X top_k_weights);
  /// set_experts_implementation, where it is `from`.
  bool switch_implementation(const std::string& from, const std::string& to) {
    if (implementation_ != from) return false;
    implementation_ = to;
    return true;
  }

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

/// The same for all experts of a model: whether there were any.
bool switch_experts(const nn::Module& root, const std::string& from, const std::string& to);

/// Tokens that the i-th of `count` experts gets of `total`, where they are spread evenly.
I tokens_of_expert(I i, I count, I total);

}  // namespace memest::hf
