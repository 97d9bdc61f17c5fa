// torch/optim/adamax.py of 2.15.
#include "optim/optimizer.h"

namespace memest::optim {
namespace {

struct Options {
  double weight_decay;
  bool maximize, capturable;
  Form form;
};
struct State {
  Tensor step, exp_avg, exp_inf;
};

class Adamax final : public StatefulOptimizer<State> {
 public:
  Adamax(ParameterGroups groups, Options o) : StatefulOptimizer(std::move(groups)), o_(o) {}

 private:
  void init(T p, State& s) override {
    if (s.step) return;
    s.step = new_counter(o_.capturable);
    s.exp_avg = new_state(p);
    s.exp_inf = new_state(p);
  }

  void step(const ParameterGroup& g) override {
    std::vector<State*> states;
    const List params = init_group(g, states);
    const double decay = g.decays ? o_.weight_decay : 0;
    if (params.empty()) return;
    if (o_.form == Form::for_loop)
      single(params, states, decay);
    else
      multi(params, states, decay);
  }

  void single(const List& params, const std::vector<State*>& states, double decay) {
    Tensor grad, neg_bias_correction, denom;
    for (std::size_t i = 0; i < params.size(); ++i) {
      T param = params[i];
      const State& s = *states[i];
      grad = param->grad;
      if (o_.maximize) grad = fresh("aten::neg", grad);
      if (decay != 0) grad = fresh("aten::add", grad, param);
      fresh("aten::abs", grad);  // an argument of torch.maximum(out=exp_inf)
      if (!o_.capturable) continue;
      neg_bias_correction = fresh("aten::sub", fresh("aten::pow", s.step));
      denom = fresh("aten::mul", s.exp_inf, neg_bias_correction);
    }
  }

  void multi(const List& params, const std::vector<State*>& states, double decay) {
    List grouped_grads, bias_corrections, denom;
    for (auto& group : by_dtype(params)) {
      const List grouped_params = picked(params, group);
      grouped_grads = gradients_of(grouped_params);
      if (o_.maximize) grouped_grads = foreach ("aten::_foreach_neg", grouped_grads);
      if (decay != 0 && !o_.maximize) grouped_grads = foreach ("aten::_foreach_add", grouped_grads, grouped_params);
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
      const Options o{weight_decay, maximize, capturable, form_of(foreach, std::nullopt, differentiable)};
      return [o](ParameterGroups groups) { return std::make_unique<Adamax>(std::move(groups), o); };
    }};

}  // namespace
}  // namespace memest::optim
