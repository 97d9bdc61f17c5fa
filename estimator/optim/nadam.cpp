// torch/optim/nadam.py of 2.15.
#include "optim/two_forms.h"

namespace memest::optim {
namespace {

struct Options : FormOptions {
  bool capturable;
};
struct State {
  Tensor step, mu_product, exp_avg, exp_avg_sq;
};

class NAdam final : public TwoFormOptimizer<State> {
 public:
  NAdam(ParameterGroups groups, Options o) : TwoFormOptimizer(std::move(groups), o), o_(o) {}

 private:
  void init(T p, State& s) override {
    if (s.step) return;
    s.step = new_counter(o_.capturable);
    s.mu_product = new_counter(o_.capturable);
    s.exp_avg = new_state(p);
    s.exp_avg_sq = new_state(p);
  }

  void single(const List& params, const std::vector<State*>& states, double decay) override {
    Tensor grad, exp_avg, bias_correction2, mu, mu_next, denom, mu_product_next;
    for (std::size_t i = 0; i < params.size(); ++i) {
      T param = params[i];
      const State& s = *states[i];
      grad = o_.maximize ? fresh("aten::neg", param->grad) : param->grad;
      exp_avg = s.exp_avg;
      if (o_.capturable) bias_correction2 = one_minus_power(s.step);
      if (decay != 0) grad = fresh("aten::add", grad, param);
      if (o_.capturable) {
        // mu = beta1 * (1.0 - 0.5 * (0.96 ** (step * momentum_decay)))
        auto coefficient = [](Tensor exponent) {
          return fresh("aten::mul", fresh("aten::rsub", fresh("aten::mul", fresh("aten::pow", std::move(exponent)))));
        };
        mu = coefficient(fresh("aten::mul", s.step));
        mu_next = coefficient(fresh("aten::mul", fresh("aten::add", s.step)));
      }
      denom = fresh("aten::sqrt", fresh("aten::div", s.exp_avg_sq, bias_correction2));
      if (!o_.capturable) continue;
      denom = fresh("aten::add", denom);
      mu_product_next = fresh("aten::mul", s.mu_product, mu_next);
      // grad = grad * (-lr * (1.0 - mu) / (1.0 - mu_product))
      Tensor numerator = fresh("aten::mul", fresh("aten::rsub", mu));
      grad = fresh("aten::mul", grad, fresh("aten::div", std::move(numerator), fresh("aten::rsub", s.mu_product)));
      // exp_avg = exp_avg * (-lr * mu_next / (1.0 - mu_product_next))
      numerator = fresh("aten::mul", mu_next);
      exp_avg = fresh("aten::mul", exp_avg, fresh("aten::div", std::move(numerator), fresh("aten::rsub", mu_product_next)));
    }
  }

  void multi(const List& params, const std::vector<State*>& states, double decay) override {
    List grouped_grads, exp_avg_sq_sqrt, mus, mu_nexts, numerator;
    for (auto& group : by_dtype(params)) {
      const List grouped_params = picked(params, group);
      bind_gradients(grouped_grads, grouped_params, decay);
      exp_avg_sq_sqrt = foreach ("aten::_foreach_sqrt", list(states, group, &State::exp_avg_sq));
      if (!o_.capturable) continue;
      const List steps = list(states, group, &State::step), mu_products = list(states, group, &State::mu_product);
      {
        const List exponent = foreach ("aten::_foreach_mul", steps);
        mus = foreach ("aten::_foreach_pow", exponent);
        mu_nexts = foreach ("aten::_foreach_pow", exponent);
      }  // del exponent
      foreach ("aten::_foreach_pow", steps)
        ;  // bias_correction_sqrt, deleted after its use
      foreach ("aten::_foreach_sub", mu_products)
        ;
      foreach ("aten::_foreach_mul", mu_products, mu_nexts)
        ;
      numerator = foreach ("aten::_foreach_mul", mus, grouped_grads);
    }
  }

  Options o_;
};

const OptimizerKind nadam{
    "nadam(float lr=0.002, float[2] betas=[0.9, 0.999], float eps=1e-08, float weight_decay=0, float momentum_decay=0.004, bool "
    "decoupled_weight_decay=False, *, bool? foreach=None, bool maximize=False, bool capturable=False, bool differentiable=False)",
    "exp_avg, exp_avg_sq: 2 × parameter; capturable: step, mu_product, 4 bytes each",
    [](double lr, const std::vector<double>& betas, double eps, double weight_decay, double momentum_decay, bool decoupled,
       std::optional<bool> foreach, bool maximize, bool capturable, bool differentiable) -> MakeOptimizer {
      check_argument(lr >= 0, "learning rate", lr);
      check_argument(eps >= 0, "epsilon value", eps);
      check_betas(betas);
      check_argument(weight_decay >= 0, "weight_decay value", weight_decay);
      check_argument(momentum_decay >= 0, "momentum_decay value", momentum_decay);
      const Options o{{decoupled ? 0 : weight_decay, maximize, form_of(foreach, std::nullopt, differentiable)}, capturable};
      return [o](ParameterGroups groups) { return std::make_unique<NAdam>(std::move(groups), o); };
    }};

}  // namespace
}  // namespace memest::optim
