// Quantiles, covariances and integrals: composites of other ops.
// Sources: aten/src/ATen/native/{Sorting.cpp quantile_compute, Correlation.cpp, Integration.cpp, WeightNorm.cpp} of 2.15.
#include "ops/copy.h"
#include "ops/indexing.h"
#include "ops/iterator.h"
#include "ops/loss_reduction.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/reduction_kernels.h"
#include "ops/reductions.h"
#include "ops/views.h"

namespace memest {
namespace {
using I = std::int64_t;

// ---- quantile --------------------------------------------------------------------------------------------------------------
std::vector<bool> last_dimension(T x) {
  std::vector<bool> mask(std::size_t(x.dim()), false);
  mask.back() = true;
  return mask;
}
/// q as float64, times something.
Tensor times_q(T q, T factor) { return factor ? ops::mul(q, factor) : ops::mul_scalar(q, I{1}); }
/// Ranks of the quantiles among the elements that are no NaN; the least is 0.
Tensor ranks_without_nan(T x, T q) {
  Tensor ranks;
  {
    const Tensor is_nan = call_tensor_op("aten::isnan", x), number = count(is_nan, last_dimension(x), true);
    const Tensor last = call_tensor_op("aten::sub", number, I{1}), q_double = ops::to(q, DType::float64);
    ranks = times_q(q_double, last);
  }
  const Tensor negative = call_tensor_op("aten::lt", ranks, I{0});
  return call_tensor_op("aten::masked_fill_", ranks, negative, I{0});
}
/// Ranks among all; that of a NaN where there is one.
Tensor ranks_of_all(T x, T q) {
  Tensor scaled, any;
  {
    const Tensor q_double = ops::to(q, DType::float64);
    scaled = times_q(q_double, {});
    const Tensor is_nan = call_tensor_op("aten::isnan", x);
    any = reduced(is_nan, last_dimension(x), true, DType::boolean, {1});
  }
  const Dims sizes = broadcast(scaled.sizes(), any.sizes());
  const Tensor ranks = call_tensor_op("aten::masked_fill", ops::expand(scaled, sizes, false), ops::expand(any, sizes, false), I{1});
  scaled.reset();
  return ranks;
}
/// The result with the quantiles' dimension in front, without the reduced one unless it is kept.
Tensor arranged(T values, bool many, bool keepdim, std::optional<int> dim, int dims) {
  if (!dim) {
    Dims sizes = keepdim ? Dims::filled(dims, 1) : Dims();
    if (many) sizes.insert(0, values.size(-1));
    return ops::view(values, sizes);
  }
  const bool is_last = *dim == dims - 1;  // else the dimension stands there with size 1, and its quantiles at the end
  const Tensor y = many ? ops::movedim(values, Dims{-1}, Dims{0}) : is_last && keepdim ? values : ops::squeeze_dim(values, -1);
  if (is_last) return many && keepdim ? ops::unsqueeze(y, -1) : y;
  return keepdim ? y : ops::squeeze_dim(y, *dim + (many ? 1 : 0));
}
Tensor quantile(T self, T q, std::optional<I> dim_, bool keepdim, const std::string& interpolation, bool ignore_nan) {
  if (self.dtype() != DType::float32 && self.dtype() != DType::float64)
    throw Error("quantile() input tensor must be either float or double dtype, found " + describe(self));
  if (q.dim() > 1) throw Error("quantile() q must be a scalar or 1D tensor, found " + describe(q));
  const bool linear = interpolation == "linear", midpoint = interpolation == "midpoint";
  if (!linear && !midpoint && interpolation != "lower" && interpolation != "higher" && interpolation != "nearest")
    throw Error("quantile() interpolation must be one of linear, lower, higher, midpoint or nearest, but got " +
                interpolation.substr(0, 40));
  const std::optional<int> dim = dim_ ? std::optional<int>(wrap_dim(*dim_, self.dim())) : std::nullopt;
  Tensor x;
  if (!dim)
    x = ops::flatten(self, 0, -1);
  else if (*dim == self.dim() - 1)
    x = self;
  else
    x = ops::transpose(ops::unsqueeze(self, -1), *dim, -1);
  const Tensor ranks = ignore_nan ? ranks_without_nan(x, q) : ranks_of_all(x, q);
  const Tensor below = ops::to(ranks, DType::int64);
  Tensor weights, above;
  if (linear || midpoint) {
    const Tensor exact = midpoint ? empty_like(ranks) : call_tensor_op("aten::sub", ranks, below);
    weights = ops::to(exact, self.dtype());
  }
  if (weights) above = ops::to(ranks, DType::int64);
  const Tensor sorted = Unbox<Tensors>::from(call_op("aten::sort", {x}, {})).at(0);
  Tensor values = ops::gather(sorted, -1, below, false);
  if (weights) {
    const Tensor values_above = ops::gather(sorted, -1, above, false);
    values = call_tensor_op("aten::lerp_", values, values_above, weights);
  }
  return arranged(values, q.dim() == 1, keepdim, dim, self.dim());
}
template <bool IgnoresNan>
Tensor quantile_of(T self, T q, std::optional<I> dim, bool keepdim, const std::string& interpolation) {
  return quantile(self, q, dim, keepdim, interpolation, IgnoresNan);
}
/// The number becomes a tensor on the device.
template <bool IgnoresNan>
Tensor quantile_of_number(T self, double, std::optional<I> dim, bool keepdim, const std::string& interpolation) {
  const Tensor q = empty({}, self.dtype());
  return quantile(self, q, dim, keepdim, interpolation, IgnoresNan);
}
#define MEMEST_QUANTILE(NAME, IGNORES_NAN)                                                                                   \
  const Op NAME##_number_op{{"aten::" #NAME ".scalar(Tensor self, float q, int? dim=None, bool keepdim=False, *, str "       \
                             "interpolation='linear') -> Tensor",                                                            \
                             Autocast::none, "", "native/Sorting.cpp quantile_compute"},                                     \
                            quantile_of_number<IGNORES_NAN>};                                                                \
  const Op NAME##_op{                                                                                                        \
      {"aten::" #NAME "(Tensor self, Tensor q, int? dim=None, bool keepdim=False, *, str interpolation='linear') -> Tensor", \
       Autocast::none, "", "native/Sorting.cpp quantile_compute"},                                                           \
      quantile_of<IGNORES_NAN>};
