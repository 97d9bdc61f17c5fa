#include "ops/reductions.h"

#include "ops/copy.h"
#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/pointwise.h"
#include "ops/reduction_kernels.h"
#include "ops/views.h"

namespace memest {
namespace {

using DimList = std::optional<Dims>;

DType sum_type(T x, std::optional<DType> dtype) { return dtype.value_or(is_integral(x.dtype(), true) ? DType::int64 : x.dtype()); }

Tensor sum_over(const char* name, T self, const std::vector<bool>& mask, bool keepdim, DType dtype) {
  auto fn = node(name, {self}, {}, [mask, keepdim](Backward& w) {  // sum_backward
    w.out[0] = ops::expand(ops::restore_reduced(w.grad[0], mask, keepdim || w.sizes(0).empty()), w.sizes(0), false);
  });
  Tensor y = ops::sum_kernel(self, mask, keepdim, dtype);
  fn.outputs({y});
  return y;
}
Tensor sum(T self, std::optional<DType> dtype) {
  return sum_over("SumBackward0", self, reduction_mask({}, self.dim()), false, sum_type(self, dtype));
}
Tensor sum_dim(T self, const DimList& dim, bool keepdim, std::optional<DType> dtype) {
  return sum_over("SumBackward1", self, reduction_mask(dim, self.dim()), keepdim, sum_type(self, dtype));
}

/// native/cuda/ReduceMomentKernel.cu: MeanOps accumulates in float.
Tensor mean_over(const char* name, T self, const std::vector<bool>& mask, bool keepdim, DType dtype) {
  if (!is_differentiable(dtype))
    throw Error("mean(): could not infer output dtype: the input must be floating point or complex, found " + describe(self));
  auto fn = node(name, {self}, {}, [mask, keepdim](Backward& w) {  // mean_backward: expand, then divide
    Tensor expanded = ops::expand(ops::restore_reduced(w.grad[0], mask, keepdim || w.sizes(0).empty()), w.sizes(0), false);
    w.out[0] = ops::div_scalar(expanded, 2);
  });
  Tensor y = empty(reduced_sizes(self.sizes(), mask, keepdim), dtype);
  const Tensor input = reduction_input(self, dtype);
  const int accumulator = item_size(op_math_type(dtype));
  reduce_scratch(input, mask,
                 {.accumulator_size = accumulator,
                  .input_size = item_size(input.dtype()),
                  .accumulates_in_output = !is_reduced_floating(dtype) || is_complex(dtype),
                  .output_size = item_size(dtype)});
  fn.outputs({y});
  return y;
}
Tensor mean(T self, std::optional<DType> dtype) {
  return mean_over("MeanBackward0", self, reduction_mask({}, self.dim()), false, dtype.value_or(self.dtype()));
}
Tensor mean_dim(T self, const DimList& dim, bool keepdim, std::optional<DType> dtype) {
  return mean_over("MeanBackward1", self, reduction_mask(dim, self.dim()), keepdim, dtype.value_or(self.dtype()));
}

constexpr const char* kReduce = "derivatives.yaml; aten/src/ATen/native/ReduceOps.cpp, native/cuda/Reduce.cuh";

Tensor ones_like(T x) { return ops::ones_like(x, std::nullopt, std::nullopt); }
Tensor cast(T gradient, DType dtype) { return ops::to(gradient, dtype); }
Tensor add(T a, T b) { return ops::add(a, b, 1); }
Tensor new_empty_strided_copy(T gradient, const Dims& sizes, const Dims& strides) {
  return empty_strided(sizes, strides, gradient.dtype());
}
Tensor clone_contiguous(T gradient) { return ops::clone(gradient, MemoryFormat::contiguous); }
Tensor new_zeros(T like, const Dims& sizes) { return ops::zeros(sizes, like.dtype()); }

/// What the engine needs of ops.
[[maybe_unused]] const bool engine_ops_set = [] {
  engine_ops = {ones_like, ops::sum_to_size, cast, add, new_empty_strided_copy, clone_contiguous, new_zeros};
  return true;
}();

}  // namespace

Tensor reduction_input(T x, DType dtype) {
  const bool as_it_is = x.dtype() == dtype || (is_reduced_floating(x.dtype()) && dtype == DType::float32);
  return as_it_is || !runtime().settings.kernel_scratch() ? x : empty_like(x, dtype);
}
Tensor reduced(T x, const std::vector<bool>& mask, bool keepdim, DType dtype, const Accumulator& state) {
  return ops::reduce_kernel(x, mask, keepdim, dtype,
                            {.accumulator_size = state.size,
                             .input_size = item_size(x.dtype()),
                             .input_vec_size = state.vec,
                             .accumulates_in_output = state.in_output,
                             .output_size = item_size(dtype)});
}
Tensor count(T mask, const std::vector<bool>& dims, bool keepdim) {
  Scoped<const char*> scope(runtime().op, "aten::sum");
  return ops::sum_kernel(mask, dims, keepdim, DType::int64);
}

namespace ops {
const Op<Tensor(T, std::optional<DType>)> sum{
    {"aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor", Autocast::fp32_set_dtype, "", kReduce}, memest::sum};
const Op<Tensor(T, const std::optional<Dims>&, bool, std::optional<DType>)> sum_dim{
    {"aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor", Autocast::fp32_set_dtype,
     "", kReduce},
    memest::sum_dim};
const Op<Tensor(T, std::optional<DType>)> mean{
    {"aten::mean(Tensor self, *, ScalarType? dtype=None) -> Tensor", Autocast::none, "", kReduce}, memest::mean};
const Op<Tensor(T, const std::optional<Dims>&, bool, std::optional<DType>)> mean_dim{
    {"aten::mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor", Autocast::none, "", kReduce},
    memest::mean_dim};

Tensor restore_reduced(T x, const std::vector<bool>& mask, bool keepdim) {
  Tensor y = x;
  if (keepdim) return y;
  for (std::size_t i = 0; i < mask.size(); ++i)
    if (mask[i]) y = ops::unsqueeze(y, std::int64_t(i));
  return y;
}
Tensor reduce_kernel(T x, const std::vector<bool>& mask, bool keepdim, DType dtype, const ReduceKernel& kernel) {
  Tensor y = empty(reduced_sizes(x.sizes(), mask.empty() ? std::vector<bool>(std::size_t(x.dim()), true) : mask, keepdim), dtype);
  reduce_scratch(x, mask.empty() ? std::vector<bool>(std::size_t(x.dim()), true) : mask, kernel);
  return y;
}
Tensor sum_kernel(T x, const std::vector<bool>& mask, bool keepdim, DType dtype) {
  Tensor y = empty(reduced_sizes(x.sizes(), mask, keepdim), dtype);
  // native/cuda/ReduceSumProdKernel.cu: half types load eight at a time along the input
  const Tensor input = reduction_input(x, dtype);
  const bool half = is_reduced_floating(input.dtype());
  reduce_scratch(input, mask,
                 {.accumulator_size = item_size(op_math_type(dtype)),
                  .input_size = item_size(input.dtype()),
                  .input_vec_size = half ? 8 : 4,
                  .accumulates_in_output = !is_reduced_floating(dtype),
                  .output_size = item_size(dtype)});
  return y;
}

Tensor sum_to_size(T x, const Dims& sizes) {
  if (x.sizes() == sizes) return x;
  if (sizes.empty()) return sum(x, std::nullopt);
  const int extra = x.dim() - sizes.size();
  if (extra < 0) throw Error("a gradient of sizes " + to_string(x.sizes()) + " cannot be summed to " + to_string(sizes));
  Dims dims;
  for (int i = 0; i < x.dim(); ++i)
    if (i < extra || (sizes[i - extra] == 1 && x.sizes()[i] != 1)) dims.push_back(i);
  Tensor y = dims.empty() ? x : sum_dim(x, dims, true, std::nullopt);
  return extra > 0 ? view(y, sizes) : y;
}
}  // namespace ops
}  // namespace memest
