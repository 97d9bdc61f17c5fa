// Variances, extremes, norms and other reductions (derivatives.yaml; FunctionsManual.cpp; aten/src/ATen/native/ReduceOps.cpp,
// native/cuda/Reduce{Moment,Max,Min,Norm,Logic,ArgMax}*.cu, LinearAlgebra.cpp, Distance.cpp).
#include <cmath>

#include "ops/copy.h"
#include "ops/expression.h"
#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/views.h"

namespace memest {
namespace {
using I = std::int64_t;
using DimList = std::optional<Dims>;
using Mask = std::vector<bool>;
constexpr const char* kSource = "derivatives.yaml; aten/src/ATen/native/ReduceOps.cpp";

/// One reduction: `accumulator` bytes of state for each output; state of another kind than the output cannot wait in it.
Tensor reduced(T x, const Mask& mask, bool keepdim, DType dtype, int accumulator, bool in_output, int vec = 4) {
  return ops::reduce_kernel(x, mask, keepdim, dtype,
                            {.accumulator_size = accumulator,
                             .input_size = item_size(x.dtype()),
                             .input_vec_size = vec,
                             .accumulates_in_output = in_output,
                             .output_size = item_size(dtype)});
}
Mask mask_of(T x, const DimList& dims) { return reduction_mask(dims && dims->empty() ? DimList() : dims, x.dim()); }
void check_floating(const char* op, T x) {
  if (!is_floating(x.dtype())) throw Error(std::string(op) + ": the input must be floating point, found " + describe(x));
}
/// at::sum of a mask: it becomes int64 first.
Tensor count(T mask, const Mask& dims, bool keepdim) {
  Scoped<const char*> scope(runtime().op, "aten::sum");
  Tensor y = empty(reduced_sizes(mask.sizes(), dims, keepdim), DType::int64);
  const Tensor numbers = empty_like(mask, DType::int64);
  reduce_scratch(numbers, dims, {.accumulator_size = 8, .input_size = 8, .output_size = 8});
  return y;
}

// ---- var, std ------------------------------------------------------------------------------------------------------------
Tensor var_backward(T g, T x, const Mask& mask, bool keepdim) {
  const Tensor restored = ops::restore_reduced(g, mask, keepdim || x.dim() == 0);
  Tensor mean;
  {
    NoGrad guard;
    Dims dims;
    for (int i = 0; i < x.dim(); ++i)
      if (mask[std::size_t(i)]) dims.push_back(i);
    mean = ops::mean_dim(x, dims, true, std::nullopt);
  }
  const Tensor centered = ops::binary("aten::sub", x, mean);
  const Tensor scaled = ops::unary("aten::mul", restored);
  return ops::binary("aten::mul", scaled, centered);
}
/// WelfordData: mean, m2, count twice, four bytes each (or eight for float64).
Tensor moment(T x, const Mask& mask, bool keepdim) {
  return reduced(x, mask, keepdim, x.dtype(), x.dtype() == DType::float64 ? 32 : 16, false, 2);
}
Tensor var(T self, const DimList& dim, bool keepdim) {
  check_floating("var", self);
  const Mask mask = mask_of(self, dim);
  auto fn =
      node("VarBackward0", {self}, {self}, [mask, keepdim](Backward& w, T x) { w.out[0] = var_backward(w.grad[0], x, mask, keepdim); });
  Tensor y = moment(self, mask, keepdim);
  fn.outputs({y});
  return y;
}
Tensor std_backward(T g, T x, T y, const Mask& mask, bool keepdim) {
  const Tensor of_var = (g / (Lazy(y) * 2)).masked_fill_(compare("aten::eq", y, 0));
  return var_backward(of_var, x, mask, keepdim);
}
Tensor std_of(T self, const DimList& dim, bool keepdim) {
  check_floating("std", self);
  const Mask mask = mask_of(self, dim);
  auto fn = node("StdBackward0", {self}, {self},
                 [mask, keepdim](Backward& w, T x, T y) { w.out[0] = std_backward(w.grad[0], x, y, mask, keepdim); });
  Tensor y = moment(self, mask, keepdim);
  fn.outputs({y}, {y});
  return y;
}
/// var_mean, std_mean: both from one pass.
template <bool Root>
std::tuple<Tensor, Tensor> with_mean(T self, const DimList& dim, bool keepdim) {
  check_floating("var_mean", self);
  const Mask mask = mask_of(self, dim);
  auto fn = node(Root ? "StdMeanBackward0" : "VarMeanBackward0", {self}, {self}, [mask, keepdim](Backward& w, const Tensors& saved) {
    T x = saved[0];
    Tensor sum;
    if (w.grad[0]) sum = Root ? std_backward(w.grad[0], x, saved[1], mask, keepdim) : var_backward(w.grad[0], x, mask, keepdim);
    if (w.grad[1]) {
      const Tensor expanded = ops::expand(ops::restore_reduced(w.grad[1], mask, keepdim || x.dim() == 0), x.sizes(), false);
      const Tensor of_mean = ops::unary("aten::div", expanded);
      sum = sum ? ops::binary("aten::add", sum, of_mean) : of_mean;
    }
    w.out[0] = sum;
  });
  Tensor y = empty(reduced_sizes(self.sizes(), mask, keepdim), self.dtype());
  const Tensor mean = empty(y.sizes(), self.dtype());
  reduce_scratch(self, mask,
                 {.accumulator_size = self.dtype() == DType::float64 ? 32 : 16,
                  .input_size = item_size(self.dtype()),
                  .input_vec_size = 2,
                  .accumulates_in_output = false,
                  .output_size = item_size(self.dtype())});
  if constexpr (Root)
    fn.outputs({y, mean}, {y});
  else
    fn.outputs({y, mean});
  return {y, mean};
}
#define MEMEST_MOMENT(NAME, RESULT, FUNCTION)                                                                                              \
  const Op NAME##_dim{{"aten::" #NAME ".dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> " RESULT, Autocast::none, \
                       "self", kSource},                                                                                                   \
                      +[](T self, const DimList& dim, bool, bool keepdim) { return FUNCTION(self, dim, keepdim); }};                       \
  const Op NAME##_all{{"aten::" #NAME "(Tensor self, bool unbiased=True) -> " RESULT, Autocast::none, "self", kSource},                    \
                      +[](T self, bool) { return FUNCTION(self, std::nullopt, false); }};                                                  \
  const Op NAME##_correction{                                                                                                              \
      {"aten::" #NAME ".correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> " RESULT,             \
       Autocast::none, "self", kSource},                                                                                                   \
      +[](T self, const DimList& dim, const std::optional<Scalar>&, bool keepdim) { return FUNCTION(self, dim, keepdim); }};
