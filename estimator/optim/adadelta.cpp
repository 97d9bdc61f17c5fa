// torch/optim/adadelta.py of 2.15.
#include "optim/two_forms.h"

namespace memest::optim {
namespace {

struct Options : FormOptions {
  bool capturable;
};
struct State {
  Tensor step, square_avg, acc_delta;
};

class Adadelta final : public TwoFormOptimizer<State> {
 public:
  Adadelta(ParameterGroups groups, Options o) : TwoFormOptimizer(std::move(groups), o), o_(o) {}

 private:
  void init(T p, State& s) override {
    if (s.step) return;
    s.step = new_counter(o_.capturable);
    s.square_avg = new_state(p);
    s.acc_delta = new_state(p);
  }

  void single(const List& params, const std::vector<State*>& states, double decay) override {
    Tensor grad, std, delta;
    for (std::size_t i = 0; i < params.size(); ++i) {
      T param = params[i];
      bind_gradient(grad, param, decay);
      std = fresh("aten::add", states[i]->square_avg);
      delta = fresh("aten::add", states[i]->acc_delta);
    }
  }

  void multi(const List& params, const std::vector<State*>& states, double decay) override {
    List device_grads, std, deltas;
    for (auto& group : by_dtype(params)) {
      const List device_params = picked(params, group);
      bind_gradients(device_grads, device_params, decay);
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
      const Options o{{weight_decay, maximize, form_of(foreach, std::nullopt, differentiable)}, capturable};
      return [o](ParameterGroups groups) { return std::make_unique<Adadelta>(std::move(groups), o); };
    }};

}  // namespace
}  // namespace memest::optim
