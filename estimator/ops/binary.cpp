// Functions of two tensors (derivatives.yaml; FunctionsManual.cpp; aten/src/ATen/native/BinaryOps.cpp, Pow.cpp).
#include "ops/copy.h"
#include "ops/expression.h"
#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/pointwise.h"
#include "ops/pointwise_rules.h"

namespace memest {
namespace {

/// Gradients: g, self, other, result.
Tensor pass(T g, T, T, T) { return g; }
Tensor zeros_other(T, T, T, T) { return {}; }

// ---- remainders ----------------------------------------------------------------------------------------------------------
Tensor remainder_other(T g, T a, T b, T) { return -Lazy(g) * Lazy(a).div(b, "floor"); }
constexpr BinaryRule kRemainder{"RemainderBackward1", promote, pass, uses_nothing, remainder_other, uses_self | uses_other};
constexpr BinaryRule kFmod{"FmodBackward1", promote, pass, uses_nothing, remainder_other, uses_self | uses_other};
constexpr BinaryRule kFloorDivide{"NotImplemented", promote, nullptr, uses_nothing, nullptr, uses_nothing};
const Binary<"remainder", ".Tensor", kRemainder> remainder_op{"self, other", kBinarySource};
const WithScalar<"remainder", ".Scalar", kRemainder, "RemainderBackward0"> remainder_number{"", kBinarySource};
const Binary<"fmod", ".Tensor", kFmod> fmod_op{"self, other", kBinarySource};
const WithScalar<"fmod", ".Scalar", kFmod, "FmodBackward0"> fmod_number{"", kBinarySource};
const BinaryOut<"floor_divide", "", kFloorDivide> floor_divide_op{"", kBinarySource};
const Op floor_divide_in_place{
    {"aten::floor_divide_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)", Autocast::none, "", kBinarySource},
    binary_op_<kFloorDivide>};
const WithScalar<"floor_divide", ".Scalar", kFloorDivide, "NotImplemented"> floor_divide_number{"", kBinarySource};
Tensor remainder_of_number(const Scalar& self, T other) { return elementwise({other}, ResultType().add(other).add(self).get()); }
const Op remainder_of_number_op{{"aten::remainder.Scalar_Tensor(Scalar self, Tensor other) -> Tensor", Autocast::none, "", kBinarySource},
                                remainder_of_number};

// ---- maxima: a tie shares the gradient ------------------------------------------------------------------------------------
Lazy shared(T g, T a, T b) { return where(compare("aten::eq", a, b), Lazy(g) / 2, g); }
Tensor masked(T g, T a, T b, T) { return masked_in_place(shared(g, a, b), compare("aten::lt", a, b)); }
constexpr BinaryRule kMaximum{"MaximumBackward0", promote, masked, uses_self | uses_other, masked, uses_self | uses_other};
constexpr BinaryRule kMinimum{"MinimumBackward0", promote, masked, uses_self | uses_other, masked, uses_self | uses_other};
Tensor masked_nan(T g, T a, T b, T) {
  return masked_in_place(shared(g, a, b), compare("aten::ge", a, b).in_place("aten::logical_or_", {Lazy(b).isnan()}));
}
constexpr BinaryRule kFmax{"FmaxBackward0", promote, masked_nan, uses_self | uses_other, masked_nan, uses_self | uses_other};
constexpr BinaryRule kFmin{"FminBackward0", promote, masked_nan, uses_self | uses_other, masked_nan, uses_self | uses_other};
const BinaryOut<"maximum", "", kMaximum> maximum_op{"self, other", kBinarySource};
const BinaryOut<"minimum", "", kMinimum> minimum_op{"self, other", kBinarySource};
const BinaryOut<"fmax", "", kFmax> fmax_op{"self, other", kBinarySource};
const BinaryOut<"fmin", "", kFmin> fmin_op{"self, other", kBinarySource};
const BinaryOut<"max", ".other", kMaximum> max_op{"self, other", kBinarySource};
const BinaryOut<"min", ".other", kMinimum> min_op{"self, other", kBinarySource};

// ---- analysis -------------------------------------------------------------------------------------------------------------
Tensor hypot_self(T g, T a, T, T y) { return Lazy(g) * a / y; }
Tensor hypot_other(T g, T, T b, T y) { return Lazy(g) * b / y; }
constexpr BinaryRule kHypot{"HypotBackward0", promote_float, hypot_self, uses_self | uses_result, hypot_other, uses_other | uses_result};
const Binary<"hypot", "", kHypot> hypot_op{"self, other, result", kBinarySource};

Tensor copysign_self(T g, T a, T, T y) {
  const Tensor ratio = Lazy(y) / a;
  { const Tensor mask = compare("aten::eq", a, 0); }
  return Lazy(g) * ratio;
}
constexpr BinaryRule kCopysign{"CopysignBackward0", promote_float, copysign_self, uses_self | uses_result, zeros_other, is_zeros};
const Binary<"copysign", ".Tensor", kCopysign> copysign_op{"self, result", kBinarySource};
const WithScalar<"copysign", ".Scalar", kCopysign, "CopysignBackward1"> copysign_number{"self, result", kBinarySource};

Tensor logaddexp_self(T g, T a, T b, T) { return g / (1 + (Lazy(b) - a).exp()).conj(); }
Tensor logaddexp_other(T g, T a, T b, T) { return g / (1 + (Lazy(a) - b).exp()).conj(); }
constexpr BinaryRule kLogaddexp{"LogaddexpBackward0",   promote,         logaddexp_self,
                                uses_self | uses_other, logaddexp_other, uses_self | uses_other};
const BinaryOut<"logaddexp", "", kLogaddexp> logaddexp_op{"self, other", kBinarySource};
Tensor logaddexp2_self(T g, T a, T b, T) { return g / (1 + pow(2, Lazy(b) - a)); }
Tensor logaddexp2_other(T g, T a, T b, T) { return g / (1 + pow(2, Lazy(a) - b)); }
constexpr BinaryRule kLogaddexp2{"Logaddexp2Backward0",  promote,          logaddexp2_self,
                                 uses_self | uses_other, logaddexp2_other, uses_self | uses_other};
const BinaryOut<"logaddexp2", "", kLogaddexp2> logaddexp2_op{"self, other", kBinarySource};

Tensor xlogy_self(T g, T a, T b, T) {
  return pointwise("aten::xlogy", g, b).masked_fill(compare("aten::bitwise_and", compare("aten::eq", a, 0), compare("aten::le", b, 0)));
}
Tensor xlogy_other(T g, T a, T b, T) { return Lazy(g) * a / b; }
constexpr BinaryRule kXlogy{"XlogyBackward0", promote_float, xlogy_self, uses_self | uses_other, xlogy_other, uses_self | uses_other};
const Binary<"xlogy", ".Tensor", kXlogy> xlogy_op{"self, other", kBinarySource};
const BinaryOut<"special_xlogy", "", kXlogy> special_xlogy_op{"self, other", kBinarySource};
/// The number decides whether self is looked at: positive ones do not need a mask.
Tensor xlogy_number_gradient(T g, T self, bool positive) {
  if (positive) return ops::unary("aten::xlogy", g);
  return Lazy(g).map("aten::xlogy").masked_fill(compare("aten::eq", self, 0));
}
Tensor xlogy_number(T self, const Scalar& other) {
  auto fn = node("XlogyBackward2", {self}, {self},
                 [positive = other.to_double() > 0](Backward& w, T x) { w.out[0] = xlogy_number_gradient(w.grad[0], x, positive); });
  Tensor y = elementwise({self}, float_result(ResultType().add(self).add(other).get()));
  fn.outputs({y});
  return y;
}
Tensor xlogy_number_(T self, const Scalar& other) {
  Tensor original = original_of(self, self.requires_grad());
  auto fn = node("XlogyBackward2", {self}, {original},
                 [positive = other.to_double() > 0](Backward& w, T x) { w.out[0] = xlogy_number_gradient(w.grad[0], x, positive); });
  original.reset();
  fn.in_place(self);
  return self;
}
Tensor xlogy_of_number(const Scalar& self, T other) {
  auto fn = node("XlogyBackward1", {other}, {other}, [self](Backward& w, T b) { w.out[0] = Lazy(w.grad[0]) * self / b; });
  Tensor y = elementwise({other}, float_result(ResultType().add(other).add(self).get()));
  fn.outputs({y});
  return y;
}
const Op xlogy_number_op{{"aten::xlogy.Scalar_Other(Tensor self, Scalar other) -> Tensor", Autocast::none, "self", kBinarySource},
                         xlogy_number};
const Op xlogy_number_in_place{
    {"aten::xlogy_.Scalar_Other(Tensor(a!) self, Scalar other) -> Tensor(a!)", Autocast::none, "self", kBinarySource}, xlogy_number_};
const Op xlogy_of_number_op{{"aten::xlogy.Scalar_Self(Scalar self, Tensor other) -> Tensor", Autocast::none, "other", kBinarySource},
                            xlogy_of_number};

Tensor nextafter_self(T g, T a, T b, T) { return where(compare("aten::ne", a, b), g, 0); }
constexpr BinaryRule kNextafter{"NextafterBackward0", promote, nextafter_self, uses_self | uses_other, zeros_other, is_zeros};
const Binary<"nextafter", "", kNextafter> nextafter_op{"self, other", kBinarySource};

// FunctionsManual.cpp atan2_backward: both gradients are one expression
template <bool InPlace>
Tensor atan2(T self, T other) {
  const DType type = promote_float(self, other);
  Tensor original;
  if constexpr (InPlace) check_in_place(self, other), original = original_of(self, self.requires_grad() || other.requires_grad());
  auto fn = node("Atan2Backward0", {self, other}, {other, InPlace ? original : self}, [](Backward& w, T b, T a) {
    const Tensor squares = Lazy(a) * a + Lazy(b) * b;
    const Tensor inverse = Lazy(squares).reciprocal();
    { const Tensor mask = compare("aten::eq", squares, 0); }
    Lazy::Temporaries both;
    T g = w.grad[0];
    if (w.needs(0)) w.out[0] = (Lazy(g) * b * inverse).within(both);
    if (w.needs(1)) w.out[1] = (Lazy(g) * -Lazy(a) * inverse).within(both);
  });
  original.reset();
  if constexpr (InPlace) {
    fn.in_place(self);
    return self;
  } else {
    Tensor y = elementwise({self, other}, type);
    fn.outputs({y});
    return y;
  }
}
const Op atan2_op{{"aten::atan2(Tensor self, Tensor other) -> Tensor", Autocast::promote, "self, other", kBinarySource}, atan2<false>};
const Op atan2_in_place{{"aten::atan2_(Tensor(a!) self, Tensor other) -> Tensor(a!)", Autocast::none, "self, other", kBinarySource},
                        atan2<true>};
const Op arctan2_op{{"aten::arctan2(Tensor self, Tensor other) -> Tensor", Autocast::none, "self, other", kBinarySource}, atan2<false>};

// ---- powers ----------------------------------------------------------------------------------------------------------------
Tensor pow_self(T g, T a, T b, T) {
  return real_gradient(where(compare("aten::eq", b, 0), scalar_like(g), g * (b * Lazy(a).pow(Lazy(b) - 1)).conj()), a.dtype());
}
Lazy both(const Lazy& a, const Lazy& b) {
  return {"aten::logical_and", {a, b}, [](auto in) { return elementwise({in[0], in[1]}, DType::boolean); }};
}
/// Where a power of zero is zero; the exponent must be real for it.
Tensor zero_power(T a, T b) {
  if (!is_complex(b.dtype())) return both(compare("aten::eq", a, 0), compare("aten::ge", b, 0));
  const Tensor is_real = both(compare("aten::eq", b, 0), compare("aten::ge", b, 0));
  return both(compare("aten::eq", a, 0), is_real);
}
Tensor pow_exponent(T g, T a, T b, T y) {
  const Tensor condition = zero_power(a, b);
  const Tensor base = ops::to(a, promote(a, b));
  return real_gradient(g * where(condition, scalar_like(g), (y * Lazy(base).log()).conj()), b.dtype());
}
constexpr BinaryRule kPow{"PowBackward1", promote, pow_self, uses_self | uses_other, pow_exponent, uses_self | uses_other | uses_result};
const Op pow_op{
    {"aten::pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor", Autocast::fp32, "self, exponent, result", "native/Pow.cpp"},
    binary_op<kPow>};
const Op pow_in_place{
    {"aten::pow_.Tensor(Tensor(a!) self, Tensor exponent) -> Tensor(a!)", Autocast::none, "self, exponent, result", "native/Pow.cpp"},
    binary_op_<kPow>};

Tensor pow_of_number(const Scalar& self, T exponent) {
  auto fn = node("PowBackward2", {exponent}, {exponent}, [self](Backward& w, T b, T y) {
    T g = w.grad[0];
    if (self.to_double() != 0)
      w.out[0] = g * (Lazy(y) * 0.5).conj();
    else
      w.out[0] = g * where(compare("aten::ge", b, 0), scalar_like(g), (Lazy(y) * 0.5).conj());
  });
  Tensor y = pow(self, detached(exponent));
  fn.outputs({y}, {y});
  return y;
}
const Op pow_of_number_op{
    {"aten::pow.Scalar(Scalar self, Tensor exponent) -> Tensor", Autocast::fp32, "exponent, result", "native/Pow.cpp"}, pow_of_number};

// native/BinaryOps.cpp ldexp: x * 2^other in two kernels; derivatives.yaml ldexp.Tensor
Tensor ldexp_self(T g, T, T b, T) { return g * pow(2.0, b).conj(); }
Tensor ldexp_other(T g, T, T, T y) { return g * Lazy(y).conj() * 0.5; }
/// Half types take the base as a tensor of their own first: autocast casts both.
Tensor power_of_two(T exponent) {
  if (!is_reduced_floating(exponent.dtype())) return pow(2.0, detached(exponent));
  NoGrad off;
  const Tensor base = empty({}, exponent.dtype());
  return pow_op(base, exponent);
}
template <bool InPlace>
Tensor ldexp(T self, T other) {
  const bool wants_self = self.requires_grad(), wants_other = other.requires_grad();
  auto fn = node("LdexpBackward0", {self, other}, {wants_self ? other : Tensor()}, [](Backward& w, T b, T y) {
    if (w.needs(1)) w.out[1] = ldexp_other(w.grad[0], {}, {}, y);
    if (w.needs(0)) w.out[0] = ldexp_self(w.grad[0], {}, b, {});
  });
  const Tensor power = power_of_two(other);
  if constexpr (InPlace) {
    fn.in_place(self, {wants_other ? self : Tensor()});
    return self;
  } else {
    Tensor y = elementwise({self, power}, promote_float(self, power));
    fn.outputs({y}, {wants_other ? y : Tensor()});
    return y;
  }
}
const Op ldexp_op{{"aten::ldexp.Tensor(Tensor self, Tensor other) -> Tensor", Autocast::none, "other, result", kBinarySource},
                  ldexp<false>};
const Op ldexp_in_place{{"aten::ldexp_(Tensor(a!) self, Tensor other) -> Tensor(a!)", Autocast::none, "other, result", kBinarySource},
                        ldexp<true>};

// native/Pow.cpp float_power: both in double
Tensor to_double(T x) { return ops::to(x, is_complex(x.dtype()) ? DType::complex128 : DType::float64); }
Tensor float_power(T self, T exponent) {
  Tensor power = to_double(exponent);
  Tensor base = to_double(self);
  return pow_op(base, power);
}
Tensor float_power_number(T self, const Scalar& exponent) {
  Tensor base = to_double(self);
  return ops::pow_scalar(base, Scalar(exponent.to_double()));
}
Tensor float_power_of_number(const Scalar& self, T exponent) {
  Tensor power = to_double(exponent);
  return pow_of_number_op(Scalar(self.to_double()), power);
}
Tensor float_power_(T self, T exponent) {
  Tensor power = to_double(exponent);
  return pow_in_place(self, power);
}
Tensor float_power_number_(T self, const Scalar& exponent) {
  return std::get<Tensor>(call_op("aten::pow_", {self, exponent.to_double()}, {}));
}
const Op float_power_op{{"aten::float_power.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor", Autocast::none, "", "native/Pow.cpp"},
                        float_power};
const Op float_power_number_op{
    {"aten::float_power.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor", Autocast::none, "", "native/Pow.cpp"}, float_power_number};
const Op float_power_of_number_op{
    {"aten::float_power.Scalar(Scalar self, Tensor exponent) -> Tensor", Autocast::none, "", "native/Pow.cpp"}, float_power_of_number};
const Op float_power_in_place{
    {"aten::float_power_.Tensor(Tensor(a!) self, Tensor exponent) -> Tensor(a!)", Autocast::none, "", "native/Pow.cpp"}, float_power_};
const Op float_power_number_in_place{
    {"aten::float_power_.Scalar(Tensor(a!) self, Scalar exponent) -> Tensor(a!)", Autocast::none, "", "native/Pow.cpp"},
    float_power_number_};

// ---- integers and bits -----------------------------------------------------------------------------------------------------
constexpr BinaryRule kBits{"", promote, nullptr, uses_nothing, nullptr, uses_nothing};
const Binary<"gcd", "", kBits> gcd_op{"", kBinarySource};
const Binary<"lcm", "", kBits> lcm_op{"", kBinarySource};
const Op heaviside_op{{"aten::heaviside(Tensor self, Tensor values) -> Tensor", Autocast::none, "", kBinarySource}, binary_op<kBits>};
const Op heaviside_in_place{{"aten::heaviside_(Tensor(a!) self, Tensor values) -> Tensor(a!)", Autocast::none, "", kBinarySource},
                            binary_op_<kBits>};
const Binary<"bitwise_and", ".Tensor", kBits> bitwise_and_op{"", kBinarySource};
const Binary<"bitwise_or", ".Tensor", kBits> bitwise_or_op{"", kBinarySource};
const Binary<"bitwise_xor", ".Tensor", kBits> bitwise_xor_op{"", kBinarySource};
const Binary<"bitwise_left_shift", ".Tensor", kBits> left_shift_op{"", kBinarySource};
const Binary<"bitwise_right_shift", ".Tensor", kBits> right_shift_op{"", kBinarySource};
const WithScalar<"bitwise_and", ".Scalar", kBits, ""> bitwise_and_number{"", kBinarySource};
const WithScalar<"bitwise_or", ".Scalar", kBits, ""> bitwise_or_number{"", kBinarySource};
const WithScalar<"bitwise_xor", ".Scalar", kBits, ""> bitwise_xor_number{"", kBinarySource};
const WithScalar<"bitwise_left_shift", ".Tensor_Scalar", kBits, ""> left_shift_number{"", kBinarySource};
const WithScalar<"bitwise_right_shift", ".Tensor_Scalar", kBits, ""> right_shift_number{"", kBinarySource};
// Python's operators on tensors
#define MEMEST_OPERATOR(NAME)                                                                                                             \
  const Op operator_##NAME{{"aten::__" #NAME "__.Tensor(Tensor self, Tensor other) -> Tensor", Autocast::none, "", kBinarySource},        \
                           binary_op<kBits>};                                                                                             \
  const Op number_operator_##NAME{{"aten::__" #NAME "__.Scalar(Tensor self, Scalar other) -> Tensor", Autocast::none, "", kBinarySource}, \
                                  scalar_op<kBits, "">};
MEMEST_OPERATOR(and)
MEMEST_OPERATOR(or)
MEMEST_OPERATOR(xor)
MEMEST_OPERATOR(lshift)
MEMEST_OPERATOR(rshift)
#undef MEMEST_OPERATOR
#define MEMEST_OPERATOR(NAME)                                                                                                              \
  const Op operator_##NAME{{"aten::__" #NAME "__.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)", Autocast::none, "", kBinarySource}, \
                           binary_op_<kBits>};
MEMEST_OPERATOR(iand)
MEMEST_OPERATOR(ior)
MEMEST_OPERATOR(ixor)
#undef MEMEST_OPERATOR

}  // namespace
}  // namespace memest