MEMEST_MOMENT(var, "Tensor", var)
MEMEST_MOMENT(std, "Tensor", std_of)
MEMEST_MOMENT(var_mean, "(Tensor, Tensor)", with_mean<false>)
MEMEST_MOMENT(std_mean, "(Tensor, Tensor)", with_mean<true>)
#undef MEMEST_MOMENT

// ---- extremes ------------------------------------------------------------------------------------------------------------
/// amax, amin: the gradient is shared among equal elements.
Tensor extreme(T self, const Dims& dim, bool keepdim, const char* name) {
  const Mask mask = mask_of(self, dim);
  auto fn = node(name, {self}, {self}, [mask, keepdim](Backward& w, T x, T y) {
    const bool keeps = keepdim || x.dim() == 0;
    const Tensor g = ops::restore_reduced(w.grad[0], mask, keeps), value = ops::restore_reduced(y, mask, keeps);
    const Tensor equal = compare("aten::eq", value, x);
    const Tensor number = count(equal, mask, true);
    const Tensor each = ops::binary("aten::div", g, number, g.dtype());
    w.out[0] = ops::binary("aten::mul", each, equal, g.dtype());
  });
  Tensor y = reduced(self, mask, keepdim, self.dtype(), item_size(self.dtype()), true);
  fn.outputs({y}, {y});
  return y;
}
const Op amax_op{{"aten::amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor", Autocast::none, "self, result", kSource},
                 +[](T self, const Dims& dim, bool keepdim) { return extreme(self, dim, keepdim, "AmaxBackward0"); }};
const Op amin_op{{"aten::amin(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor", Autocast::none, "self, result", kSource},
                 +[](T self, const Dims& dim, bool keepdim) { return extreme(self, dim, keepdim, "AminBackward0"); }};
