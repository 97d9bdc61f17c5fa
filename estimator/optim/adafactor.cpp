// torch/optim/_adafactor.py of 2.15. The for-loop is its default.
#include "ops/copy.h"
#include "ops/matmul.h"
#include "optim/optimizer.h"

namespace memest::optim {
namespace {

struct Options {
  double weight_decay;
  bool maximize, foreach;
};
struct State {
  Tensor step, row_var, col_var, variance;
};

class Adafactor final : public StatefulOptimizer<State> {
 public:
  Adafactor(ParameterGroups groups, Options o) : StatefulOptimizer(std::move(groups)), o_(o) {
    if (!runtime().settings.torch.has_adafactor()) throw Error("--optimizer: torch.optim has no Adafactor before PyTorch 2.5");
  }

 private:
  void init(T p, State& s) override {
    if (s.step) return;
    s.step = new_counter(false);
    if (p.dim() > 1) {
      Dims row = p.sizes(), column = p.sizes();
      row[-1] = 1;
      column[-2] = 1;
      s.row_var = new_state(row, p.dtype());
      s.col_var = new_state(column, p.dtype());
    } else {
      s.variance = new_state(p);
    }
  }

  void step(const ParameterGroup& g) override {
    std::vector<State*> states;
    const List params = init_group(g, states);
    if (params.empty()) return;
    if (o_.foreach)
      multi(params, states);
    else
      single(params, states);
  }

  void single(const List& params, const std::vector<State*>& states) {
    Tensor update, grad_squared, var_estimate, col_mean, row_mean, grad;  // go from the last, as the locals of the Python frame do
    for (std::size_t i = 0; i < params.size(); ++i) {
      const State& s = *states[i];
      grad = o_.maximize ? fresh("aten::neg", params[i]->grad) : params[i]->grad;
      read_norm(params[i]);
      if (grad.dim() > 1) {
        row_mean = vector_norm(grad, Dims{-1}, true);
        col_mean = vector_norm(grad, Dims{-2}, true);
        var_estimate = ops::matmul(s.row_var, s.col_var);
        mean_over(s.row_var, {-2}, true);  // an argument of div_
      } else {
        grad_squared = fresh("aten::mul", grad, grad);
        var_estimate = ops::clone(s.variance, std::nullopt);
      }
      update = var_estimate;
      read_norm(update);
    }
  }

  void multi(const List& params, const std::vector<State*>& states) {
    // _group_tensors_by_device_dtype_and_is_multidim: each type's matrices and vectors, the kind met first in front
    std::vector<std::vector<std::size_t>> groups;
    for (auto& of_type : by_dtype(params)) {
      std::vector<std::size_t> kinds[2];
      for (std::size_t i : of_type) kinds[params[i].dim() > 1].push_back(i);
      const int first = params[of_type[0]].dim() > 1;
      groups.push_back(std::move(kinds[first]));
      if (!kinds[!first].empty()) groups.push_back(std::move(kinds[!first]));
    }
    List device_grads, var_estimates, updates;
    for (auto& group : groups) {
      const List device_params = picked(params, group);
      device_grads = gradients_of(device_params);
      if (o_.maximize) device_grads = foreach ("aten::_foreach_neg", device_grads);
      for (auto& p : device_params) read_norm(p);
      auto each = [&](auto make) {
        List out;
        for (std::size_t k = 0; k < group.size(); ++k) out.push_back(make(k));
        return out;
      };
      if (device_params[0].dim() > 1) {
        each([&](std::size_t k) { return vector_norm(device_grads[k], Dims{-1}, true); });
        each([&](std::size_t k) { return vector_norm(device_grads[k], Dims{-2}, true); });
        var_estimates = each([&](std::size_t k) { return ops::matmul(states[group[k]]->row_var, states[group[k]]->col_var); });
        each([&](std::size_t k) { return mean_over(states[group[k]]->row_var, {-2}, true); });
      } else {
        foreach ("aten::_foreach_mul", device_grads, device_grads)
          ;
        var_estimates = each([&](std::size_t k) { return ops::clone(states[group[k]]->variance, std::nullopt); });
      }
      updates = var_estimates;
      for (auto& u : updates) read_norm(u);
    }
  }

  Options o_;
};

const OptimizerKind adafactor{
    "adafactor(float lr=0.01, float beta2_decay=-0.8, Any eps=None, float d=1.0, float weight_decay=0.0, *, bool? foreach=None, bool "
    "maximize=False)",
    "matrices: one value for each row and column; vectors: variance, 1 × parameter",
    [](double lr, double beta2_decay, const Value&, double d, double weight_decay, std::optional<bool> foreach,
       bool maximize) -> MakeOptimizer {
      check_argument(lr >= 0, "learning rate", lr);
      check_argument(beta2_decay <= 0, "beta2_decay", beta2_decay);
      check_argument(d >= 1, "clipping threshold d", d);
      check_argument(weight_decay >= 0, "weight_decay", weight_decay);
      const Options o{weight_decay, maximize, foreach.value_or(false)};
      return [o](ParameterGroups groups) { return std::make_unique<Adafactor>(std::move(groups), o); };
    }};

}  // namespace
}  // namespace memest::optim
