#include "ops/pointwise_rules.h"

#include "ops/copy.h"
#include "ops/iterator.h"

namespace memest {

Tensor apply_unary(const char* name, Keeps kept, UnaryGradient gradient, ResultRule result, T self) {
  if (!gradient) return elementwise({self}, result(self.dtype()));
  const Tensor saved = kept == Keeps::input ? self : Tensor();
  auto fn = node(name, std::span(&self, 1), kept == Keeps::result ? std::span<const Tensor>() : std::span(&saved, 1),
                 [gradient](Backward& w, T x) { w.out[0] = gradient(w.grad[0], x); });
  Tensor y = elementwise({self}, result(self.dtype()));
  fn.outputs(std::span(&y, 1), kept == Keeps::result ? std::span(&y, 1) : std::span<const Tensor>());
  return y;
}

Tensor apply_unary_(const char* name, Keeps kept, UnaryGradient gradient, T self) {
  if (!gradient) {
    ++self->storage->version;
    return self;
  }
  Tensor original = original_of(self, kept == Keeps::input && self.requires_grad());
  auto fn = node(name, std::span(&self, 1), kept == Keeps::result ? std::span<const Tensor>() : std::span(&original, 1),
                 [gradient](Backward& w, T x) { w.out[0] = gradient(w.grad[0], x); });
  original.reset();
  if (kept == Keeps::result)
    fn.in_place(self, {self});
  else
    fn.in_place(self);
  return self;
}

DType promote(T self, T other) { return result_type({self, other}); }
DType promote_float(T self, T other) { return float_result(result_type({self, other})); }
DType promote_bool(T, T) { return DType::boolean; }

void check_in_place(T self, T other) {
  if (!(broadcast(self.sizes(), other.sizes()) == self.sizes()))
    throw Error("output with shape " + to_string(self.sizes()) + " doesn't match the broadcast shape " +
                to_string(broadcast(self.sizes(), other.sizes())));
}

Tensor original_of(T self, bool needed) { return needed && runtime().grad_mode ? ops::clone(detached(self), std::nullopt) : Tensor(); }

namespace {

bool keeps(const BinaryRule& rule, Uses what, bool self_grad, bool other_grad) {
  return (rule.self_gradient && self_grad && (rule.self_uses & what)) || (rule.other_gradient && other_grad && (rule.other_uses & what));
}

/// Saved: other, self, result (derivatives.yaml's formulas save by name), each where a gradient that is wanted looks at it.
auto binary_formula(const BinaryRule& rule) {
  return [&rule](Backward& w, T other, T self, T result) {
    if (w.needs(1) && rule.other_gradient)
      w.out[1] = rule.other_uses & is_zeros ? empty(w.sizes(1), w.dtype(1)) : rule.other_gradient(w.grad[0], self, other, result);
    if (w.needs(0) && rule.self_gradient) w.out[0] = rule.self_gradient(w.grad[0], self, other, result);
  };
}
bool differentiable(const BinaryRule& rule) { return rule.self_gradient || rule.other_gradient; }

}  // namespace

Tensor apply_binary(const BinaryRule& rule, T self, T other) {
  const DType type = rule.type(self, other);
  if (!differentiable(rule)) return elementwise({self, other}, type);
  const bool self_grad = self.requires_grad(), other_grad = other.requires_grad();
  auto fn = node(
      rule.node, {self, other},
      {keeps(rule, uses_other, self_grad, other_grad) ? other : Tensor(), keeps(rule, uses_self, self_grad, other_grad) ? self : Tensor()},
      binary_formula(rule));
  Tensor y = elementwise({self, other}, type);
  fn.outputs({y}, {keeps(rule, uses_result, self_grad, other_grad) ? y : Tensor()});
  return y;
}

Tensor apply_binary_(const BinaryRule& rule, T self, T other) {
  check_in_place(self, other);
  if (!differentiable(rule)) {
    ++self->storage->version;
    return self;
  }
  const bool self_grad = self.requires_grad(), other_grad = other.requires_grad();
  Tensor original = original_of(self, keeps(rule, uses_self, self_grad, other_grad));
  auto fn =
      node(rule.node, {self, other}, {keeps(rule, uses_other, self_grad, other_grad) ? other : Tensor(), original}, binary_formula(rule));
  original.reset();
  fn.in_place(self, {keeps(rule, uses_result, self_grad, other_grad) ? self : Tensor()});
  return self;
}

Tensor apply_scalar(const BinaryRule& rule, const char* name, T self, const Scalar& number) {
  const Tensor other = wrapped_number(number.dtype());
  const DType type = rule.type(self, other);
  if (!rule.self_gradient) return elementwise({self}, type);
  auto fn = node(name, {self}, {rule.self_uses & uses_self ? self : Tensor(), other},
                 [&rule](Backward& w, T x, T wrapped, T result) { w.out[0] = rule.self_gradient(w.grad[0], x, wrapped, result); });
  Tensor y = elementwise({self}, type);
  fn.outputs({y}, {rule.self_uses & uses_result ? y : Tensor()});
  return y;
}
Tensor apply_scalar_(const BinaryRule& rule, const char* name, T self, const Scalar& number) {
  if (!rule.self_gradient) {
    ++self->storage->version;
    return self;
  }
  Tensor original = original_of(self, (rule.self_uses & uses_self) && self.requires_grad());
  auto fn = node(name, {self}, {original, wrapped_number(number.dtype())},
                 [&rule](Backward& w, T x, T wrapped, T result) { w.out[0] = rule.self_gradient(w.grad[0], x, wrapped, result); });
  original.reset();
  fn.in_place(self, {rule.self_uses & uses_result ? self : Tensor()});
  return self;
}

}  // namespace memest