/// max, min of all elements: evenly_distribute_backward.
Tensor extreme_of_all(T self, const char* name) {
  const Mask mask(std::size_t(self.dim()), true);
  auto fn = node(name, {self}, {self}, [mask](Backward& w, T x, T y) {
    const Tensor equal = compare("aten::eq", x, y);
    const Tensor value_nan = compare("aten::isnan", y, y);
    const Tensor either = compare("aten::isnan", x, x);
    const Tensor number = count(either, mask, false);
    const Tensor each = ops::binary("aten::div", w.grad[0], number, w.grad[0].dtype());
    w.out[0] = ops::binary("aten::mul", either, each, w.grad[0].dtype());
  });
  Tensor y = reduced(self, mask, false, self.dtype(), item_size(self.dtype()), true);
  fn.outputs({y}, {y});
  return y;
}
const Op max_op{{"aten::max(Tensor self) -> Tensor", Autocast::none, "self, result", kSource},
                +[](T self) { return extreme_of_all(self, "MaxBackward1"); }};
const Op min_op{{"aten::min(Tensor self) -> Tensor", Autocast::none, "self, result", kSource},
                +[](T self) { return extreme_of_all(self, "MinBackward1"); }};
/// Values with their places: the state is a pair of sixteen bytes. value_selecting_reduction_backward scatters into zeros.
std::tuple<Tensor, Tensor> extreme_with_index(T self, I dim, bool keepdim, const char* name) {
  const Mask mask = reduction_mask(Dims{dim}, self.dim());
  auto fn = node(name, {self}, {}, [](Backward& w, T) { w.out[0] = ops::zeros(w.sizes(0), w.grad[0].dtype()); });
  Tensor values = empty(reduced_sizes(self.sizes(), mask, keepdim), self.dtype());
  const Tensor indices = empty(values.sizes(), DType::int64);
  reduce_scratch(self, mask,
                 {.accumulator_size = 16,
                  .input_size = item_size(self.dtype()),
                  .accumulates_in_output = false,
                  .output_size = item_size(self.dtype())});
  fn.outputs({values}, {indices});
  return {values, indices};
}
const Op max_dim{
    {"aten::max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)", Autocast::none, "indices", kSource},
    +[](T self, I dim, bool keepdim) { return extreme_with_index(self, dim, keepdim, "MaxBackward0"); }};
const Op min_dim{
    {"aten::min.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)", Autocast::none, "indices", kSource},
    +[](T self, I dim, bool keepdim) { return extreme_with_index(self, dim, keepdim, "MinBackward0"); }};
Tensor place(T self, std::optional<I> dim, bool keepdim) {
  return reduced(self, mask_of(self, dim ? DimList(Dims{*dim}) : DimList()), keepdim, DType::int64, 16, false);
}
const Op argmax_op{{"aten::argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor", Autocast::none, "", kSource}, place};
const Op argmin_op{{"aten::argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor", Autocast::none, "", kSource}, place};

// ---- any, all ------------------------------------------------------------------------------------------------------------
Tensor truth(T self, const DimList& dim, bool keepdim) { return reduced(self, mask_of(self, dim), keepdim, DType::boolean, 1, true); }
#define MEMEST_TRUTH(NAME)                                                                                                                \
  const Op NAME##_dim{{"aten::" #NAME ".dim(Tensor self, int dim, bool keepdim=False) -> Tensor", Autocast::none, "", kSource},           \
                      +[](T self, I dim, bool keepdim) { return truth(self, Dims{dim}, keepdim); }};                                      \
  const Op NAME##_dims{{"aten::" #NAME ".dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor", Autocast::none, "", kSource}, \
                       truth};
MEMEST_TRUTH(any)
MEMEST_TRUTH(all)
#undef MEMEST_TRUTH

// ---- logsumexp, cumsum -----------------------------------------------------------------------------------------------------
Tensor logsumexp(T self, const Dims& dim, bool keepdim) {
  check_floating("logsumexp", self);
  const Mask mask = mask_of(self, dim);
  auto fn = node("LogsumexpBackward0", {self}, {self}, [mask, keepdim](Backward& w, T x, T y) {
    const bool keeps = keepdim || x.dim() == 0;
    const Tensor g = ops::restore_reduced(w.grad[0], mask, keeps), result = ops::restore_reduced(y, mask, keeps);
    w.out[0] = g * (Lazy(x) - result).exp();
  });
  Tensor largest = reduced(self, mask, true, self.dtype(), item_size(self.dtype()), true);
  {  // infinite ones become zero
    const Tensor absolute = ops::unary("aten::abs", largest);
    const Tensor infinite = empty_like(absolute, DType::boolean);
  }
  Tensor exponentials = ops::binary("aten::sub", self, largest);  // exp_ in place
  Tensor y = ops::sum_kernel(exponentials, mask, keepdim, self.dtype());
  exponentials.reset();
  largest.reset();
  fn.outputs({y}, {y});
  return y;
}
const Op logsumexp_op{{"aten::logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor", Autocast::fp32, "self, result", kSource},
                      logsumexp};

