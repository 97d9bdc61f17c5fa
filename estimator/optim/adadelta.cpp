// torch/optim/adadelta.py of 2.15.
#include "optim/optimizer.h"

namespace memest::optim {
namespace {

struct Options {
  double weight_decay;
  bool maximize, capturable;
  Form form;
};
struct State {
  Tensor step, square_avg, acc_delta;
};

class Adadelta final : public StatefulOptimizer<State> {
 public:
  Adadelta(ParameterGroups groups, Options o) : StatefulOptimizer(std::move(groups)), o_(o) {}

 private:
  void init(T p, State& s) override {
    if (s.step) return;
    s.step = new_counter(o_.capturable);
    s.square_avg = new_state(p);
    s.acc_delta = new_state(p);
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
    Tensor grad, std, delta;
    for (std::size_t i = 0; i < params.size(); ++i) {
      T param = params[i];
      grad = param->grad;
      if (o_.maximize) grad = fresh("aten::neg", grad);
      if (decay != 0) grad = fresh("aten::add", grad, param);
      std = fresh("aten::add", states[i]->square_avg);
      delta = fresh("aten::add", states[i]->acc_delta);
    }
  }

  void multi(const List& params, const std::vector<State*>& states, double decay) {
    List device_grads, std, deltas;
    for (auto& group : by_dtype(params)) {
      const List device_params = picked(params, group);
      device_grads = gradients_of(device_params);
      if (o_.maximize) device_grads = foreach ("aten::_foreach_neg", device_grads);
      if (decay != 0 && !o_.maximize) device_grads = foreach ("aten::_foreach_add", device_grads, device_params);
      std = foreach ("aten::_foreach_add", list(states, group, &State::square_avg));
      deltas = foreach ("aten::_foreach_add", list(states, group, &State::acc_delta));
    }
  }

  Options o_;
};

const OptimizerKind adadelta{
    "adadelta(float lr=1.0, float rho=0.9, float eps=1e-06, float weight_decay=0, bool? foreach=None, *, bool capturable=False, bool "
    "maximize=False, bool differentiable=False)",
    "square_avg, acc_delta: 2 × parameter; capturable: step, 4 bytes each",
    [](double lr, double rho, double eps, double weight_decay, std::optional<bool> foreach, bool capturable, bool maximize,
       bool differentiable) -> MakeOptimizer {
      check_argument(lr >= 0, "learning rate", lr);
      check_argument(rho >= 0 && rho <= 1, "rho value", rho);
      check_argument(eps >= 0, "epsilon value", eps);
      check_argument(weight_decay >= 0, "weight_decay value", weight_decay);
      const Options o{weight_decay, maximize, capturable, form_of(foreach, std::nullopt, differentiable)};
      return [o](ParameterGroups groups) { return std::make_unique<Adadelta>(std::move(groups), o); };
    }};

}  // namespace
}  // namespace memest::optim
