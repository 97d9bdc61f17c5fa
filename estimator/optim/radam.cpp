// torch/optim/radam.py of 2.15.
#include <cmath>

#include "optim/two_forms.h"

namespace memest::optim {
namespace {

struct Options : FormOptions {
  double beta2;
  bool capturable;
};
struct State {
  Tensor step, exp_avg, exp_avg_sq;
  int steps = 0;
};

class RAdam final : public TwoFormOptimizer<State> {
 public:
  RAdam(ParameterGroups groups, Options o) : TwoFormOptimizer(std::move(groups), o), o_(o) {}

 private:
  void init(T p, State& s) override {
    if (s.step) return;
    s.step = new_counter(o_.capturable);
    s.exp_avg = new_state(p);
    s.exp_avg_sq = new_state(p);
  }

  /// The length of the approximated moving average is above 5: the step is rectified.
  bool rectified(int step) const {
    const double rho_inf = 2 / (1 - o_.beta2) - 1, power = std::pow(o_.beta2, step);
    return rho_inf - 2 * step * power / (1 - power) > 5;
  }

  void single(const List& params, const std::vector<State*>& states, double decay) override {
    Tensor grad, bias_correction1, bias_correction2, bias_corrected_exp_avg, rho_t, update;
    for (std::size_t i = 0; i < params.size(); ++i) {
      T param = params[i];
      State& s = *states[i];
      grad = o_.maximize ? fresh("aten::neg", param->grad) : param->grad;
      ++s.steps;
      if (decay != 0) grad = fresh("aten::add", grad, param);
      if (o_.capturable) {
        bias_correction1 = one_minus_power(s.step);
        bias_correction2 = one_minus_power(s.step);
      }
      bias_corrected_exp_avg = fresh("aten::div", s.exp_avg, bias_correction1);
      // 1 / (sqrt + eps) scaled: (bias_correction2 ** 0.5) / exp_avg_sq_sqrt
      auto adaptive_lr = [&] {
        Tensor exp_avg_sq_sqrt = fresh("aten::sqrt", s.exp_avg_sq);
        return o_.capturable ? fresh("aten::div", fresh("aten::pow", bias_correction2), exp_avg_sq_sqrt) : number_over(exp_avg_sq_sqrt);
      };
      if (!o_.capturable) {
        Tensor scaled = fresh("aten::mul", bias_corrected_exp_avg);
        if (!rectified(s.steps)) continue;
        // bias_corrected_exp_avg * lr * adaptive_lr * rect
        Tensor adaptive = adaptive_lr();
        fresh("aten::mul", fresh("aten::mul", std::move(scaled), std::move(adaptive)));
        continue;
      }
      // rho_t = rho_inf - 2 * step * (beta2**step) / bias_correction2
      Tensor twice = fresh("aten::mul", s.step);
      rho_t = fresh("aten::rsub", fresh("aten::div", fresh("aten::mul", std::move(twice), fresh("aten::pow", s.step)), bias_correction2));
      Tensor condition = fresh_as("aten::gt", DType::boolean, rho_t);
      Tensor minus4 = fresh("aten::sub", rho_t);
      Tensor product = fresh("aten::mul", fresh("aten::mul", std::move(minus4), fresh("aten::sub", rho_t)));
      Tensor rect = fresh("aten::pow", fresh("aten::div", std::move(product), fresh("aten::mul", rho_t)));
      Tensor adaptive = adaptive_lr();
      update = where_number(std::move(condition), fresh("aten::mul", std::move(rect), std::move(adaptive)));
      fresh("aten::mul", fresh("aten::mul", bias_corrected_exp_avg), update);
    }
  }

  void multi(const List& params, const std::vector<State*>& states, double decay) override {
    List bias_correction1, bias_correction2, unrect_step_size, buffer;
    for (auto& group : by_dtype(params)) {
      const List grouped_params = picked(params, group);
      List grouped_grads = gradients_of(grouped_params);
      const List steps = list(states, group, &State::step);
      if (o_.maximize) grouped_grads = foreach ("aten::_foreach_neg", grouped_grads);
      List rho_t_list;
      if (o_.capturable) {
        bias_correction1 = foreach ("aten::_foreach_pow", steps);
        bias_correction2 = foreach ("aten::_foreach_pow", steps);
        rho_t_list = bias_correction2;
      }
      if (decay != 0 && !o_.maximize) grouped_grads = foreach ("aten::_foreach_add", grouped_grads, grouped_params);
      grouped_grads.drop();  // del grouped_grads
      if (o_.capturable) {
        List num = foreach ("aten::_foreach_sub", rho_t_list);
        foreach ("aten::_foreach_sub", rho_t_list)
          ;  // sub2
        foreach ("aten::_foreach_mul", rho_t_list)
          ;  // denom
        List rect;
        for (std::size_t i = 0; i < num.size(); ++i) {
          Tensor condition = fresh_as("aten::gt", DType::boolean, rho_t_list[i]);
          rect.push_back(where_number(std::move(condition), num[i]));
        }
        num.drop();
        rho_t_list.drop();
        List sizes;
        for (auto& r : rect) sizes.push_back(where_numbers(fresh_as("aten::gt", DType::boolean, r)));
        unrect_step_size = std::move(sizes);
        bias_correction1 = foreach ("aten::_foreach_pow", steps);
        bias_correction2 = foreach ("aten::_foreach_pow", steps);
        rect.drop();
        bias_correction1.drop();
      }
      buffer = foreach ("aten::_foreach_sqrt", list(states, group, &State::exp_avg_sq));
    }
  }

  Options o_;
};

const OptimizerKind radam{
    "radam(float lr=0.001, float[2] betas=[0.9, 0.999], float eps=1e-08, float weight_decay=0, bool decoupled_weight_decay=False, *, bool? "
    "foreach=None, bool maximize=False, bool capturable=False, bool differentiable=False)",
    "exp_avg, exp_avg_sq: 2 × parameter; capturable: step, 4 bytes each",
    [](double lr, const std::vector<double>& betas, double eps, double weight_decay, bool decoupled, std::optional<bool> foreach,
       bool maximize, bool capturable, bool differentiable) -> MakeOptimizer {
      check_argument(lr >= 0, "learning rate", lr);
      check_argument(eps >= 0, "epsilon value", eps);
      check_betas(betas);
      check_argument(weight_decay >= 0, "weight_decay value", weight_decay);
      const Options o{{decoupled ? 0 : weight_decay, maximize, form_of(foreach, std::nullopt, differentiable)}, betas[1], capturable};
      return [o](ParameterGroups groups) { return std::make_unique<RAdam>(std::move(groups), o); };
    }};

}  // namespace
}  // namespace memest::optim
