// LAMB: timm.optim.Lamb 1.0.31 with foreach=False (the variant of apex.optimizers.FusedLAMB in plain PyTorch).
#include "ops/views.h"
#include "optim/optimizer.h"

namespace memest::optim {
namespace {

struct Options {
  double weight_decay;
  bool clips, trust_clip, always_adapt, decoupled;
};
struct State {
  Tensor exp_avg, exp_avg_sq;
};

class Lamb final : public StatefulOptimizer<State> {
 public:
  Lamb(ParameterGroups groups, Options o) : StatefulOptimizer(std::move(groups)), o_(o) {}

  void step() override {
    const Tensor clip_grad_norm = o_.clips ? clip_norm() : Tensor();
    for (auto& g : groups_) step_group(g, clip_grad_norm);
  }

 private:
  void init(T p, State& s) override {
    if (s.exp_avg) return;
    s.exp_avg = new_state(p);
    s.exp_avg_sq = new_state(p);
  }
  /// (global_norm / max_grad_norm).clamp_(min=1.0)
  Tensor clip_norm() const {
    List grads;
    for (auto& g : groups_)
      for (auto& p : g.parameters)
        if (p->grad) grads.push_back(p->grad);
    if (grads.empty()) return {};
    const List norms = foreach_norm(grads);
    Tensor stacked = ops::stack(norms, 0);
    Tensor global_norm = vector_norm(stacked);
    stacked.reset();
    return fresh("aten::div", global_norm);
  }
  Tensor trust_ratio(Tensor w_norm, Tensor g_norm) const {
    Tensor ratio = fresh("aten::div", w_norm, g_norm);
    Tensor weighs = fresh_as("aten::gt", DType::boolean, w_norm);
    Tensor inner = where_number(fresh_as("aten::gt", DType::boolean, g_norm), ratio);
    ratio = where_number(std::move(weighs), std::move(inner));
    if (o_.trust_clip) ratio = fresh("aten::clamp", ratio);
    return ratio;
  }
  void step_group(const ParameterGroup& g, T clip_grad_norm) {
    std::vector<State*> states;
    const List params = init_group(g, states);
    const double decay = g.decays ? o_.weight_decay : 0;
    Tensor grad, denom, update;
    for (std::size_t i = 0; i < params.size(); ++i) {
      T p = params[i];
      grad = p->grad;
      if (clip_grad_norm) grad = fresh("aten::div", grad, clip_grad_norm);
      denom = fresh("aten::div", fresh("aten::sqrt", states[i]->exp_avg_sq));
      update = fresh("aten::div", states[i]->exp_avg);
      if (decay == 0 && !o_.always_adapt) continue;
      Tensor w_norm = vector_norm(p), g_norm = vector_norm(update);
      trust_ratio(std::move(w_norm), std::move(g_norm));  // an argument of mul_
    }
  }

  Options o_;
};

const OptimizerKind lamb{
    "lamb(float lr=0.001, bool bias_correction=True, float[2] betas=[0.9, 0.999], float eps=1e-06, float weight_decay=0.01, bool "
    "grad_averaging=True, "
    "float? max_grad_norm=1.0, bool trust_clip=False, bool always_adapt=False, bool decoupled_decay=False)",
    "exp_avg, exp_avg_sq: 2 × parameter (timm.optim.Lamb, foreach=False)",
    [](double lr, bool, const std::vector<double>& betas, double eps, double weight_decay, bool, std::optional<double> max_grad_norm,
       bool trust_clip, bool always_adapt, bool decoupled) -> MakeOptimizer {
      check_argument(lr >= 0, "learning rate", lr);
      check_argument(eps >= 0, "epsilon", eps);
      check_argument(weight_decay >= 0, "weight_decay", weight_decay);
      check_betas(betas);
      const Options o{weight_decay, max_grad_norm.has_value(), trust_clip, always_adapt, decoupled};
      return [o](ParameterGroups groups) { return std::make_unique<Lamb>(std::move(groups), o); };
    }};

}  // namespace
}  // namespace memest::optim
