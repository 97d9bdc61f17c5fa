// torch/optim/asgd.py of 2.15. Its counters are always on the device.
#include "optim/two_forms.h"

namespace memest::optim {
namespace {

struct Options : FormOptions {
  double t0;
  bool capturable;
};
struct State {
  Tensor step, eta, mu, ax;
  int steps = 0;
};

class ASGD final : public TwoFormOptimizer<State> {
 public:
  ASGD(ParameterGroups groups, Options o) : TwoFormOptimizer(std::move(groups), o), o_(o) {}

 private:
  void init(T p, State& s) override {
    if (s.step) return;
    s.step = new_counter(true);
    {
      // torch.as_tensor(lr, device=p.device).clone().detach()
      Tensor lr = scalar();
      s.eta = clone_state(lr);
    }
    s.mu = new_counter(true);
    s.ax = new_state(p);
  }

  static void count_steps(const std::vector<State*>& states) {
    for (auto* s : states) ++s->steps;
  }
  /// lr / ((1 + lambd * lr * step) ** alpha) of a step on the device.
  static Tensor new_eta(T step) { return number_over(fresh("aten::pow", fresh("aten::add", fresh("aten::mul", step)))); }

  void single(const List& params, const std::vector<State*>& states, double decay) override {
    count_steps(states);
    Tensor grad;
    for (std::size_t i = 0; i < params.size(); ++i) {
      T param = params[i];
      const State& s = *states[i];
      bind_gradient(grad, param, decay);
      if (o_.capturable) fresh("aten::rsub", fresh("aten::mul", s.eta));
      if (o_.capturable || s.steps - 1 > o_.t0 + 1) fresh("aten::sub", param, s.ax);  // mu != 1 once step - t0 is above 1
      if (!o_.capturable) continue;
      new_eta(s.step);
      // mu.copy_(1 / torch.maximum(step_t - t0, torch.ones_like(step_t)))
      Tensor difference = fresh("aten::sub", s.step);
      number_over(fresh("aten::maximum", std::move(difference), fresh("aten::ones_like", s.step)));
    }
  }

  void multi(const List& params, const std::vector<State*>& states, double decay) override {
    count_steps(states);
    List grouped_grads, new_etas, new_mus;
    for (auto& group : by_dtype(params)) {
      const List grouped_params = picked(params, group);
      grouped_grads = gradients_of(grouped_params);
      if (o_.maximize) grouped_grads = foreach ("aten::_foreach_neg", grouped_grads);
      List intermediate = decay != 0 && o_.maximize ? grouped_grads : foreach ("aten::_foreach_add", grouped_grads, grouped_params);
      intermediate.drop();  // del intermediate
      foreach ("aten::_foreach_sub", grouped_params, list(states, group, &State::ax))
        ;
      if (o_.capturable) {
        const List steps = list(states, group, &State::step);
        new_mus = foreach ("aten::_foreach_sub", steps);
        new_mus.drop();  // del new_mus
        new_etas = foreach ("aten::_foreach_mul", steps);
        continue;
      }
      List etas, mus;
      for (std::size_t i : group) etas.push_back(new_eta(states[i]->step));
      new_etas = std::move(etas);
      for (std::size_t i = 0; i < group.size(); ++i) mus.push_back(scalar());
      new_mus = std::move(mus);
    }
  }

  Options o_;
};

const OptimizerKind asgd{
    "asgd(float lr=0.01, float lambd=0.0001, float alpha=0.75, float t0=1000000.0, float weight_decay=0, bool? foreach=None, bool "
    "maximize=False, bool "
    "differentiable=False, bool capturable=False)",
    "ax: 1 × parameter; step, eta, mu: 4 bytes each",
    [](double lr, double lambd, double alpha, double t0, double weight_decay, std::optional<bool> foreach, bool maximize,
       bool differentiable, bool capturable) -> MakeOptimizer {
      check_argument(lr >= 0, "learning rate", lr);
      check_argument(lambd >= 0, "lambd value", lambd);
      check_argument(alpha >= 0, "alpha value", alpha);
      check_argument(weight_decay >= 0, "weight_decay value", weight_decay);
      const Options o{{weight_decay, maximize, form_of(foreach, std::nullopt, differentiable)}, t0, capturable};
      return [o](ParameterGroups groups) { return std::make_unique<ASGD>(std::move(groups), o); };
    }};

}  // namespace
}  // namespace memest::optim
