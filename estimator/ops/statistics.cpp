// Variances, extremes and other reductions (derivatives.yaml; FunctionsManual.cpp; aten/src/ATen/native/ReduceOps.cpp,
// native/cuda/Reduce{Moment,Max,Min,Logic,ArgMax}*.cu).
#include "ops/copy.h"
#include "ops/expression.h"
#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/pointwise.h"
#include "ops/reduction_kernels.h"
#include "ops/reductions.h"
#include "ops/views.h"

namespace memest {
namespace {
using I = std::int64_t;
using DimList = std::optional<Dims>;
using Mask = std::vector<bool>;
constexpr const char* kSource = "derivatives.yaml; aten/src/ATen/native/ReduceOps.cpp";

Mask mask_of(T x, const DimList& dims) { return reduction_mask(dims && dims->empty() ? DimList() : dims, x.dim()); }
void check_floating(const char* op, T x) {
  if (!is_floating(x.dtype())) throw Error(std::string(op) + ": the input must be floating point, found " + describe(x));
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
  return reduced(x, mask, keepdim, x.dtype(), {.size = x.dtype() == DType::float64 ? 32 : 16, .in_output = false, .vec = 2});
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
  const Op NAME##_all{{"aten::" #NAME "(Tensor self, bool unbiased=True) -> " RESULT, Autocast::none, "self", kSource},                    \
                      +[](T self, bool) { return FUNCTION(self, std::nullopt, false); }};                                                  \
  const Op NAME##_dim{{"aten::" #NAME ".dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> " RESULT, Autocast::none, \
                       "self", kSource},                                                                                                   \
                      +[](T self, const DimList& dim, bool, bool keepdim) { return FUNCTION(self, dim, keepdim); }};                       \
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
  Tensor y = reduced(self, mask, keepdim, self.dtype(), {item_size(self.dtype())});
  fn.outputs({y}, {y});
  return y;
}
const Op amax_op{{"aten::amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor", Autocast::none, "self, result", kSource},
                 +[](T self, const Dims& dim, bool keepdim) { return extreme(self, dim, keepdim, "AmaxBackward0"); }};
const Op amin_op{{"aten::amin(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor", Autocast::none, "self, result", kSource},
                 +[](T self, const Dims& dim, bool keepdim) { return extreme(self, dim, keepdim, "AminBackward0"); }};
/// max, min of all elements.
Tensor extreme_of_all(T self, const char* name) {
  auto fn = node(name, {self}, {self}, [](Backward& w, T x, T y) { w.out[0] = evenly_distribute_backward(w.grad[0], x, y); });
  Tensor y = reduced(self, Mask(std::size_t(self.dim()), true), false, self.dtype(), {item_size(self.dtype())});
  if (!is_contiguous(self)) Scratch copy(checked_mul(self.numel(), item_size(self.dtype())));  // native/ReduceAllOps.cpp
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
  return reduced(self, mask_of(self, dim ? DimList(Dims{*dim}) : DimList()), keepdim, DType::int64, {.size = 16, .in_output = false});
}
const Op argmax_op{{"aten::argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor", Autocast::none, "", kSource}, place};
const Op argmin_op{{"aten::argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor", Autocast::none, "", kSource}, place};