MEMEST_QUANTILE(quantile, false)
MEMEST_QUANTILE(nanquantile, true)
#undef MEMEST_QUANTILE

// ---- cov, corrcoef -----------------------------------------------------------------------------------------------------------
Tensor cov(T self, I correction, T fweights, T aweights) {
  if (self.dim() > 2) throw Error("cov(): expected input to have two or fewer dimensions but got " + describe(self));
  if (fweights || aweights) throw Error("cov(): weights are not modelled");
  Tensor in = self.dim() < 2 ? ops::view(self, {1, -1}) : self;
  const Tensor observations = empty({}, DType::int64);
  Tensor average;
  {
    const Tensor sum = ops::sum_dim(in, Dims{1}, false, std::nullopt);
    average = ops::div(sum, observations);
  }
  const Tensor factor = call_tensor_op("aten::sub", observations, correction);
  {  // whether it is positive
    const Tensor least = empty({}, DType::boolean), nan = empty({}, DType::boolean);
    const Tensor either = empty({}, DType::boolean), any = empty({}, DType::boolean);
  }
  in = ops::sub(in, ops::unsqueeze(average, 1), 1);
  const Tensor product = ops::mm(in, ops::t(in));
  return call_tensor_op("aten::squeeze", ops::div(product, factor));
}
const Op cov_op{{"aten::cov(Tensor self, *, int correction=1, Tensor? fweights=None, Tensor? aweights=None) -> Tensor", Autocast::none, "",
                 "native/Correlation.cpp cov"},
                cov};
Tensor corrcoef(T self) {
  Tensor c = cov_op(self, 1, Tensor(), Tensor());
  if (c.dim() == 0) return ops::div(c, c);
  const Tensor deviation = ops::sqrt(ops::diagonal(c, 0, 0, 1));
  c = ops::div(c, ops::view(deviation, {-1, 1}));
  c = ops::div(c, ops::view(deviation, {1, -1}));
  return call_tensor_op("aten::clip", c, I{-1}, I{1});
}
const Op corrcoef_op{{"aten::corrcoef(Tensor self) -> Tensor", Autocast::none, "", "native/Correlation.cpp corrcoef"}, corrcoef};

