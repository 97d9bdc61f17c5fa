// torch/optim/adamax.py of 2.15.
#include "optim/two_forms.h"

namespace memest::optim {
namespace {

struct Options : FormOptions {
  bool capturable;
};
struct State {
  Tensor step, exp_avg, exp_inf;
};

class Adamax final : public TwoFormOptimizer<State> {
 public:
  Adamax(ParameterGroups groups, Options o) : TwoFormOptimizer(std::move(groups), o), o_(o) {}

 private:
  void init(T p, State& s) override {
    if (s.step) return;
    s.step = new_counter(o_.capturable);
    s.exp_avg = new_state(p);
    s.exp_inf = new_state(p);
  }

  void single(const List& params, const std::vector<State*>& states, double decay) override {
    Tensor grad, neg_bias_correction, denom;
    for (std::size_t i = 0; i < params.size(); ++i) {
      T param = params[i];
      const State& s = *states[i];
      bind_gradient(grad, param, decay);
      fresh("aten::abs", grad);  // an argument of torch.maximum(out=exp_inf)
      if (!o_.capturable) continue;
      neg_bias_correction = fresh("aten::sub", fresh("aten::pow", s.step));
      denom = fresh("aten::mul", s.exp_inf, neg_bias_correction);
    }
  }

  void multi(const List& params, const std::vector<State*>& states, double decay) override {
    List grouped_grads, bias_corrections, denom;
    for (auto& group : by_dtype(params)) {
      const List grouped_params = picked(params, group);
      bind_gradients(grouped_grads, grouped_params, decay);
      if (!o_.maximize && decay == 0) grouped_grads = foreach ("aten::_foreach_abs", grouped_grads);
      if (!o_.capturable) continue;
      bias_corrections = foreach ("aten::_foreach_pow", list(states, group, &State::step));
      denom = foreach ("aten::_foreach_mul", list(states, group, &State::exp_inf), bias_corrections);
    }
  }

  Options o_;
};

const OptimizerKind adamax{
    "adamax(float lr=0.002, float[2] betas=[0.9, 0.999], float eps=1e-08, float weight_decay=0, bool? foreach=None, *, bool "
    "maximize=False, bool "
    "differentiable=False, bool capturable=False)",
    "exp_avg, exp_inf: 2 × parameter; capturable: step, 4 bytes each",
    [](double lr, const std::vector<double>& betas, double eps, double weight_decay, std::optional<bool> foreach, bool maximize,
       bool differentiable, bool capturable) -> MakeOptimizer {
      check_argument(lr >= 0, "learning rate", lr);
      check_argument(eps >= 0, "epsilon value", eps);
      check_betas(betas);
      check_argument(weight_decay >= 0, "weight_decay value", weight_decay);
      const Options o{{weight_decay, maximize, form_of(foreach, std::nullopt, differentiable)}, capturable};
      return [o](ParameterGroups groups) { return std::make_unique<Adamax>(std::move(groups), o); };
    }};

}  // namespace
}  // namespace memest::optim
