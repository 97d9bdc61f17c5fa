// torch/optim/rmsprop.py of 2.15.
#include "optim/two_forms.h"

namespace memest::optim {
namespace {

struct Options : FormOptions {
  double momentum;
  bool centered, capturable;
};
struct State {
  Tensor step, square_avg, momentum_buffer, grad_avg;
};

class RMSprop final : public TwoFormOptimizer<State> {
 public:
  RMSprop(ParameterGroups groups, Options o) : TwoFormOptimizer(std::move(groups), o), o_(o) {}

 private:
  void init(T p, State& s) override {
    if (s.step) return;
    s.step = new_counter(o_.capturable);
    s.square_avg = new_state(p);
    if (o_.momentum > 0) s.momentum_buffer = new_state(p);
    if (o_.centered) s.grad_avg = new_state(p);
  }

  void single(const List& params, const std::vector<State*>& states, double decay) override {
    Tensor grad, avg;
    for (std::size_t i = 0; i < params.size(); ++i) {
      T param = params[i];
      const State& s = *states[i];
      bind_gradient(grad, param, decay);
      avg = o_.centered ? fresh("aten::addcmul", s.square_avg, s.grad_avg) : fresh("aten::sqrt", s.square_avg);
    }
  }

  void multi(const List& params, const std::vector<State*>& states, double decay) override {
    List grouped_grads, avg;
    for (auto& group : by_dtype(params)) {
      const List grouped_params = picked(params, group);
      bind_gradients(grouped_grads, grouped_params, decay);
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
      const Options o{{weight_decay, maximize, form_of(foreach, std::nullopt, differentiable)}, momentum, centered, capturable};
      return [o](ParameterGroups groups) { return std::make_unique<RMSprop>(std::move(groups), o); };
    }};

}  // namespace
}  // namespace memest::optim
