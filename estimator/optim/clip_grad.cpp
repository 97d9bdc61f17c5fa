#include "optim/clip_grad.h"

#include "ops/views.h"

namespace memest::optim {
namespace {

List gradients(const Tensors& parameters) {
  List out;
  for (auto& p : parameters)
    if (p->grad) out.push_back(p->grad);
  return out;
}

/// _get_total_norm
Tensor total_norm(const List& grads) {
  NoGrad guard;
  List norms, result;
  for (auto& group : by_dtype(grads)) {
    result = foreach_norm(picked(grads, group));
    norms.insert(norms.end(), result.begin(), result.end());
    result.drop();
  }
  Tensor stacked = ops::stack(norms, 0);
  return vector_norm(stacked);
}

}  // namespace

Tensor clip_grad_norm(const Tensors& parameters) {
  const List grads = gradients(parameters);
  if (grads.empty()) return {};
  Tensor norm = total_norm(grads);
  // _clip_grads_with_norm_: clip_coef = max_norm / (total_norm + 1e-6), clamped; then _foreach_mul_ of each group, or mul_ in place
  Tensor clip_coef = number_over(fresh("aten::add", norm));
  Tensor clip_coef_clamped = fresh("aten::clamp", clip_coef);
  return norm;
}

void clip_grad_value(const Tensors&) {}

}  // namespace memest::optim