Tensor cumsum(T self, I dim, std::optional<DType> dtype) {
  const int d = self.dim() ? wrap_dim(dim, self.dim()) : 0;
  const DType type = dtype.value_or(is_integral(self.dtype(), true) ? DType::int64 : self.dtype());
  auto fn = node("CumsumBackward0", {self}, {}, [d](Backward& w) {
    const Tensor g = ops::to(w.grad[0], w.dtype(0));
    if (g.numel() <= 1 || g.size(d) == 1) {
      w.out[0] = g;
      return;
    }
    const Tensor flipped = empty_like(g);
    const Tensor sums = empty_like(flipped);
    w.out[0] = empty_like(sums);
  });
  Tensor y = empty_like(self, type);
  if (type != self.dtype()) const Tensor converted = empty_like(self, type);
  fn.outputs({y});
  return y;
}
const Op cumsum_op{{"aten::cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor", Autocast::fp32_set_dtype, "",
                    "derivatives.yaml cumsum; native/cuda/ScanKernels.cpp"},
                   cumsum};

// ---- norms -----------------------------------------------------------------------------------------------------------------
/// FunctionsManual.cpp norm_backward.
Tensor norm_backward(T g, T x, double p, T norm) {
  if (p == 0) return {};
  if (p == 1) return Lazy(x).sgn() * g;
  if (p == 2) return g * (Lazy(x) / norm).masked_fill_(compare("aten::eq", norm, 0));
  if (std::isinf(p)) throw Error("linalg_vector_norm: the gradient of the infinite norm is not modelled");
  Tensor power = Lazy(x).abs();  // pow_ in place where p < 2
  if (p < 1) throw Error("linalg_vector_norm: the gradient of norms below 1 is not modelled");
  power = p < 2 ? Tensor(Lazy(x).sgn() * power) : Tensor(Lazy(x) * Lazy(power).pow(p - 2));
  const Tensor scale = (g / Lazy(norm).pow(p - 1)).masked_fill_(compare("aten::eq", norm, 0));
  return Lazy(power) * scale;
}
Tensor vector_norm(T self, const Scalar& ord, const DimList& dim, bool keepdim, std::optional<DType> dtype) {
  if (!is_differentiable(self.dtype()))
    throw Error("linalg.vector_norm: expected a floating point or complex tensor as input, found " + describe(self));
  const Mask mask = mask_of(self, dim);
  auto fn = node("LinalgVectorNormBackward0", {self}, {self}, [mask, keepdim, p = ord.to_double()](Backward& w, T x, T y) {
    const bool keeps = keepdim || x.dim() == 0;
    const Tensor g = ops::restore_reduced(w.grad[0], mask, keeps), norm = ops::restore_reduced(y, mask, keeps);
    w.out[0] = norm_backward(g, x, p, norm);
  });
  const DType type = dtype.value_or(real_type(self.dtype()));
  Tensor y = reduced(self, mask, keepdim, type, item_size(op_math_type(type)), !is_reduced_floating(type));
  fn.outputs({y}, {y});
  return y;
}
const Op vector_norm_op{
    {"aten::linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
     Autocast::fp32_set_dtype, "self, result", "derivatives.yaml; native/cuda/ReduceNormKernel.cu"},
    vector_norm};

/// Each tensor over its own norm, clamped in place without grad.
Tensor cosine_similarity(T x1, T x2, I dim, double) {
  const Dims sizes = broadcast(x1.sizes(), x2.sizes());
  const Tensor a = ops::expand(x1, sizes, false), b = ops::expand(x2, sizes, false);
  auto norm_of = [dim](T x) {
    const Tensor norm = vector_norm_op(x, 2, Dims{dim}, true, std::nullopt);
    return ops::clone(norm, std::nullopt);
  };
  const Tensor norm1 = norm_of(a);
  const Tensor norm2 = norm_of(b);
  const Tensor right = ops::div(b, norm2);
  const Tensor left = ops::div(a, norm1);
  const Tensor product = ops::mul(left, right);
  return ops::sum_dim(product, Dims{dim}, false, std::nullopt);
}
const Op cosine_similarity_op{{"aten::cosine_similarity(Tensor x1, Tensor x2, int dim=1, float eps=1e-08) -> Tensor", Autocast::fp32, "",
                               "native/Distance.cpp cosine_similarity"},
                              cosine_similarity};

}  // namespace
}  // namespace memest