// ---- aminmax -------------------------------------------------------------------------------------------------------------
/// scale_grad_by_count: the gradient shared among the elements that equal the extreme.
Tensor shared_among(T equal, T gradient, const Mask& mask) {
  const Tensor number = count(equal, mask, true);
  const Tensor each = ops::binary("aten::div", gradient, number, gradient.dtype());
  return ops::binary("aten::mul", each, equal, gradient.dtype());
}
std::tuple<Tensor, Tensor> aminmax(T self, std::optional<I> dim, bool keepdim) {
  const Mask mask = mask_of(self, dim ? DimList(Dims{*dim}) : DimList());
  auto fn = node("AminmaxBackward0", {self}, {self}, [mask, keepdim](Backward& w, T x, T least, T most) {
    const bool keeps = keepdim || x.dim() == 0;
    auto gradient = [&](T g, T value) -> Tensor {
      if (!g) return {};
      const Tensor equal = compare("aten::eq", ops::restore_reduced(value, mask, keeps), x);
      return shared_among(equal, ops::restore_reduced(g, mask, keeps), mask);
    };
    w.out[0] = gradient(w.grad[0], least);
    if (!w.grad[1]) return;
    if (!w.out[0]) {
      w.out[0] = gradient(w.grad[1], most);
      return;
    }
    const Tensor equal = compare("aten::eq", ops::restore_reduced(most, mask, keeps), x);  // added in place
    const Tensor of_most = shared_among(equal, ops::restore_reduced(w.grad[1], mask, keeps), mask);
  });
  Tensor least = empty(reduced_sizes(self.sizes(), mask, keepdim), self.dtype()), most = empty(least.sizes(), self.dtype());
  reduce_scratch(self, mask,
                 {.accumulator_size = 2 * item_size(self.dtype()),
                  .input_size = item_size(self.dtype()),
                  .accumulates_in_output = false,
                  .output_size = item_size(self.dtype())});
  fn.outputs({least, most}, {least, most});
  return {least, most};
}
const Op aminmax_op{{"aten::aminmax(Tensor self, *, int? dim=None, bool keepdim=False) -> (Tensor min, Tensor max)", Autocast::none,
                     "self, min, max", kSource},
                    aminmax};

// ---- any, all ------------------------------------------------------------------------------------------------------------
/// One element is converted and copied (native/ReduceOps.cpp allany_impl).
Tensor truth(T self, const DimList& dim, bool keepdim) {
  Tensor y = reduced(self, mask_of(self, dim), keepdim, DType::boolean, {1});
  if (self.numel() == 1 && self.dtype() != DType::boolean && runtime().settings.kernel_scratch())
    const Tensor converted = empty_like(self, DType::boolean);
  return y;
}
#define MEMEST_TRUTH(NAME)                                                                                                                \
  const Op NAME##_dim{{"aten::" #NAME ".dim(Tensor self, int dim, bool keepdim=False) -> Tensor", Autocast::none, "", kSource},           \
                      +[](T self, I dim, bool keepdim) { return truth(self, Dims{dim}, keepdim); }};                                      \
  const Op NAME##_dims{{"aten::" #NAME ".dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor", Autocast::none, "", kSource}, \
                       truth};
MEMEST_TRUTH(any)
MEMEST_TRUTH(all)
#undef MEMEST_TRUTH

// ---- logsumexp -----------------------------------------------------------------------------------------------------
/// Integers become floats first.
Tensor logsumexp(T given, const Dims& dim, bool keepdim) {
  const Tensor self = is_integral(given.dtype(), true) ? ops::to(given, DType::float32) : given;
  const Mask mask = mask_of(self, dim);
  auto fn = node("LogsumexpBackward0", {self}, {self}, [mask, keepdim](Backward& w, T x, T y) {
    const bool keeps = keepdim || x.dim() == 0;
    const Tensor g = ops::restore_reduced(w.grad[0], mask, keeps), result = ops::restore_reduced(y, mask, keeps);
    w.out[0] = g * (Lazy(x) - result).exp();
  });
  Tensor largest = reduced(self, mask, true, self.dtype(), {item_size(self.dtype())});
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
const Op special_logsumexp_op{
    {"aten::special_logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor", Autocast::none, "self, result", kSource},
    +[](T self, const Dims& dim, bool keepdim) { return logsumexp_op(self, dim, keepdim); }};

}  // namespace

Tensor evenly_distribute_backward(T g, T x, T value) {
  const Tensor equal = compare("aten::eq", x, value);
  const Tensor value_nan = compare("aten::isnan", value, value);
  const Tensor either = compare("aten::isnan", x, x);
  const Tensor number = count(either, Mask(std::size_t(x.dim()), true), false);
  const Tensor each = ops::binary("aten::div", g, number, g.dtype());
  return ops::binary("aten::mul", either, each, g.dtype());
}
}  // namespace memest
