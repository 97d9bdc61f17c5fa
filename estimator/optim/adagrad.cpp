// torch/optim/adagrad.py of 2.15. Its states are made in the constructor.
#include "optim/two_forms.h"

namespace memest::optim {
namespace {

struct State {
  Tensor step, sum;
};

class Adagrad final : public TwoFormOptimizer<State> {
 public:
  Adagrad(ParameterGroups groups, FormOptions o) : TwoFormOptimizer(std::move(groups), o) {
    if (o.form == Form::fused && !runtime().settings.torch.fused_adagrad())
      throw Error("--optimizer: adagrad with fused=true has no CUDA kernel before PyTorch 2.12",
                  "leave fused out, or choose a newer --torch-version");
    for (auto& g : groups_)
      for (std::size_t i = 0; i < g.parameters.size(); ++i) init(g.parameters[i], states_[g.first + i]);
  }
  bool unscales_itself() const override { return forms().form == Form::fused; }

 private:
  void init(T p, State& s) final {
    if (s.step) return;
    s.step = new_counter(forms().form == Form::fused);
    s.sum = new_state(p);
  }

  void single(const List& params, const std::vector<State*>& states, double decay) override {
    Tensor grad, std;
    for (std::size_t i = 0; i < params.size(); ++i) {
      T param = params[i];
      bind_gradient(grad, param, decay);
      std = fresh("aten::sqrt", states[i]->sum);
    }
  }

  void multi(const List& params, const std::vector<State*>& states, double decay) override {
    List device_grads, std, numerator;
    for (auto& group : by_dtype(params)) {
      const List device_params = picked(params, group);
      bind_gradients(device_grads, device_params, decay);
      std = foreach ("aten::_foreach_sqrt", list(states, group, &State::sum));
      if (decay != 0 || forms().maximize)
        numerator = device_grads;
      else
        numerator = foreach ("aten::_foreach_mul", device_grads);
    }
  }
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
      const FormOptions o{weight_decay, maximize, form_of(foreach, fused, differentiable)};
      return [o](ParameterGroups groups) { return std::make_unique<Adagrad>(std::move(groups), o); };
    }};

}  // namespace
}  // namespace memest::optim
