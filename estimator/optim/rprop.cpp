// torch/optim/rprop.py of 2.15.
#include "optim/optimizer.h"

namespace memest::optim {
namespace {

struct Options {
  bool maximize, capturable;
  Form form;
};
struct State {
  Tensor step, prev, step_size;
};

class Rprop final : public StatefulOptimizer<State> {
 public:
  Rprop(ParameterGroups groups, Options o) : StatefulOptimizer(std::move(groups)), o_(o) {}

 private:
  void init(T p, State& s) override {
    if (s.step) return;
    s.step = new_counter(o_.capturable);
    s.prev = new_state(p);
    s.step_size = new_state(p->grad ? p->grad : p);
  }

  void step(const ParameterGroup& g) override {
    std::vector<State*> states;
    const List params = init_group(g, states);
    if (params.empty()) return;
    if (o_.form == Form::for_loop)
      single(params, states);
    else
      multi(params, states);
  }

  /// sign[sign.gt(0)] = etaplus and the like: a mask for the fill. With capturable: sign.copy_(torch.where(mask, number, sign)).
  void replace(T sign, const char* comparison) const {
    Tensor mask = fresh_as(comparison, DType::boolean, sign);
    if (o_.capturable) where_number(std::move(mask), sign);
  }
  void set_signs(T sign) const {
    replace(sign, "aten::gt");
    replace(sign, "aten::lt");
    replace(sign, "aten::eq");
  }

  void single(const List& params, const std::vector<State*>& states) {
    Tensor grad, sign;
    for (std::size_t i = 0; i < params.size(); ++i) {
      grad = params[i]->grad;
      if (o_.maximize) grad = fresh("aten::neg", grad);
      sign = fresh("aten::sign", fresh("aten::mul", grad, states[i]->prev));
      set_signs(sign);
      grad = fresh("aten::clone", grad);
      Tensor mask = fresh_as("aten::eq", DType::boolean, sign);
      if (o_.capturable) where_number(std::move(mask), grad);
      mask.reset();
      fresh("aten::sign", grad);
    }
  }

  void multi(const List& params, const std::vector<State*>& states) {
    List grad_signs;
    for (auto& group : by_dtype(params)) {
      const List grads = gradients_of(picked(params, group));
      const List prevs = list(states, group, &State::prev);
      List signs = foreach ("aten::_foreach_mul", grads, prevs);
      for (auto& sign : signs) set_signs(sign);
      for (std::size_t i = 0; i < prevs.size(); ++i) where_number(fresh_as("aten::eq", DType::boolean, signs[i]), prevs[i]);
      signs.drop();  // del signs
      List fresh_signs;
      for (auto& g : prevs) fresh_signs.push_back(fresh("aten::sign", g));
      grad_signs = std::move(fresh_signs);
    }
  }

  Options o_;
};

const OptimizerKind rprop{
    "rprop(float lr=0.01, float[2] etas=[0.5, 1.2], float[2] step_sizes=[1e-06, 50.0], *, bool capturable=False, bool? foreach=None, bool "
    "maximize=False, bool differentiable=False)",
    "prev, step_size: 2 × parameter; capturable: step, 4 bytes each",
    [](double lr, const std::vector<double>& etas, const std::vector<double>&, bool capturable, std::optional<bool> foreach, bool maximize,
       bool differentiable) -> MakeOptimizer {
      check_argument(lr >= 0, "learning rate", lr);
      if (!(0 < etas[0] && etas[0] < 1 && 1 < etas[1])) throw Error("--optimizer: Invalid eta values");
      const Options o{maximize, capturable, form_of(foreach, std::nullopt, differentiable)};
      return [o](ParameterGroups groups) { return std::make_unique<Rprop>(std::move(groups), o); };
    }};

}  // namespace
}  // namespace memest::optim
