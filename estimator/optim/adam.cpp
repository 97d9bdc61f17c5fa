// torch/optim/adam.py and adamw.py of 2.15.
#include "optim/optimizer.h"

namespace memest::optim {
namespace {

struct Options {
  double weight_decay;
  bool decoupled, amsgrad, maximize, capturable;
  Form form;
};
struct State {
  Tensor step, exp_avg, exp_avg_sq, max_exp_avg_sq;
};

class Adam final : public StatefulOptimizer<State> {
 public:
  Adam(ParameterGroups groups, Options o) : StatefulOptimizer(std::move(groups)), o_(o) {}
  bool unscales_itself() const override { return o_.form == Form::fused; }

 private:
  void init(T p, State& s) override {
    if (s.step) return;
    s.step = new_counter(o_.capturable || o_.form == Form::fused);
    s.exp_avg = new_state(p);
    s.exp_avg_sq = new_state(p);
    if (o_.amsgrad) s.max_exp_avg_sq = new_state(p);
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
    Tensor grad, denom, bias_correction1, bias_correction2, step_size, step_size_neg, bias_correction2_sqrt;
    for (std::size_t i = 0; i < params.size(); ++i) {
      T param = params[i];
      const State& s = *states[i];
      grad = o_.maximize ? fresh("aten::neg", param->grad) : param->grad;
      if (decay != 0 && !o_.decoupled) grad = fresh("aten::add", grad, param);
      if (!o_.capturable) {
        // denom = (exp_avg_sq.sqrt() / bias_correction2_sqrt).add_(eps)
        denom = fresh("aten::div", fresh("aten::sqrt", o_.amsgrad ? s.max_exp_avg_sq : s.exp_avg_sq));
        continue;
      }
      bias_correction1 = one_minus_power(s.step);
      bias_correction2 = one_minus_power(s.step);
      step_size = number_over(bias_correction1);
      step_size_neg = fresh("aten::neg", step_size);
      bias_correction2_sqrt = fresh("aten::sqrt", bias_correction2);
      if (o_.amsgrad) fresh("aten::maximum", s.max_exp_avg_sq, s.exp_avg_sq);
      // denom = (exp_avg_sq.sqrt() / (bias_correction2_sqrt * step_size_neg)).add_(eps / step_size_neg)
      Tensor root = fresh("aten::sqrt", o_.amsgrad ? s.max_exp_avg_sq : s.exp_avg_sq);
      Tensor divisor = fresh("aten::mul", bias_correction2_sqrt, step_size_neg);
      Tensor quotient = fresh("aten::div", std::move(root), std::move(divisor));
      number_over(step_size_neg);
      denom = std::move(quotient);
    }
  }

  void multi(const List& params, const std::vector<State*>& states, double decay) {
    List bias_correction1, bias_correction2, exp_avg_sq_sqrt;
    for (auto& group : by_dtype(params)) {
      const List device_params = picked(params, group);
      List device_grads = gradients_of(device_params);
      if (o_.maximize) device_grads = foreach ("aten::_foreach_neg", device_grads);
      if (decay != 0 && !o_.decoupled && !o_.maximize) device_grads = foreach ("aten::_foreach_add", device_grads, device_params);
      device_grads.drop();  // del device_grads
      if (o_.capturable) {
        const List steps = list(states, group, &State::step);
        bias_correction1 = foreach ("aten::_foreach_pow", steps);
        bias_correction2 = foreach ("aten::_foreach_pow", steps);
      }
      exp_avg_sq_sqrt = foreach ("aten::_foreach_sqrt", list(states, group, o_.amsgrad ? &State::max_exp_avg_sq : &State::exp_avg_sq));
    }
  }

  Options o_;
};

MakeOptimizer make(double lr, const std::vector<double>& betas, double eps, double weight_decay, bool decoupled, bool amsgrad,
                   bool maximize, bool capturable, bool differentiable, std::optional<bool> foreach, std::optional<bool> fused) {
  check_argument(lr >= 0, "learning rate", lr);
  check_argument(eps >= 0, "epsilon value", eps);
  check_betas(betas);
  check_argument(weight_decay >= 0, "weight_decay value", weight_decay);
  const Options o{weight_decay, decoupled, amsgrad, maximize, capturable, form_of(foreach, fused, differentiable)};
  return [o](ParameterGroups groups) { return std::make_unique<Adam>(std::move(groups), o); };
}

constexpr const char* kState = "exp_avg, exp_avg_sq: 2 × parameter; amsgrad: 3 ×; fused, capturable: step, 4 bytes each";

const OptimizerKind adam{
    "adam(float lr=0.001, float[2] betas=[0.9, 0.999], float eps=1e-08, float weight_decay=0, bool amsgrad=False, *, bool? foreach=None, "
    "bool "
    "maximize=False, bool capturable=False, bool differentiable=False, bool? fused=None, bool decoupled_weight_decay=False)",
    kState,
    [](double lr, const std::vector<double>& betas, double eps, double weight_decay, bool amsgrad, std::optional<bool> foreach,
       bool maximize, bool capturable, bool differentiable, std::optional<bool> fused, bool decoupled) {
      return make(lr, betas, eps, weight_decay, decoupled, amsgrad, maximize, capturable, differentiable, foreach, fused);
    }};
const OptimizerKind adamw{
    "adamw(float lr=0.001, float[2] betas=[0.9, 0.999], float eps=1e-08, float weight_decay=0.01, bool amsgrad=False, *, bool "
    "maximize=False, bool? "
    "foreach=None, bool capturable=False, bool differentiable=False, bool? fused=None)",
    kState,
    [](double lr, const std::vector<double>& betas, double eps, double weight_decay, bool amsgrad, bool maximize,
       std::optional<bool> foreach, bool capturable, bool differentiable, std::optional<bool> fused) {
      return make(lr, betas, eps, weight_decay, true, amsgrad, maximize, capturable, differentiable, foreach, fused);
    }};

}  // namespace
}  // namespace memest::optim
