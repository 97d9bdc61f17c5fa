// The four rules of arithmetic (aten/src/ATen/native/BinaryOps.cpp; derivatives.yaml; FunctionsManual.cpp mul_tensor_backward,
// div_tensor_*).
#include "ops/pointwise.h"

#include "ops/copy.h"
#include "ops/expression.h"
#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/pointwise_rules.h"

namespace memest {
namespace {

Tensor scaled(T gradient, const Scalar& alpha) {  // maybe_multiply
  return alpha.to_double() == 1 ? gradient : ops::unary("aten::mul", gradient);
}
Tensor of_type(T gradient, DType input) { return real_gradient(gradient, input); }

// ---- add, sub, rsub ------------------------------------------------------------------------------------------------------

auto add_formula(const Scalar& alpha, T self, T other) {
  return [alpha, a = self.dtype(), b = other.dtype()](Backward& w) {
    if (w.needs(1)) w.out[1] = of_type(scaled(w.grad[0], alpha), b);
    if (w.needs(0)) w.out[0] = of_type(w.grad[0], a);
  };
}
Tensor add(T self, T other, const Scalar& alpha) {
  auto fn = node("AddBackward0", {self, other}, {}, add_formula(alpha, self, other));
  Tensor y = elementwise({self, other}, promote(self, other));
  fn.outputs({y});
  return y;
}
Tensor add_(T self, T other, const Scalar& alpha) {
  check_in_place(self, other);
  node("AddBackward0", {self, other}, {}, add_formula(alpha, self, other)).in_place(self);
  return self;
}
auto sub_formula(const Scalar& alpha, T self, T other) {
  return [alpha, a = self.dtype(), b = other.dtype()](Backward& w) {
    if (w.needs(1)) {
      Tensor negative = ops::unary("aten::neg", w.grad[0]);
      w.out[1] = of_type(scaled(negative, alpha), b);
    }
    if (w.needs(0)) w.out[0] = of_type(w.grad[0], a);
  };
}
Tensor sub(T self, T other, const Scalar& alpha) {
  auto fn = node("SubBackward0", {self, other}, {}, sub_formula(alpha, self, other));
  Tensor y = elementwise({self, other}, promote(self, other));
  fn.outputs({y});
  return y;
}
Tensor sub_(T self, T other, const Scalar& alpha) {
  check_in_place(self, other);
  node("SubBackward0", {self, other}, {}, sub_formula(alpha, self, other)).in_place(self);
  return self;
}
Tensor rsub(T self, T other, const Scalar& alpha) {
  auto fn = node("RsubBackward0", {self, other}, {}, [alpha](Backward& w) {
    if (w.needs(1)) w.out[1] = w.grad[0];
    if (w.needs(0)) {
      Tensor negative = ops::unary("aten::neg", w.grad[0]);
      w.out[0] = scaled(negative, alpha);
    }
  });
  Tensor y = elementwise({self, other}, promote(self, other));
  fn.outputs({y});
  return y;
}
template <Text Node, bool Negative>
Tensor with_number(T self, const Scalar& other, const Scalar& alpha) {
  auto fn = node(Node.value, {self}, {}, [alpha](Backward& w) {
    if constexpr (Negative) {
      Tensor negative = ops::unary("aten::neg", w.grad[0]);
      w.out[0] = scaled(negative, alpha);
    } else {
      w.out[0] = w.grad[0];
    }
  });
  Tensor y = elementwise({self}, ResultType().add(self).add(other).get());
  fn.outputs({y});
  return y;
}
template <Text Node>
Tensor with_number_(T self, const Scalar&, const Scalar&) {
  node(Node.value, {self}, {}, [](Backward& w) { w.out[0] = w.grad[0]; }).in_place(self);
  return self;
}

// ---- mul, div ------------------------------------------------------------------------------------------------------------

Tensor times(T gradient, T factor, DType input) {
  if (!is_complex(factor.dtype())) return of_type(ops::binary("aten::mul", gradient, factor), input);
  return of_type(gradient * Lazy(factor).conj(), input);
}
constexpr BinaryRule kMul{"MulBackward0",
                          promote,
                          [](T g, T, T other, T) { return times(g, other, DType::complex128); },
                          uses_other,
                          [](T g, T self, T, T) { return times(g, self, DType::complex128); },
                          uses_self};

/// mul as the hot path: one kernel for each gradient.
Tensor mul(T self, T other) {
  auto fn = node("MulBackward0", {self, other}, {save_if(other, self), save_if(self, other)},
                 [a = self.dtype(), b = other.dtype()](Backward& w, T y, T x) {
                   if (w.needs(1)) w.out[1] = times(w.grad[0], x, b);
                   if (w.needs(0)) w.out[0] = times(w.grad[0], y, a);
                 });
  Tensor y = elementwise({self, other}, promote(self, other));
  fn.outputs({y});
  return y;
}

Tensor over(T gradient, T divisor) { return gradient / Lazy(divisor).conj(); }
constexpr BinaryRule kDiv{"DivBackward0",
                          promote_float,
                          [](T g, T, T other, T) { return over(g, other); },
                          uses_other,
                          [](T g, T self, T other, T) -> Tensor { return -Lazy(g) * ((Lazy(self) / other) / other).conj(); },
                          uses_self | uses_other};
Tensor div(T self, T other) {
  auto fn =
      node("DivBackward0", {self, other}, {other, save_if(self, other)}, [a = self.dtype(), b = other.dtype()](Backward& w, T y, T x) {
        if (w.needs(1)) w.out[1] = of_type(kDiv.other_gradient(w.grad[0], x, y, {}), b);
        if (w.needs(0)) w.out[0] = of_type(over(w.grad[0], y), a);
      });
  Tensor y = elementwise({self, other}, promote_float(self, other));
  fn.outputs({y});
  return y;
}

DType rounded_type(T self, T other, const std::optional<std::string>& rounding_mode) {
  return rounding_mode ? promote(self, other) : promote_float(self, other);
}
/// With a rounding mode both gradients are zeros.
constexpr auto zero_gradients = [](Backward& w, T, T) {
  for (int i : {1, 0})
    if (w.needs(i)) w.out[std::size_t(i)] = empty_like(w.grad[0], w.dtype(i));
};
Tensor div_mode(T self, T other, const std::optional<std::string>& rounding_mode) {
  if (!rounding_mode) return div(self, other);
  auto fn = node("DivBackward2", {self, other}, {other, save_if(self, other)}, zero_gradients);
  Tensor y = elementwise({self, other}, rounded_type(self, other, rounding_mode));
  fn.outputs({y});
  return y;
}
Tensor div_mode_(T self, T other, const std::optional<std::string>& rounding_mode) {
  if (!rounding_mode) return apply_binary_(kDiv, self, other);
  check_in_place(self, other);
  Tensor original = original_of(self, other.requires_grad());
  auto fn = node("DivBackward2", {self, other}, {other, original}, zero_gradients);
  original.reset();
  fn.in_place(self);
  return self;
}
Tensor div_scalar_mode(T self, const Scalar& other, const std::optional<std::string>& mode) {
  return div_mode(self, wrapped_number(other.dtype()), mode);
}
Tensor div_scalar_mode_(T self, const Scalar& other, const std::optional<std::string>& mode) {
  return div_mode_(self, wrapped_number(other.dtype()), mode);
}

// ---- records -------------------------------------------------------------------------------------------------------------

#define MEMEST_ADD_LIKE(NAME, OUT, SCALAR_NODE, NEGATIVE, IN_PLACE)                                                       \
  const Op NAME##_scalar{                                                                                                 \
      {"aten::" #NAME ".Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", Autocast::none, "", kBinarySource}, \
      with_number<SCALAR_NODE, NEGATIVE>};
MEMEST_ADD_LIKE(add, add, "AddBackward1", false, add_)
MEMEST_ADD_LIKE(sub, sub, "SubBackward1", false, sub_)
MEMEST_ADD_LIKE(rsub, rsub, "RsubBackward1", true, rsub_)
MEMEST_ADD_LIKE(subtract, sub, "SubBackward1", false, sub_)
#undef MEMEST_ADD_LIKE
const Op add_scalar_in_place{
    {"aten::add_.Scalar(Tensor(a!) self, Scalar other, Scalar alpha=1) -> Tensor(a!)", Autocast::none, "", kBinarySource},
    with_number_<"AddBackward1">};
const Op sub_scalar_in_place{
    {"aten::sub_.Scalar(Tensor(a!) self, Scalar other, Scalar alpha=1) -> Tensor(a!)", Autocast::none, "", kBinarySource},
    with_number_<"SubBackward1">};
const Op subtract_scalar_in_place{
    {"aten::subtract_.Scalar(Tensor(a!) self, Scalar other, Scalar alpha=1) -> Tensor(a!)", Autocast::none, "", kBinarySource},
    with_number_<"SubBackward1">};
const Op rsub_tensor{{"aten::rsub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", Autocast::none, "", kBinarySource},
                     rsub};
const Op subtract_tensor{
    {"aten::subtract.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", Autocast::none, "", kBinarySource}, memest::sub};
const Op subtract_in_place{
    {"aten::subtract_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)", Autocast::none, "", kBinarySource},
    memest::sub_};

const WithScalar<"mul", ".Scalar", kMul, "MulBackward1"> mul_scalar{"", kBinarySource};
const WithScalar<"div", ".Scalar", kDiv, "DivBackward1"> div_scalar{"", kBinarySource};
const WithScalar<"multiply", ".Scalar", kMul, "MulBackward1"> multiply_scalar{"", kBinarySource};
const WithScalar<"divide", ".Scalar", kDiv, "DivBackward1"> divide_scalar{"", kBinarySource};
const WithScalar<"true_divide", ".Scalar", kDiv, "DivBackward1"> true_divide_scalar{"", kBinarySource};
const Binary<"multiply", ".Tensor", kMul> multiply{"self, other", kBinarySource};
const Binary<"divide", ".Tensor", kDiv> divide{"self, other", kBinarySource};
const Binary<"true_divide", ".Tensor", kDiv> true_divide{"self, other", kBinarySource};

#define MEMEST_DIV_MODE(NAME)                                                                                                         \
  const Op NAME##_mode_op{                                                                                                            \
      {"aten::" #NAME ".Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor", Autocast::none, "", kBinarySource}, \
      div_mode};                                                                                                                      \
  const Op NAME##_scalar_mode_op{                                                                                                     \
      {"aten::" #NAME ".Scalar_mode(Tensor self, Scalar other, *, str? rounding_mode) -> Tensor", Autocast::none, "", kBinarySource}, \
      div_scalar_mode};
MEMEST_DIV_MODE(div)
MEMEST_DIV_MODE(divide)
#undef MEMEST_DIV_MODE
const Op div_mode_in_place{
    {"aten::div_.Tensor_mode(Tensor(a!) self, Tensor other, *, str? rounding_mode) -> Tensor(a!)", Autocast::none, "", kBinarySource},
    div_mode_};
const Op div_scalar_mode_in_place{
    {"aten::div_.Scalar_mode(Tensor(a!) self, Scalar other, *, str? rounding_mode) -> Tensor(a!)", Autocast::none, "", kBinarySource},
    div_scalar_mode_};

}  // namespace

namespace ops {
const Op<Tensor(T, T, const Scalar&)> add{
    {"aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", Autocast::none, "", kBinarySource}, memest::add};
const Op<Tensor(T, T, const Scalar&)> sub{
    {"aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", Autocast::none, "", kBinarySource}, memest::sub};
const Op<Tensor(T, T)> mul{{"aten::mul.Tensor(Tensor self, Tensor other) -> Tensor", Autocast::none, "self, other", kBinarySource},
                           memest::mul};
const Op<Tensor(T, T)> div{{"aten::div.Tensor(Tensor self, Tensor other) -> Tensor", Autocast::none, "self, other", kBinarySource},
                           memest::div};
const Op<Tensor(T, T, const Scalar&)> add_{
    {"aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)", Autocast::none, "", kBinarySource}, memest::add_};
const Op<Tensor(T, T, const Scalar&)> sub_{
    {"aten::sub_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)", Autocast::none, "", kBinarySource}, memest::sub_};
const Op<Tensor(T, T)> mul_{
    {"aten::mul_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)", Autocast::none, "self, other", kBinarySource}, binary_op_<kMul>};
const Op<Tensor(T, T)> div_{
    {"aten::div_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)", Autocast::none, "self, other", kBinarySource}, binary_op_<kDiv>};

Tensor mul_scalar(T x, const Scalar& number) { return mul(x, wrapped_number(number.dtype())); }
Tensor add_scalar(T x, const Scalar& number) { return add(x, wrapped_number(number.dtype()), 1); }
Tensor div_scalar(T x, const Scalar& number) { return div(x, wrapped_number(number.dtype())); }
Tensor binary(const char* op, T a, T b) { return binary(op, a, b, result_type({a, b})); }
Tensor binary(const char* op, T a, T b, DType dtype) {
  Scoped<const char*> scope(runtime().op, op);
  return elementwise({a, b}, dtype);
}
Tensor unary(const char* op, T x) {
  Scoped<const char*> scope(runtime().op, op);
  return elementwise({x}, x.dtype());
}
}  // namespace ops
}  // namespace memest
