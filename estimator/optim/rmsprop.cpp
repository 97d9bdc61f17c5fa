// torch/optim/rmsprop.py of 2.15.
#include "optim/optimizer.h"

namespace memest::optim {
namespace {

struct Options {
  double weight_decay, momentum;
  bool centered, maximize, capturable;
  Form form;
};
struct State {
  Tensor step, square_avg, momentum_buffer, grad_avg;
};

class RMSprop final : public StatefulOptimizer<State> {
 public:
  RMSprop(ParameterGroups groups, Options o) : StatefulOptimizer(std::move(groups)), o_(o) {}

 private:
  void init(T p, State& s) override {
    if (s.step) return;
    s.step = new_counter(o_.capturable);
    s.square_avg = new_state(p);
    if (o_.momentum > 0) s.momentum_buffer = new_state(p);
    if (o_.centered) s.grad_avg = new_state(p);
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
    Tensor grad, avg;
    for (std::size_t i = 0; i < params.size(); ++i) {
      T param = params[i];
      const State& s = *states[i];
      grad = param->grad;
      if (o_.maximize) grad = fresh("aten::neg", grad);
      if (decay != 0) grad = fresh("aten::add", grad, param);
      avg = o_.centered ? fresh("aten::addcmul", s.square_avg, s.grad_avg) : fresh("aten::sqrt", s.square_avg);
    }
  }

  void multi(const List& params, const std::vector<State*>& states, double decay) {
    List grouped_grads, avg;
    for (auto& group : by_dtype(params)) {
      const List grouped_params = picked(params, group);
      grouped_grads = gradients_of(grouped_params);
      if (o_.maximize) grouped_grads = foreach ("aten::_foreach_neg", grouped_grads);
      if (decay != 0 && !o_.maximize) grouped_grads = foreach ("aten::_foreach_add", grouped_grads, grouped_params);
      avg = foreach (o_.centered ? "aten::_foreach_addcmul" : "aten::_foreach_sqrt", list(states, group, &State::square_avg));
    }
  }

  Options o_;
};

const OptimizerKind rmsprop{
    "rmsprop(float lr=0.01, float alpha=0.99, float eps=1e-08, float weight_decay=0, float momentum=0, bool centered=False, bool "
    "capturable=False, bool? foreach=None, bool maximize=False, bool differentiable=False)",
    "square_avg: 1 × parameter; momentum, centered: 1 × more each; capturable: step, 4 bytes each",
    [](double lr, double alpha, double eps, double weight_decay, double momentum, bool centered, bool capturable,
       std::optional<bool> foreach, bool maximize, bool differentiable) -> MakeOptimizer {
      check_argument(lr >= 0, "learning rate", lr);
      check_argument(eps >= 0, "epsilon value", eps);
      check_argument(momentum >= 0, "momentum value", momentum);
      check_argument(weight_decay >= 0, "weight_decay value", weight_decay);
      check_argument(alpha >= 0, "alpha value", alpha);
      const Options o{weight_decay, momentum, centered, maximize, capturable, form_of(foreach, std::nullopt, differentiable)};
      return [o](ParameterGroups groups) { return std::make_unique<RMSprop>(std::move(groups), o); };
    }};

}  // namespace
}  // namespace memest::optim
