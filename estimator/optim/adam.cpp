// torch/optim/adam.py and adamw.py of 2.15.
#include "ops/ops.h"
#include "optim/optimizer.h"

namespace memest::optim {
namespace {

struct Options {
  double weight_decay;
  bool decoupled, amsgrad, maximize, capturable;
  Form form;
};

class Adam final : public Optimizer {
 public:
  Adam(Tensors parameters, Options o) : Optimizer(std::move(parameters)), o_(o), states_(parameters_.size()) {}
  bool unscales_itself() const override { return o_.form == Form::fused; }
  void step() override {
    std::vector<std::size_t> with;
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (parameters_[i]->grad) {
        init(i);
        with.push_back(i);
      }
    if (with.empty()) return;
    if (o_.form == Form::for_loop) return single(with);
    Tensors params = picked(parameters_, with);
    for (auto& group : by_dtype(params)) {
      for (auto& k : group) k = with[k];
      if (o_.form == Form::foreach) multi(group);
    }
    // fused: one kernel in place
  }

 private:
  struct State {
    Tensor step, average, square, greatest;
  };
  void init(std::size_t i) {
    State& s = states_[i];
    if (s.average) return;
    T p = parameters_[i];
    if (o_.capturable || o_.form == Form::fused)
      s.step = new_state(Dims{}, DType::float32);
    else
      s.step = host_tensor({}, DType::float32);
    s.average = new_state(p);
    s.square = new_state(p);
    if (o_.amsgrad) s.greatest = new_state(p);
  }
  void single(const std::vector<std::size_t>& with) {
    Tensor grad, denominator;
    for (std::size_t i : with) {
      T p = parameters_[i];
      State& s = states_[i];
      grad = o_.maximize ? ops::neg(p->grad) : p->grad;
      if (o_.weight_decay != 0 && !o_.decoupled) grad = ops::add(grad, p, o_.weight_decay);
      // denom = (exp_avg_sq.sqrt() / bias_correction2_sqrt).add_(eps)
      Tensor root = ops::sqrt(o_.amsgrad ? s.greatest : s.square);
      denominator = ops::div_scalar(root, 1.0);
    }
  }
  void multi(const std::vector<std::size_t>& group) {
    Tensors params = picked(parameters_, group), grads = gradients_of(params), squares;
    for (std::size_t i : group) squares.push_back(o_.amsgrad ? states_[i].greatest : states_[i].square);
    if (o_.maximize) grads = foreach_new("aten::_foreach_neg", grads);
    if (o_.weight_decay != 0 && !o_.decoupled && !o_.maximize) grads = foreach_new("aten::_foreach_add", grads);
    grads.clear();  // del device_grads
    Tensors roots = foreach_new("aten::_foreach_sqrt", squares);
  }

  Options o_;
  std::vector<State> states_;
};

MakeOptimizer make(double weight_decay, bool decoupled, bool amsgrad, bool maximize, bool capturable, std::optional<bool> foreach,
                   std::optional<bool> fused) {
  const Options o{weight_decay, decoupled, amsgrad, maximize, capturable, form_of(foreach, fused)};
  return [o](Tensors parameters) { return std::make_unique<Adam>(std::move(parameters), o); };
}

const OptimizerKind adam{
    "adam(float lr=0.001, float[2] betas=[0.9, 0.999], float eps=1e-08, float weight_decay=0, bool amsgrad=False, *, bool? foreach=None, "
    "bool "
    "maximize=False, bool capturable=False, bool differentiable=False, bool? fused=None, bool decoupled_weight_decay=False)",
    "exp_avg, exp_avg_sq: 2 × parameter; amsgrad: 3 ×",
    [](double, const std::vector<double>&, double, double weight_decay, bool amsgrad, std::optional<bool> foreach, bool maximize,
       bool capturable, bool, std::optional<bool> fused,
       bool decoupled) { return make(weight_decay, decoupled, amsgrad, maximize, capturable, foreach, fused); }};
const OptimizerKind adamw{
    "adamw(float lr=0.001, float[2] betas=[0.9, 0.999], float eps=1e-08, float weight_decay=0.01, bool amsgrad=False, *, bool "
    "maximize=False, bool? "
    "foreach=None, bool capturable=False, bool differentiable=False, bool? fused=None)",
    "exp_avg, exp_avg_sq: 2 × parameter; amsgrad: 3 ×",
    [](double, const std::vector<double>&, double, double weight_decay, bool amsgrad, bool maximize, std::optional<bool> foreach,
       bool capturable, bool,
       std::optional<bool> fused) { return make(weight_decay, true, amsgrad, maximize, capturable, foreach, fused); }};

}  // namespace
}  // namespace memest::optim
