// Sources: derivatives.yaml; FunctionsManual.cpp norm_backward, renorm_backward; aten/src/ATen/native/{ReduceOps,LinearAlgebra,
// Normalization}.cpp, native/cuda/ReduceNormKernel.cu of 2.15.
#include "ops/norms.h"

#include <cmath>

#include "ops/copy.h"
#include "ops/expression.h"
#include "ops/iterator.h"
#include "ops/loss_reduction.h"
#include "ops/pointwise.h"
#include "ops/pointwise_rules.h"
#include "ops/reduction_kernels.h"
#include "ops/reductions.h"

namespace memest {
namespace {
using I = std::int64_t;
using DimList = std::optional<Dims>;
using Mask = std::vector<bool>;
constexpr const char* kSource = "derivatives.yaml; native/cuda/ReduceNormKernel.cu";

/// The gradient of the largest magnitude: shared among the elements that have it.
Tensor infinite_norm_backward(T g, T x, T norm, const Mask& mask) {
  const Tensor magnitude = Lazy(x).abs();
  const Tensor largest = compare("aten::eq", magnitude, norm).logical_or(Lazy(magnitude).isnan());
  const Tensor number = count(largest, mask, true), each = ops::binary("aten::div", g, number, g.dtype());
  const Tensor shared = ops::binary("aten::mul", each, largest, g.dtype()), sign = Lazy(x).sgn();
  return ops::binary("aten::mul", sign, shared);
}

DType norm_type(T self, std::optional<DType> dtype) {
  if (!is_differentiable(self.dtype()))
    throw Error("linalg.vector_norm: expected a floating point or complex tensor as input, found " + describe(self));
  return dtype.value_or(real_type(self.dtype()));
}
Tensor norm_kernel(T self, const Mask& mask, bool keepdim, DType type) {
  return reduced(self, mask, keepdim, type, {.size = item_size(op_math_type(type)), .in_output = !is_reduced_floating(type)});
}
/// `converts`: the formula takes the input in the gradient's type.
Tensor norm(const char* name, T self, double p, const DimList& dim, bool keepdim, std::optional<DType> dtype, bool converts) {
  const DType type = norm_type(self, dtype);
  const Mask mask = reduction_mask(dim, self.dim());
  const bool all = !dim || dim->empty();  // unsqueeze_multiple leaves 0-d results as they are
  auto fn = node(name, {self}, {self}, [mask, keeps = keepdim || all, p, converts](Backward& w, T x, T y) {
    const Tensor g = ops::restore_reduced(w.grad[0], mask, keeps), norm = ops::restore_reduced(y, mask, keeps);
    const Tensor input = converts ? ops::to(x, g.dtype()) : x;
    w.out[0] = ops::norm_backward(g, input, p, norm, mask);
  });
  Tensor y = norm_kernel(self, mask, keepdim, type);
  fn.outputs({y}, {y});
  return y;
}
Tensor vector_norm(T self, const Scalar& ord, const DimList& dim, bool keepdim, std::optional<DType> dtype) {
  return norm("LinalgVectorNormBackward0", self, ord.to_double(), dim, keepdim, dtype, false);
}

// ---- norm: autocast calls the overload that takes a dtype (autocast_mode.cpp) ------------------------------------------------
double order(const std::optional<Scalar>& p) { return p ? p->to_double() : 2; }
Tensor norm_dims_dtype(T self, const std::optional<Scalar>& p, const Dims& dim, bool keepdim, DType dtype) {
  return norm("NormBackward4", self, order(p), dim, keepdim, dtype, true);
}
Tensor norm_dtype(T self, const std::optional<Scalar>& p, DType dtype) {
  return norm("NormBackward3", self, order(p), {}, false, dtype, true);
}
bool autocasts(T self) { return runtime().autocast.enabled && detail::eligible(self); }
Tensor norm_dims(T self, const std::optional<Scalar>& p, const Dims& dim, bool keepdim) {
  if (autocasts(self)) return norm_dims_dtype(self, p, dim, keepdim, DType::float32);
  return norm("NormBackward1", self, order(p), dim, keepdim, {}, false);
}
Tensor norm_scalar(T self, const Scalar& p) {
  if (autocasts(self)) return norm_dtype(self, p, DType::float32);
  return norm("NormBackward0", self, p.to_double(), {}, false, {}, false);
}
const Op norm_scalar_op{{"aten::norm.Scalar(Tensor self, Scalar p=2) -> Tensor", Autocast::none, "self, result", kSource}, norm_scalar};
const Op norm_dims_op{
    {"aten::norm.ScalarOpt_dim(Tensor self, Scalar? p, int[1] dim, bool keepdim=False) -> Tensor", Autocast::none, "self, result", kSource},
    norm_dims};
const Op norm_dims_dtype_op{
    {"aten::norm.ScalarOpt_dim_dtype(Tensor self, Scalar? p, int[1] dim, bool keepdim, *, ScalarType dtype) -> Tensor", Autocast::none,
     "self, result", kSource},
    norm_dims_dtype};
const Op norm_dtype_op{
    {"aten::norm.ScalarOpt_dtype(Tensor self, Scalar? p, *, ScalarType dtype) -> Tensor", Autocast::none, "self, result", kSource},
    norm_dtype};
const Op frobenius_norm_op{
    {"aten::frobenius_norm.dim(Tensor self, int[1] dim, bool keepdim=False) -> Tensor", Autocast::fp32, "", "native/LinearAlgebra.cpp"},
    +[](T self, const Dims& dim, bool keepdim) { return ops::vector_norm(self, 2, dim, keepdim, std::nullopt); }};

// ---- linalg_norm, linalg_matrix_norm -----------------------------------------------------------------------------------------
Tensor frobenius(T self, const Dims& dim, bool keepdim, std::optional<DType> dtype) {
  return ops::vector_norm(self, 2, dim, keepdim, dtype);
}
/// The largest or the least sum of magnitudes: along columns for 1, along rows for infinity.
Tensor matrix_norm(T self, const Scalar& ord, const Dims& dims, bool keepdim, std::optional<DType> dtype) {
  const double p = ord.to_double();
  if (std::abs(p) == 2) throw Error("linalg_matrix_norm: norms by singular values are not modelled");
  if (std::abs(p) != 1 && !std::isinf(p)) throw Error("linalg.matrix_norm: Order " + std::to_string(p) + " not supported.");
  if (dims.size() != 2) throw Error("linalg.matrix_norm: dim must be a 2-tuple");
  int summed = wrap_dim(dims[0], self.dim()), kept = wrap_dim(dims[1], self.dim());
  if (std::isinf(p)) std::swap(summed, kept);
  const Tensor sums = ops::vector_norm(self, 1, Dims{summed}, keepdim, dtype);
  if (!keepdim && summed < kept) --kept;
  return call_tensor_op(p > 0 ? "aten::amax" : "aten::amin", sums, Dims{kept}, keepdim);
}
Tensor matrix_norm_named(T self, const std::string& ord, const Dims& dims, bool keepdim, std::optional<DType> dtype) {
  if (ord != "fro") throw Error("linalg_matrix_norm: only the norm 'fro' is modelled, found '" + ord.substr(0, 20) + "'");
  return frobenius(self, dims, keepdim, dtype);
}
const Op matrix_norm_op{{"aten::linalg_matrix_norm(Tensor self, Scalar ord, int[] dim=[-2,-1], bool keepdim=False, *, ScalarType? "
                         "dtype=None) -> Tensor",
                         Autocast::fp32_set_dtype, "", "native/LinearAlgebra.cpp linalg_matrix_norm"},
                        matrix_norm};
const Op matrix_norm_named_op{{"aten::linalg_matrix_norm.str_ord(Tensor self, str ord='fro', int[] dim=[-2,-1], bool keepdim=False, *, "
                               "ScalarType? dtype=None) -> Tensor",
                               Autocast::fp32_set_dtype, "", "native/LinearAlgebra.cpp linalg_matrix_norm"},
                              matrix_norm_named};
/// Of matrices where an order is given for two dimensions, else of vectors.
Tensor linalg_norm(T self, const std::optional<Scalar>& ord, const DimList& dim, bool keepdim, std::optional<DType> dtype) {
  if (ord && (dim ? dim->size() : self.dim()) == 2) return matrix_norm_op(self, *ord, dim.value_or(Dims{0, 1}), keepdim, dtype);
  return ops::vector_norm(self, ord.value_or(Scalar(2)), dim, keepdim, dtype);
}
const Op linalg_norm_op{
    {"aten::linalg_norm(Tensor self, Scalar? ord=None, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) "
     "-> Tensor",
     Autocast::none, "", "native/LinearAlgebra.cpp linalg_norm"},
    linalg_norm};

// ---- dist, renorm ------------------------------------------------------------------------------------------------------------
Tensor dist(T self, T other, const Scalar& p) {
  auto fn = node("DistBackward0", {self, other}, {other, self}, [p = p.to_double()](Backward& w, T y, T x, T result) {
    auto gradient = [&](T difference) {
      return ops::norm_backward(w.grad[0], difference, p, result, Mask(std::size_t(difference.dim()), true));
    };
    if (w.needs(1)) {
      const Tensor difference = ops::binary("aten::sub", x, y), of_difference = gradient(difference);
      if (of_difference) w.out[1] = ops::unary("aten::neg", of_difference);
    }
    if (w.needs(0)) {
      const Tensor difference = ops::binary("aten::sub", x, y);
      w.out[0] = gradient(difference);
    }
  });
  Tensor y;
  {
    const Tensor difference = elementwise({self, other}, promote(self, other));
    y = norm_kernel(difference, Mask(std::size_t(difference.dim()), true), false, norm_type(difference, {}));
  }
  fn.outputs({y}, {y});
  return y;
}
const Op dist_op{{"aten::dist(Tensor self, Tensor other, Scalar p=2) -> Tensor", Autocast::fp32, "self, other, result",
                  "derivatives.yaml; native/ReduceOps.cpp dist"},
                 dist};

Mask all_but(T x, I dim) {
  Mask mask(std::size_t(x.dim()), true);
  mask[std::size_t(wrap_dim(dim, x.dim()))] = false;
  return mask;
}
/// Norms in float32 for half types.
Tensor slice_norms(T x, const Mask& mask) {
  return norm_kernel(x, mask, true, is_reduced_floating(x.dtype()) ? DType::float32 : real_type(x.dtype()));
}
Tensor renorm_backward(T g, T x, double p, I dim) {
  const Mask mask = all_but(x, dim);
  const Tensor norm = slice_norms(x, mask);
  Tensor of_slices;
  {
    const Tensor product = ops::binary("aten::mul", x, g);
    of_slices = ops::sum_kernel(product, mask, true, norm.dtype());
  }
  Tensor nb = ops::norm_backward(of_slices, x, p, norm, mask);
  of_slices.reset();
  const Tensor inverse = (Lazy(norm) + 1e-7).reciprocal();
  const Tensor grad_norm = 1.0 * Lazy(inverse) * (Lazy(g) - Lazy(inverse) * nb);
  return where(compare("aten::gt", norm, 1.0), Lazy(grad_norm).to(g.dtype()), g);
}
template <bool InPlace>
Tensor renorm(T self, const Scalar& p, I dim, const Scalar&) {
  if (self.dim() < 2) throw Error("renorm: input needs at least 2 dimensions, got " + std::to_string(self.dim()) + " dimensions");
  Tensor original = InPlace ? original_of(self, self.requires_grad()) : Tensor();
  auto fn = node("RenormBackward0", {self}, {InPlace ? original : self},
                 [p = p.to_double(), dim](Backward& w, T x) { w.out[0] = renorm_backward(w.grad[0], x, p, dim); });
  original.reset();
  const Tensor y = InPlace ? self : empty_like(self);
  if (runtime().settings.kernel_scratch()) {
    const Tensor norm = slice_norms(self, all_but(self, dim));
    const Tensor factor = norm.dtype() == self.dtype() ? norm : empty(norm.sizes(), self.dtype());
  }
  if constexpr (InPlace)
    fn.in_place(self);
  else
    fn.outputs({y});
  return y;
}
constexpr const char* kRenorm = "derivatives.yaml; native/Normalization.cpp renorm";
const Op renorm_op{{"aten::renorm(Tensor self, Scalar p, int dim, Scalar maxnorm) -> Tensor", Autocast::fp32, "self", kRenorm},
                   renorm<false>};
const Op renorm_in_place{
    {"aten::renorm_(Tensor(a!) self, Scalar p, int dim, Scalar maxnorm) -> Tensor(a!)", Autocast::none, "self", kRenorm}, renorm<true>};

}  // namespace

namespace ops {
Tensor norm_backward(T g, T x, double p, T norm, const std::vector<bool>& mask) {
  if (p == 0) return {};
  if (p == 1) return Lazy(x).sgn() * g;
  if (p == 2) return g * (Lazy(x) / norm).masked_fill_(compare("aten::eq", norm, 0));
  if (std::isinf(p)) return infinite_norm_backward(g, x, norm, mask);
  if (p < 1) {
    const Tensor scaled = Lazy(x).sgn() * Lazy(x).abs().in_place("aten::pow_").masked_fill_(compare("aten::eq", x, 0));
    return Lazy(scaled) * g * Lazy(norm).pow(1 - p);
  }
  const Lazy power = Lazy(x).abs().in_place("aten::pow_");
  const Tensor scaled = p < 2 ? Lazy(x).sgn() * power : Lazy(x) * power;
  const Tensor scale = g / Lazy(norm).pow(p - 1);
  { const Tensor zero = compare("aten::eq", norm, 0); }  // masked_fill_
  return Lazy(scaled) * scale;
}
const Op<Tensor(T, const Scalar&, const std::optional<Dims>&, bool, std::optional<DType>)> vector_norm{
    {"aten::linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
     Autocast::fp32_set_dtype, "self, result", kSource},
    memest::vector_norm};
}  // namespace ops
}  // namespace memest
