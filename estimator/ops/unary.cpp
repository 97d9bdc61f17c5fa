// Functions of one tensor (derivatives.yaml; aten/src/ATen/native/UnaryOps.cpp; FunctionsManual.cpp).
#include "ops/expression.h"
#include "ops/iterator.h"
#include "ops/pointwise.h"
#include "ops/pointwise_rules.h"
#include "ops/reductions.h"
#include "ops/views.h"

namespace memest {
namespace {

/// Gradients as derivatives.yaml has them; x is the input or the result, whichever is kept. Constants do not matter.
namespace gradient {
Tensor abs(T g, T x) { return real_gradient(g * Lazy(x).sgn(), x.dtype()); }
Tensor acos(T g, T x) { return g * -((-Lazy(x) * x + 1).rsqrt()).conj(); }
Tensor acosh(T g, T x) {
  return is_complex(x.dtype()) ? g * ((Lazy(x) + 1).rsqrt() * (Lazy(x) - 1).rsqrt()).conj() : g * (Lazy(x) * x - 1).rsqrt();
}
Tensor asin(T g, T x) { return g * (-Lazy(x) * x + 1).rsqrt().conj(); }
Tensor asinh(T g, T x) { return g * (Lazy(x).pow(2) + 1).rsqrt().conj(); }
Tensor atan(T g, T x) { return g / (Lazy(x) * x + 1).conj(); }
Tensor atanh(T g, T x) { return Lazy(g) * 1 / (1 - Lazy(x).pow(2)).conj(); }
Tensor zeros(T g, T) { return empty_like(g); }
Tensor cos(T g, T x) { return g * -Lazy(x).sin().conj(); }
Tensor cosh(T g, T x) { return g * Lazy(x).map("aten::sinh").conj(); }
Tensor scaled(T g, T) { return Lazy(g) * 0.5; }
Tensor digamma(T g, T x) { return g * Lazy(x).map("aten::polygamma"); }
Tensor erf(T g, T x) { return 0.5 * (-(Lazy(x).pow(2))).exp() * g; }
Tensor erfinv(T g, T x) { return 0.5 * Lazy(x).map("aten::erfinv").pow(2).exp() * g; }
Tensor exp(T g, T y) { return g * Lazy(y).conj(); }
Tensor exp2(T g, T y) { return g * Lazy(y).conj() * 0.5; }
Tensor expm1(T g, T y) { return g * (Lazy(y).conj() + 1); }
Tensor same(T g, T) { return g; }
Tensor i0(T g, T x) { return g * Lazy(x).map("aten::special_i1"); }
Tensor lgamma(T g, T x) { return g * Lazy(x).map("aten::digamma"); }
Tensor log(T g, T x) { return Lazy(g).div(Lazy(x).conj()); }
Tensor log_base(T g, T x) { return g / (Lazy(x).conj() * 0.5); }
Tensor log1p(T g, T x) { return g / (Lazy(x) + 1).conj(); }
Tensor neg(T g, T) { return ops::unary("aten::neg", g); }
Tensor isfinite(T x) { return compare("aten::eq", x, x) * compare("aten::ne", Lazy(x).abs(), 0); }
Tensor nan_to_num(T g, T x) {
  return g * Lazy("aten::isfinite", {x}, [](auto in) { return isfinite(in[0]); });
}
Tensor reciprocal(T g, T y) { return -Lazy(g) * (Lazy(y) * y).conj(); }
Tensor rsqrt(T g, T y) { return -0.5 * Lazy(g) * Lazy(y).pow(3).conj(); }
/// sgn_backward: of real numbers a tensor of zeros without memory (_efficientzerotensor).
Tensor sgn_backward(T x, T g, T y) {
  if (!is_complex(x.dtype())) return share(empty({0}, g.dtype()), g.sizes(), contiguous_strides(g.sizes()), 0);
  const Tensor magnitude = Lazy(x).abs();
  return ((Lazy(g) - Lazy(y) * y * Lazy(g).conj()) / (2.0 * Lazy(magnitude))).masked_fill(compare("aten::eq", magnitude, 0));
}
template <bool InPlace>
Tensor sgn(T self) {
  Tensor original = InPlace ? original_of(self, self.requires_grad()) : Tensor();
  auto fn =
      node("SgnBackward0", {self}, {InPlace ? original : self}, [](Backward& w, T x, T y) { w.out[0] = sgn_backward(x, w.grad[0], y); });
  original.reset();
  if constexpr (InPlace) {
    fn.in_place(self, {self});
    return self;
  } else {
    Tensor y = elementwise({self}, self.dtype());
    fn.outputs({y}, {y});
    return y;
  }
}
template <Text Kernel>
Tensor fused(T g, T kept) {
  return ops::binary(Kernel.value, g, kept);
}
Tensor sin(T g, T x) { return g * Lazy(x).cos().conj(); }
Tensor sinc(T g, T x) {
  const Tensor pi = Lazy(x) * 3.14;
  const Tensor squared = Lazy(x) * x * 3.14;
  const Tensor out = g * ((pi * Lazy(pi).cos() - Lazy(pi).sin()) / squared).conj();
  return where(compare("aten::eq", squared, 0), scalar_like(g), out);
}
Tensor sinh(T g, T x) { return g * Lazy(x).map("aten::cosh").conj(); }
Tensor sqrt(T g, T y) { return g / (2 * Lazy(y).conj()); }
Tensor square(T g, T x) { return g * (2.0 * Lazy(x).pow(1.0)).conj(); }
Tensor tan(T g, T y) { return g * (1 + Lazy(y).pow(2)).conj(); }
Tensor angle(T, T x) {
  if (!is_complex(x.dtype())) return empty_like(x);
  throw Error("angle: the gradient of complex numbers is not modelled");
}
}  // namespace gradient

constexpr auto kFp32 = Autocast::fp32;
constexpr auto kIn = Keeps::input, kRes = Keeps::result, kNo = Keeps::nothing;
using namespace gradient;  // NOLINT: names of functions of mathematics, in this file only

const Unary<"acos", kIn, gradient::acos> acos_op{kUnarySource, kFp32};
const Unary<"acosh", kIn, gradient::acosh> acosh_op{kUnarySource};
const Unary<"asin", kIn, gradient::asin> asin_op{kUnarySource, kFp32};
const Unary<"asinh", kIn, gradient::asinh> asinh_op{kUnarySource};
const Unary<"atan", kIn, gradient::atan> atan_op{kUnarySource};
const Unary<"atanh", kIn, gradient::atanh> atanh_op{kUnarySource};
const Unary<"ceil", kNo, zeros, same_result> ceil_op{kUnarySource};
const Unary<"cos", kIn, gradient::cos> cos_op{kUnarySource};
const Unary<"cosh", kIn, gradient::cosh> cosh_op{kUnarySource, kFp32};
const Unary<"deg2rad", kNo, scaled> deg2rad_op{kUnarySource};
const Unary<"digamma", kIn, digamma> digamma_op{kUnarySource};
const Unary<"erf", kIn, gradient::erf> erf_op{kUnarySource};
const Unary<"erfc", kIn, gradient::erf> erfc_op{kUnarySource};
const Unary<"erfinv", kIn, erfinv> erfinv_op{kUnarySource, kFp32};
const Unary<"exp2", kRes, gradient::exp2> exp2_op{kUnarySource};
const Unary<"expm1", kRes, gradient::expm1> expm1_op{kUnarySource, kFp32};
const Unary<"floor", kNo, zeros, same_result> floor_op{kUnarySource};
const Unary<"frac", kNo, same, same_result> frac_op{kUnarySource};
const Unary<"i0", kIn, i0> i0_op{kUnarySource};
const Unary<"lgamma", kIn, gradient::lgamma> lgamma_op{kUnarySource};
const Unary<"log10", kIn, log_base> log10_op{kUnarySource, kFp32};
const Unary<"log1p", kIn, gradient::log1p> log1p_op{kUnarySource, kFp32};
const Unary<"log2", kIn, log_base> log2_op{kUnarySource, kFp32};
const Unary<"rad2deg", kNo, scaled> rad2deg_op{kUnarySource};
const Unary<"reciprocal", kRes, reciprocal> reciprocal_op{kUnarySource, kFp32};
const Unary<"round", kNo, zeros, same_result> round_op{kUnarySource};
const Op sgn_op{{"aten::sgn(Tensor self) -> Tensor", Autocast::none, "self, result", kUnarySource}, sgn<false>};
const Op sgn_in_place{{"aten::sgn_(Tensor(a!) self) -> Tensor(a!)", Autocast::none, "self, result", kUnarySource}, sgn<true>};
const Unary<"sign", kNo, zeros, same_result> sign_op{kUnarySource};
const Unary<"sin", kIn, gradient::sin> sin_op{kUnarySource};
const Unary<"sinc", kIn, sinc> sinc_op{kUnarySource};
const Unary<"sinh", kIn, gradient::sinh> sinh_op{kUnarySource, kFp32};
const Unary<"square", kIn, square, same_result> square_op{"aten/src/ATen/native/UnaryOps.cpp square: pow(2), whose policy acts", kFp32};
const Unary<"tan", kRes, gradient::tan> tan_op{kUnarySource, kFp32};
const Unary<"trunc", kNo, zeros, same_result> trunc_op{kUnarySource};
const UnaryInPlace<"exp", kRes, gradient::exp> exp_in_place{kUnarySource};
const UnaryInPlace<"log", kIn, gradient::log> log_in_place{kUnarySource};
const UnaryInPlace<"neg", kNo, neg> neg_in_place{kUnarySource};
const UnaryInPlace<"sqrt", kRes, gradient::sqrt> sqrt_in_place{kUnarySource};
const UnaryInPlace<"rsqrt", kRes, rsqrt> rsqrt_in_place{kUnarySource};
const UnaryInPlace<"tanh", kRes, fused<"aten::tanh_backward">> tanh_in_place{kUnarySource};
const UnaryInPlace<"sigmoid", kRes, fused<"aten::sigmoid_backward">> sigmoid_in_place{kUnarySource};
const UnaryInPlace<"abs", kIn, gradient::abs> abs_in_place{kUnarySource};

// PyTorch's other names of the same functions
const Unary<"arccos", kIn, gradient::acos> arccos_op{kUnarySource, kFp32};
const Unary<"arccosh", kIn, gradient::acosh> arccosh_op{kUnarySource};
const Unary<"arcsin", kIn, gradient::asin> arcsin_op{kUnarySource, kFp32};
const Unary<"arcsinh", kIn, gradient::asinh> arcsinh_op{kUnarySource};
const Unary<"arctan", kIn, gradient::atan> arctan_op{kUnarySource};
const Unary<"arctanh", kIn, gradient::atanh> arctanh_op{kUnarySource};
const Unary<"fix", kNo, zeros, same_result> fix_op{kUnarySource};
const Unary<"negative", kNo, neg, same_result> negative_op{kUnarySource};
const UnaryOut<"special_digamma", kIn, digamma> special_digamma{kUnarySource};
const UnaryOut<"special_psi", kIn, digamma> special_psi{kUnarySource};
const UnaryOut<"special_erf", kIn, gradient::erf> special_erf{kUnarySource};
const UnaryOut<"special_erfc", kIn, gradient::erf> special_erfc{kUnarySource};
const UnaryOut<"special_erfinv", kIn, erfinv> special_erfinv{kUnarySource};
const UnaryOut<"special_exp2", kRes, gradient::exp2> special_exp2{kUnarySource};
const UnaryOut<"special_expm1", kRes, gradient::expm1> special_expm1{kUnarySource};
const UnaryOut<"special_expit", kRes, fused<"aten::sigmoid_backward">> special_expit{kUnarySource};
const UnaryOut<"special_gammaln", kIn, gradient::lgamma> special_gammaln{kUnarySource};
const UnaryOut<"special_i0", kIn, i0> special_i0{kUnarySource};
const UnaryOut<"special_log1p", kIn, gradient::log1p> special_log1p{kUnarySource};
const UnaryOut<"special_sinc", kIn, sinc> special_sinc{kUnarySource};

// ---- with numbers --------------------------------------------------------------------------------------------------------

Tensor logit(T self, std::optional<double>) { return unary_op<"logit", kIn, fused<"aten::logit_backward">, float_result>(self); }
Tensor logit_(T self, std::optional<double>) { return unary_op_<"logit", kIn, fused<"aten::logit_backward">>(self); }
Tensor round_decimals(T self, std::int64_t) { return unary_op<"round", kNo, zeros, same_result>(self); }
Tensor round_decimals_(T self, std::int64_t) { return unary_op_<"round", kNo, zeros>(self); }
Tensor nan_to_num_out(T self, std::optional<double>, std::optional<double>, std::optional<double>) {
  return unary_op<"nan_to_num", kIn, nan_to_num, same_result>(self);
}
Tensor nan_to_num_in_place(T self, std::optional<double>, std::optional<double>, std::optional<double>) {
  return unary_op_<"nan_to_num", kIn, nan_to_num>(self);
}
Tensor polygamma(std::int64_t, T self) { return unary_op<"polygamma", kIn, digamma, float_result>(self); }
Tensor polygamma_(T self, std::int64_t) { return unary_op_<"polygamma", kIn, digamma>(self); }
Tensor positive(T self) { return self; }

const Op logit_op{{"aten::logit(Tensor self, float? eps=None) -> Tensor", Autocast::none, "self", kUnarySource}, logit};
const Op logit_in_place{{"aten::logit_(Tensor(a!) self, float? eps=None) -> Tensor(a!)", Autocast::none, "self", kUnarySource}, logit_};
const Op special_logit{{"aten::special_logit(Tensor self, float? eps=None) -> Tensor", Autocast::none, "self", kUnarySource}, logit};
const Op round_decimals_op{{"aten::round.decimals(Tensor self, *, int decimals) -> Tensor", Autocast::none, "", kUnarySource},
                           round_decimals};
const Op round_decimals_in_place{
    {"aten::round_.decimals(Tensor(a!) self, *, int decimals) -> Tensor(a!)", Autocast::none, "", kUnarySource}, round_decimals_};
const Op special_round{{"aten::special_round(Tensor self, *, int decimals=0) -> Tensor", Autocast::none, "", kUnarySource}, round_decimals};
const Op nan_to_num_op{{"aten::nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor", Autocast::none,
                        "self", kUnarySource},
                       nan_to_num_out};
const Op nan_to_num_in_place_op{
    {"aten::nan_to_num_(Tensor(a!) self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor(a!)", Autocast::none, "self",
     kUnarySource},
    nan_to_num_in_place};
const Op polygamma_op{{"aten::polygamma(int n, Tensor self) -> Tensor", Autocast::none, "self", kUnarySource}, polygamma};
const Op polygamma_in_place{{"aten::polygamma_(Tensor(a!) self, int n) -> Tensor(a!)", Autocast::none, "self", kUnarySource}, polygamma_};
const Op positive_op{{"aten::positive(Tensor(a) self) -> Tensor(a)", Autocast::none, "", kUnarySource}, positive};

// native/UnaryOps.cpp mvlgamma, FunctionsManual.cpp mvlgamma_backward: arange(p) against the last dimension
Tensor mvlgamma_arguments(T self, std::int64_t p) {
  Tensor range = empty({p}, self.dtype());
  Dims sizes = self.sizes();
  sizes.push_back(p);
  return empty(sizes, self.dtype());
}
auto mvlgamma_formula(std::int64_t p) {
  return [p](Backward& w, T self) {
    Tensor arguments = mvlgamma_arguments(self, p);
    w.out[0] = w.grad[0] * Lazy(arguments).sum({-1}, false);
  };
}
Tensor mvlgamma(T self, std::int64_t p) {
  auto fn = node("MvlgammaBackward0", {self}, {self}, mvlgamma_formula(p));
  Tensor arguments = mvlgamma_arguments(self, p);
  Tensor y;
  {
    NoGrad guard;
    y = ops::sum_dim(arguments, Dims{-1}, false, std::nullopt);
  }
  arguments.reset();
  fn.outputs({y});
  return y;
}
Tensor mvlgamma_(T self, std::int64_t p) {
  Tensor original = original_of(self, self.requires_grad());
  auto fn = node("MvlgammaBackward0", {self}, {original}, mvlgamma_formula(p));
  original.reset();
  Tensor arguments = mvlgamma_arguments(self, p);
  Tensor sum;
  {
    NoGrad guard;
    sum = ops::sum_dim(arguments, Dims{-1}, false, std::nullopt);
  }
  arguments.reset();
  fn.in_place(self);
  return self;
}
const Op mvlgamma_op{{"aten::mvlgamma(Tensor self, int p) -> Tensor", Autocast::none, "self", kUnarySource}, mvlgamma};
const Op mvlgamma_in_place{{"aten::mvlgamma_(Tensor(a!) self, int p) -> Tensor(a!)", Autocast::none, "self", kUnarySource}, mvlgamma_};

std::tuple<Tensor, Tensor> frexp(T self) {
  auto fn = node("FrexpBackward0", {self}, {}, [](Backward& w, T exponent) { w.out[0] = w.grad[0] / Lazy(exponent).map("aten::exp2"); });
  Tensor mantissa = elementwise({self}, self.dtype());
  Tensor exponent = elementwise({self}, DType::int32);
  fn.outputs({mantissa}, {exponent});
  return {mantissa, exponent};
}
const Op frexp_op{{"aten::frexp.Tensor(Tensor self) -> (Tensor mantissa, Tensor exponent)", Autocast::none, "exponent", kUnarySource},
                  frexp};

// ---- results of another type ---------------------------------------------------------------------------------------------

/// native/UnaryOps.cpp unary_op_impl_with_complex_to_float: the complex result lives beside the real one.
template <Text Name, Keeps Kept, UnaryGradient Gradient, ResultRule Result>
Tensor complex_to_real(T self) {
  static constexpr auto name = node_name(Name);
  if (!is_complex(self.dtype())) return apply_unary(name.value, Kept, Gradient, Result, self);
  auto fn = node(name.value, {self}, {self}, [](Backward& w, T x) { w.out[0] = Gradient(w.grad[0], x); });
  Tensor y = elementwise({self}, real_type(self.dtype()));
  Tensor complex = elementwise({self}, self.dtype());
  fn.outputs({y});
  return y;
}
constexpr auto abs_impl = complex_to_real<"abs", kIn, gradient::abs, same_result>;
constexpr auto angle_impl = complex_to_real<"angle", kIn, angle, float_result>;
const Op abs_op{{"aten::abs(Tensor self) -> Tensor", Autocast::none, "self", kUnarySource}, abs_impl};
const Op absolute_op{{"aten::absolute(Tensor self) -> Tensor", Autocast::none, "self", kUnarySource}, abs_impl};
const UnaryInPlace<"absolute", kIn, gradient::abs> absolute_in_place{kUnarySource};
const Op angle_op{{"aten::angle(Tensor self) -> Tensor", Autocast::none, "self", kUnarySource}, angle_impl};

const UnaryOut<"isnan", kNo, nullptr, bool_result> isnan_op{"aten/src/ATen/native/TensorCompare.cpp"};
const UnaryOut<"isposinf", kNo, nullptr, bool_result> isposinf_op{"aten/src/ATen/native/TensorCompare.cpp"};
const UnaryOut<"isneginf", kNo, nullptr, bool_result> isneginf_op{"aten/src/ATen/native/TensorCompare.cpp"};
const UnaryOut<"isreal", kNo, nullptr, bool_result> isreal_op{"aten/src/ATen/native/TensorCompare.cpp"};
const UnaryOut<"signbit", kNo, nullptr, bool_result> signbit_op{kUnarySource};
const Unary<"logical_not", kNo, nullptr, bool_result> logical_not_op{kUnarySource};
const Unary<"bitwise_not", kNo, nullptr, same_result> bitwise_not_op{kUnarySource};

Tensor isfinite_out(T self) {
  if (is_integral(self.dtype(), true)) return elementwise({self}, DType::boolean);
  if (!is_complex(self.dtype())) return gradient::isfinite(detached(self));
  Tensor real = real_gradient(detached(self), DType::float32);  // real and imaginary parts, one after the other
  Tensor result = gradient::isfinite(real);
  Tensor imaginary = gradient::isfinite(real);
  return result;
}
Tensor isinf(T self) {
  if (is_integral(self.dtype(), true)) return elementwise({self}, DType::boolean);
  return compare("aten::eq", Lazy(detached(self)).abs(), 0);
}
const Op isfinite_op{{"aten::isfinite(Tensor self) -> Tensor", Autocast::none, "", "aten/src/ATen/native/TensorCompare.cpp isfinite"},
                     isfinite_out};
const Op isinf_op{{"aten::isinf(Tensor self) -> Tensor", Autocast::none, "", "aten/src/ATen/native/TensorCompare.cpp isinf"},
                  memest::isinf};

// ---- pow with a number ---------------------------------------------------------------------------------------------------

Tensor pow_gradient(T g, T x, const Scalar& exponent) {  // FunctionsManual.cpp pow_backward
  const double p = exponent.to_double();
  if (p == 0) return empty_like(x);
  return g * (p * Lazy(x).pow(p - 1)).conj();
}
Tensor pow_scalar(T self, const Scalar& exponent) {
  auto fn = node("PowBackward0", {self}, {self}, [exponent](Backward& w, T x) { w.out[0] = pow_gradient(w.grad[0], x, exponent); });
  const DType type = ResultType().add(self).add(exponent).get();
  Tensor converted = self.dtype() == type ? Tensor() : elementwise({self}, type);  // native/Pow.cpp: the meta function converts the base
  Tensor y = elementwise({self}, type);
  fn.outputs({y});
  return y;
}
Tensor pow_scalar_(T self, const Scalar& exponent) {
  Tensor original = original_of(self, self.requires_grad());
  auto fn = node("PowBackward0", {self}, {original}, [exponent](Backward& w, T x) { w.out[0] = pow_gradient(w.grad[0], x, exponent); });
  original.reset();
  fn.in_place(self);
  return self;
}
const Op pow_scalar_in_place{
    {"aten::pow_.Scalar(Tensor(a!) self, Scalar exponent) -> Tensor(a!)", Autocast::none, "self", "native/Pow.cpp"}, pow_scalar_};

}  // namespace

namespace ops {
const Op<Tensor(T)> neg{{"aten::neg(Tensor self) -> Tensor", Autocast::none, "", kUnarySource},
                        unary_op<"neg", kNo, gradient::neg, same_result>};
const Op<Tensor(T, const Scalar&)> pow_scalar{
    {"aten::pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor", Autocast::fp32, "self", "native/Pow.cpp"}, memest::pow_scalar};
const Op<Tensor(T)> exp{{"aten::exp(Tensor self) -> Tensor", Autocast::fp32, "result", kUnarySource},
                        unary_op<"exp", kRes, gradient::exp, float_result>};
const Op<Tensor(T)> log{{"aten::log(Tensor self) -> Tensor", Autocast::fp32, "self", kUnarySource},
                        unary_op<"log", kIn, gradient::log, float_result>};
const Op<Tensor(T)> sqrt{{"aten::sqrt(Tensor self) -> Tensor", Autocast::none, "result", kUnarySource},
                         unary_op<"sqrt", kRes, gradient::sqrt, float_result>};
const Op<Tensor(T)> rsqrt{{"aten::rsqrt(Tensor self) -> Tensor", Autocast::fp32, "result", kUnarySource},
                          unary_op<"rsqrt", kRes, gradient::rsqrt, float_result>};
const Op<Tensor(T)> tanh{{"aten::tanh(Tensor self) -> Tensor", Autocast::none, "result", kUnarySource},
                         unary_op<"tanh", kRes, gradient::fused<"aten::tanh_backward">, float_result>};
const Op<Tensor(T)> sigmoid{{"aten::sigmoid(Tensor self) -> Tensor", Autocast::none, "result", kUnarySource},
                            unary_op<"sigmoid", kRes, gradient::fused<"aten::sigmoid_backward">, float_result>};
}  // namespace ops
}  // namespace memest
