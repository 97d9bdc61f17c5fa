// The step that most of torch.optim shares: _init_group, then a for-loop over the parameters or a foreach over their lists.
#pragma once
#include <utility>
#include <vector>

#include "optim/optimizer.h"

namespace memest::optim {

struct FormOptions {
  double weight_decay;  ///< coupled: added to the gradient; 0 where it is decoupled
  bool maximize;
  Form form;
};

template <class State>
class TwoFormOptimizer : public StatefulOptimizer<State> {
 public:
  TwoFormOptimizer(ParameterGroups groups, FormOptions forms) : StatefulOptimizer<State>(std::move(groups)), forms_(forms) {}

 protected:
  /// _single_tensor_* and _multi_tensor_*; `decay` is the group's weight decay.
  virtual void single(const List& params, const std::vector<State*>& states, double decay) = 0;
  virtual void multi(const List& params, const std::vector<State*>& states, double decay) = 0;

  void step(const ParameterGroup& g) override {
    std::vector<State*> states;
    const List params = this->init_group(g, states);
    if (params.empty()) return;
    const double decay = g.decays ? forms_.weight_decay : 0;
    if (forms_.form == Form::for_loop) single(params, states, decay);
    if (forms_.form == Form::foreach) multi(params, states, decay);  // fused: one kernel in place
  }
  /// grad = param.grad; grad = -grad with maximize; grad = grad.add(param, alpha=weight_decay).
  void bind_gradient(Tensor& grad, T param, double decay) const {
    grad = param->grad;
    if (forms_.maximize) grad = fresh("aten::neg", grad);
    if (decay != 0) grad = fresh("aten::add", grad, param);
  }
  /// The same of lists, where the negated gradients are a copy that is added to in place.
  void bind_gradients(List& grads, const List& params, double decay) const {
    grads = gradients_of(params);
    if (forms_.maximize) grads = foreach ("aten::_foreach_neg", grads);
    if (decay != 0 && !forms_.maximize) grads = foreach ("aten::_foreach_add", grads, params);
  }
  const FormOptions& forms() const { return forms_; }

 private:
  FormOptions forms_;
};

}  // namespace memest::optim
