// torch/optim/sgd.py of 2.15.
#include "ops/ops.h"
#include "optim/optimizer.h"

namespace memest::optim {
namespace {

struct Options {
  double momentum, dampening, weight_decay;
  bool nesterov, maximize;
  Form form;
};

class SGD final : public Optimizer {
 public:
  SGD(Tensors parameters, Options o) : Optimizer(std::move(parameters)), o_(o), buffers_(parameters_.size()) {}
  bool unscales_itself() const override { return o_.form == Form::fused; }
  void step() override {
    if (o_.form == Form::for_loop)
      single();
    else if (o_.form == Form::foreach)
      multi();
    else
      fused();
  }

 private:
  Tensor clone_state(T gradient) {
    CategoryScope category(Category::optimizer_state);
    Tensor buffer = ops::clone(gradient, std::nullopt);
    count_state(buffer);
    return buffer;
  }
  void single() {
    Tensor grad, next;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      T p = parameters_[i];
      if (!p->grad) continue;
      grad = o_.maximize ? ops::neg(p->grad) : p->grad;
      if (o_.weight_decay != 0) grad = ops::add(grad, p, o_.weight_decay);
      if (o_.momentum != 0) {
        if (!buffers_[i]) buffers_[i] = clone_state(grad);
        grad = o_.nesterov ? ops::add(grad, buffers_[i], o_.momentum) : buffers_[i];
      }
    }
  }
  void multi() {
    for (auto& group : groups()) {
      Tensors params = picked(parameters_, group), grads = gradients_of(params);
      bool own = false;
      if (o_.maximize) grads = foreach_new("aten::_foreach_neg", grads), own = true;
      if (o_.weight_decay != 0 && !own) grads = foreach_new("aten::_foreach_add", grads);
      if (o_.momentum != 0)
        for (std::size_t k = 0; k < group.size(); ++k)
          if (!buffers_[group[k]]) buffers_[group[k]] = clone_state(grads[k]);
      // nesterov adds the buffers to the gradients in place
    }
  }
  void fused() {
    for (auto& group : groups())
      for (std::size_t i : group)
        if (o_.momentum != 0 && !buffers_[i]) buffers_[i] = new_state(parameters_[i]->grad);
  }
  std::vector<std::vector<std::size_t>> groups() const {
    std::vector<std::vector<std::size_t>> out;
    for (auto& group : by_dtype(parameters_)) {
      std::vector<std::size_t> with;
      for (std::size_t i : group)
        if (parameters_[i]->grad) with.push_back(i);
      if (!with.empty()) out.push_back(std::move(with));
    }
    return out;
  }

  Options o_;
  Tensors buffers_;
};

const OptimizerKind sgd{
    "sgd(float lr=0.001, float momentum=0, float dampening=0, float weight_decay=0, bool nesterov=False, bool maximize=False, bool? "
    "foreach=None, "
    "bool differentiable=False, bool? fused=None)",
    "momentum: 1 × parameter",
    [](double, double momentum, double dampening, double weight_decay, bool nesterov, bool maximize, std::optional<bool> foreach, bool,
       std::optional<bool> fused) -> MakeOptimizer {
      if (nesterov && (momentum <= 0 || dampening != 0)) throw Error("Nesterov momentum requires a momentum and zero dampening");
      const Options o{momentum, dampening, weight_decay, nesterov, maximize, form_of(foreach, fused)};
      return [o](Tensors parameters) { return std::make_unique<SGD>(std::move(parameters), o); };
    }};

}  // namespace
}  // namespace memest::optim
