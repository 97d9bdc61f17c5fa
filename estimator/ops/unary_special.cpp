// torch.special's functions of one tensor and of two (derivatives.yaml; FunctionsManual.cpp; aten/src/ATen/native/UnaryOps.cpp,
// BinaryOps.cpp).
#include "ops/expression.h"
#include "ops/iterator.h"
#include "ops/pointwise.h"
#include "ops/pointwise_rules.h"

namespace memest {
namespace {

constexpr const char* kSpecial = "derivatives.yaml; torch/csrc/autograd/FunctionsManual.cpp; native/UnaryOps.cpp";

Tensor entr(T g, T x) { return g * (-(1 + Lazy(x).log())); }
Lazy full_like(T like) { return scalar_like(like); }

/// i1 and i1e: where x is tiny another value stands in, so that no gradient is NaN.
Tensor bessel_gradient(T g, T x, T y, bool scaled) {
  const Tensor not_tiny = compare("aten::gt", Lazy(x).abs(), 0);
  const Tensor safe = where(not_tiny, x, full_like(x));
  Tensor slope;
  if (scaled)
    slope = Lazy(safe).map("aten::special_i0e") - y * (Lazy(safe).sgn() + Lazy(safe).reciprocal());
  else
    slope = Lazy(safe).map("aten::i0") - y * Lazy(safe).reciprocal();
  return g * where(not_tiny, slope, full_like(x));
}

/// Functions whose gradient looks at both the input and the result.
using Gradient3 = Tensor (*)(T g, T x, T y);
template <Text Name, Gradient3 Gradient>
Tensor of_both(T self) {
  static constexpr auto name = node_name(Name);
  auto fn = node(name.value, {self}, {self}, [](Backward& w, T x, T y) { w.out[0] = Gradient(w.grad[0], x, y); });
  Tensor y = elementwise({self}, float_result(self.dtype()));
  fn.outputs({y}, {y});
  return y;
}
Tensor erfcx(T g, T x, T y) { return (2.0 * Lazy(x) * y - 1.0) * g; }
Tensor i0e(T g, T x, T y) { return g * (Lazy(x).map("aten::special_i1e") - Lazy(x).sgn() * y); }
Tensor i1(T g, T x, T y) { return bessel_gradient(g, x, y, false); }
Tensor i1e(T g, T x, T y) { return bessel_gradient(g, x, y, true); }
Tensor log_ndtr(T g, T x, T y) { return Lazy(g) * 0.5 * (y + Lazy(x).pow(2) * 0.5).neg().exp(); }
Tensor ndtri(T g, T y) { return Lazy(g) * 0.5 * (Lazy(y).pow(2) * 0.5).exp(); }

const UnaryOut<"special_entr", Keeps::input, entr> entr_op{kSpecial};
const UnaryOut<"special_ndtri", Keeps::result, ndtri> ndtri_op{kSpecial};
const Op erfcx_op{{"aten::special_erfcx(Tensor self) -> Tensor", Autocast::none, "self, result", kSpecial},
                  of_both<"special_erfcx", erfcx>};
const Op i0e_op{{"aten::special_i0e(Tensor self) -> Tensor", Autocast::none, "self, result", kSpecial}, of_both<"special_i0e", i0e>};
const Op i1_op{{"aten::special_i1(Tensor self) -> Tensor", Autocast::none, "self, result", kSpecial}, of_both<"special_i1", i1>};
const Op i1e_op{{"aten::special_i1e(Tensor self) -> Tensor", Autocast::none, "self, result", kSpecial}, of_both<"special_i1e", i1e>};
const Op log_ndtr_op{{"aten::special_log_ndtr(Tensor self) -> Tensor", Autocast::none, "self, result", kSpecial},
                     of_both<"special_log_ndtr", log_ndtr>};

Tensor erf(T self) { return std::get<Tensor>(call_op("aten::erf", {self}, {})); }
// native/UnaryOps.cpp calc_ndtr: (1 + erf(x * sqrt(1/2))) * 0.5, recorded op by op
Tensor ndtr(T self) {
  Tensor scaled = ops::mul_scalar(self, 0.5);
  Tensor error = erf(scaled);
  Tensor sum = ops::add_scalar(error, 1);
  return ops::mul_scalar(sum, 0.5);
}
const Op ndtr_op{{"aten::special_ndtr(Tensor self) -> Tensor", Autocast::none, "", kSpecial}, ndtr};

// ---- two tensors ---------------------------------------------------------------------------------------------------------

Tensor xlog1py_self(T g, T a, T b, T) {
  return pointwise("aten::special_xlog1py", g, b)
      .masked_fill(compare("aten::bitwise_and", compare("aten::eq", a, 0), compare("aten::le", b, 0)));
}
Tensor xlog1py_other(T g, T a, T b, T) { return Lazy(g) * a / (Lazy(b) + 1); }
constexpr BinaryRule kXlog1py{"SpecialXlog1PyBackward0", promote_float, xlog1py_self,
                              uses_self | uses_other,    xlog1py_other, uses_self | uses_other};
const BinaryOut<"special_xlog1py", "", kXlog1py> xlog1py_op{"self, other", kSpecial};
Tensor zeta_other(T g, T a, T b, T) { return Lazy(g) * -Lazy(a) * pointwise("aten::special_zeta", Lazy(a) + 1.0, b); }
constexpr BinaryRule kZeta{"SpecialZetaBackward0", promote_float, nullptr, uses_nothing, zeta_other, uses_self | uses_other};
const BinaryOut<"special_zeta", "", kZeta> zeta_op{"self, other", kSpecial};

Tensor xlog1py_number(T self, const Scalar&) {
  return apply_unary(
      "SpecialXlog1PyBackward2", Keeps::nothing, [](T g, T) { return ops::unary("aten::special_xlog1py", g); }, float_result, self);
}
const Op xlog1py_number_op{{"aten::special_xlog1py.other_scalar(Tensor self, Scalar other) -> Tensor", Autocast::none, "", kSpecial},
                           xlog1py_number};

Lazy igamma_slope(T a, T x) { return (((Lazy(a) - 1) * Lazy(x).log() - x) - Lazy(a).map("aten::lgamma")).exp(); }
Tensor igamma_other(T g, T a, T x, T) { return g * igamma_slope(a, x); }
Tensor igammac_other(T g, T a, T x, T) { return -Lazy(g) * igamma_slope(a, x); }
constexpr BinaryRule kIgamma{"IgammaBackward0", promote_float, nullptr, uses_nothing, igamma_other, uses_self | uses_other};
constexpr BinaryRule kIgammac{"IgammacBackward0", promote_float, nullptr, uses_nothing, igammac_other, uses_self | uses_other};
const Binary<"igamma", "", kIgamma> igamma_op{"self, other", kSpecial};
const Binary<"igammac", "", kIgammac> igammac_op{"self, other", kSpecial};
const BinaryOut<"special_gammainc", "", kIgamma> special_gammainc_op{"self, other", kSpecial};
const BinaryOut<"special_gammaincc", "", kIgammac> special_gammaincc_op{"self, other", kSpecial};

}  // namespace
}  // namespace memest
