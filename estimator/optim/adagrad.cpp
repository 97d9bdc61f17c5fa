// torch/optim/adagrad.py of 2.15. Its states are made in the constructor.
#include "optim/optimizer.h"

namespace memest::optim {
namespace {

struct Options {
  double weight_decay;
  bool maximize;
  Form form;
};
struct State {
  Tensor step, sum;
};

class Adagrad final : public StatefulOptimizer<State> {
 public:
  Adagrad(ParameterGroups groups, Options o) : StatefulOptimizer(std::move(groups)), o_(o) {
    if (o.form == Form::fused && !runtime().settings.torch.fused_adagrad())
      throw Error("--optimizer: adagrad with fused=true has no CUDA kernel before PyTorch 2.12",
                  "leave fused out, or choose a newer --torch-version");
    for (auto& g : groups_)
      for (std::size_t i = 0; i < g.parameters.size(); ++i) init(g.parameters[i], states_[g.first + i]);
  }
  bool unscales_itself() const override { return o_.form == Form::fused; }

 private:
  void init(T p, State& s) final {
    if (s.step) return;
    s.step = new_counter(o_.form == Form::fused);
    s.sum = new_state(p);
  }

  void step(const ParameterGroup& g) override {
    std::vector<State*> states;
    const List params = init_group(g, states);
    const double decay = g.decays ? o_.weight_decay : 0;
    if (params.empty()) return;
    if (o_.form == Form::for_loop)
      single(params, states, decay);
    else if (o_.form == Form::foreach)
      multi(params, states, decay);
    // fused: one kernel in place
  }

  void single(const List& params, const std::vector<State*>& states, double decay) {
    Tensor grad, std;
    for (std::size_t i = 0; i < params.size(); ++i) {
      T param = params[i];
      grad = param->grad;
      if (o_.maximize) grad = fresh("aten::neg", grad);
      if (decay != 0) grad = fresh("aten::add", grad, param);
      std = fresh("aten::sqrt", states[i]->sum);
    }
  }

  void multi(const List& params, const std::vector<State*>& states, double decay) {
    List device_grads, std, numerator;
    for (auto& group : by_dtype(params)) {
      const List device_params = picked(params, group);
      device_grads = gradients_of(device_params);
      if (o_.maximize) device_grads = foreach ("aten::_foreach_neg", device_grads);
      if (decay != 0 && !o_.maximize) device_grads = foreach ("aten::_foreach_add", device_grads, device_params);
      std = foreach ("aten::_foreach_sqrt", list(states, group, &State::sum));
      if (decay != 0 || o_.maximize)
        numerator = device_grads;
      else
        numerator = foreach ("aten::_foreach_mul", device_grads);
    }
  }

  Options o_;
};

const OptimizerKind adagrad{
    "adagrad(float lr=0.01, float lr_decay=0, float weight_decay=0, float initial_accumulator_value=0, float eps=1e-10, bool? "
    "foreach=None, *, "
    "bool maximize=False, bool differentiable=False, bool? fused=None)",
    "sum: 1 × parameter, made in the constructor; fused: step, 4 bytes each",
    [](double lr, double lr_decay, double weight_decay, double initial, double eps, std::optional<bool> foreach, bool maximize,
       bool differentiable, std::optional<bool> fused) -> MakeOptimizer {
      check_argument(lr >= 0, "learning rate", lr);
      check_argument(lr_decay >= 0, "lr_decay value", lr_decay);
      check_argument(weight_decay >= 0, "weight_decay value", weight_decay);
      check_argument(initial >= 0, "initial_accumulator_value value", initial);
      check_argument(eps >= 0, "epsilon value", eps);
      const Options o{weight_decay, maximize, form_of(foreach, fused, differentiable)};
      return [o](ParameterGroups groups) { return std::make_unique<Adagrad>(std::move(groups), o); };
    }};

}  // namespace
}  // namespace memest::optim