// ---- trapezoids --------------------------------------------------------------------------------------------------------------
Tensor left_of(T y, I dim) { return ops::slice(y, dim, 0, y.size(dim) - 1, 1); }
Tensor right_of(T y, I dim) { return ops::slice(y, dim, 1, std::nullopt, 1); }
/// (left + right) * dx
Tensor weighted_pairs(T y, T dx, I dim) {
  const Tensor pairs = ops::add(left_of(y, dim), right_of(y, dim), 1);
  return ops::mul(pairs, dx);
}
Tensor widths(T y, T x, I dim) {
  Tensor viewed = x;
  if (x.dim() == 1 && y.dim() != 1) {
    if (x.size(0) != y.size(dim)) throw Error("trapezoid: There must be one `x` value for each sample point");
    Dims sizes = Dims::filled(y.dim(), 1);
    sizes[wrap_dim(dim, y.dim())] = x.size(0);
    viewed = ops::view(x, sizes);
  }
  return ops::sub(right_of(viewed, dim), left_of(viewed, dim), 1);
}
Tensor trapezoid_x(T y, T x, I dim) {
  const Tensor dx = widths(y, x, dim), weighted = weighted_pairs(y, dx, dim);
  const Tensor sum = ops::sum_dim(weighted, Dims{dim}, false, std::nullopt);
  return ops::div_scalar(sum, 2.0);
}
/// (y.sum(dim) - (y.select(dim, 0) + y.select(dim, -1)) * 0.5) * dx
Tensor trapezoid_dx(T y, const Scalar& dx, I dim) {
  const Tensor ends = ops::add(ops::select(y, dim, 0), ops::select(y, dim, -1), 1), half = ops::mul_scalar(ends, 0.5);
  const Tensor sum = ops::sum_dim(y, Dims{dim}, false, std::nullopt), difference = ops::sub(sum, half, 1);
  return ops::mul_scalar(difference, dx);
}
Tensor cumulative_trapezoid_x(T y, T x, I dim) {
  const Tensor dx = widths(y, x, dim), weighted = weighted_pairs(y, dx, dim);
  const Tensor sums = call_tensor_op("aten::cumsum", weighted, dim);
  return ops::div_scalar(sums, 2.0);
}
Tensor cumulative_trapezoid_dx(T y, const Scalar& dx, I dim) {
  const Tensor pairs = ops::add(left_of(y, dim), right_of(y, dim), 1), scaled = ops::mul_scalar(pairs, dx.to_double() / 2);
  return call_tensor_op("aten::cumsum", scaled, dim);
}
constexpr const char* kIntegration = "native/Integration.cpp";
const Op trapezoid_x_op{{"aten::trapezoid.x(Tensor y, Tensor x, *, int dim=-1) -> Tensor", Autocast::none, "", kIntegration}, trapezoid_x};
const Op trapezoid_dx_op{{"aten::trapezoid.dx(Tensor y, *, Scalar dx=1, int dim=-1) -> Tensor", Autocast::none, "", kIntegration},
                         trapezoid_dx};
const Op cumulative_trapezoid_x_op{
    {"aten::cumulative_trapezoid.x(Tensor y, Tensor x, *, int dim=-1) -> Tensor", Autocast::none, "", kIntegration},
    cumulative_trapezoid_x};
const Op cumulative_trapezoid_dx_op{
    {"aten::cumulative_trapezoid.dx(Tensor y, *, Scalar dx=1, int dim=-1) -> Tensor", Autocast::none, "", kIntegration},
    cumulative_trapezoid_dx};

// ---- norms of all but one dimension --------------------------------------------------------------------------------------------
Tensor norm_except_dim(T v, I power, I dim) {
  if (dim == -1) return call_tensor_op("aten::norm", v, power);
  const bool first = dim == 0;
  if (!first && dim != v.dim() - 1) {
    const Tensor norm = norm_except_dim(ops::transpose(v, 0, dim), power, 0);
    return ops::transpose(norm, 0, dim);
  }
  Dims sizes = Dims::filled(v.dim(), 1);
  sizes[int(dim)] = v.size(dim);
  const Tensor contiguous = ops::contiguous_tensor(v);
  const Tensor matrix = ops::view(contiguous, first ? Dims{v.size(0), -1} : Dims{-1, v.size(dim)});
  return ops::view(call_tensor_op("aten::norm", matrix, power, Dims{first ? 1 : 0}), sizes);
}
const Op norm_except_dim_op{
    {"aten::norm_except_dim(Tensor v, int pow=2, int dim=0) -> Tensor", Autocast::none, "", "native/WeightNorm.cpp norm_except_dim"},
    norm_except_dim};
const Op sum_to_size_op{{"aten::sum_to_size(Tensor self, SymInt[] size) -> Tensor", Autocast::none, "", "native/ReduceOps.cpp sum_to_size"},
                        +[](T self, const Dims& size) { return ops::sum_to_size(self, size); }};

}  // namespace
}  // namespace memest
