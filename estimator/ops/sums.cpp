// Products, sums that leave elements out, and differences.
// Sources: derivatives.yaml; FunctionsManual.cpp prod_backward, nansum_backward; aten/src/ATen/native/ReduceOps.cpp,
// native/cuda/ReduceSumProdKernel.cu of 2.15.
#include "ops/copy.h"
#include "ops/cub.h"
#include "ops/expression.h"
#include "ops/iterator.h"
#include "ops/loss_reduction.h"
#include "ops/pointwise.h"
#include "ops/reduction_kernels.h"
#include "ops/reductions.h"
#include "ops/views.h"

namespace memest {
namespace {
using I = std::int64_t;
using DimList = std::optional<Dims>;
using Mask = std::vector<bool>;
constexpr const char* kSource = "derivatives.yaml; native/ReduceOps.cpp, native/cuda/ReduceSumProdKernel.cu";

DType sum_type(T x, std::optional<DType> dtype) { return dtype.value_or(is_integral(x.dtype(), true) ? DType::int64 : x.dtype()); }
Tensor sum_like(T self, const Mask& mask, bool keepdim, DType dtype) {
  Tensor y = empty(reduced_sizes(self.sizes(), mask, keepdim), dtype);
  const Tensor input = reduction_input(self, dtype);
  reduce_scratch(input, mask,
                 {.accumulator_size = item_size(op_math_type(dtype)),
                  .input_size = item_size(input.dtype()),
                  .accumulates_in_output = !is_reduced_floating(dtype),
                  .output_size = item_size(dtype)});
  return y;
}

// ---- prod ----------------------------------------------------------------------------------------------------------------
/// Where no element is zero: grad * (result / input).
Tensor quotient_gradient(T g, T input, T result) { return g * (Lazy(result) / input); }
/// (input == 0).nonzero(), which finds none.
void no_zeros(T input) {
  const Tensor zero = compare("aten::eq", input, 0);
  if (!runtime().settings.kernel_scratch()) return;
  Scoped<const char*> scope(runtime().op, "aten::nonzero");
  Scratch count(4);
  { Scratch reduce(cub_reduce(input.numel())); }
  Scratch select(cub_select(input.numel()));
}
Tensor prod(T self, std::optional<DType> dtype) {
  auto fn = node("ProdBackward0", {self}, {self}, [](Backward& w, T x, T result) {
    T g = w.grad[0];
    const Tensor input = ops::to(x, g.dtype());
    if (input.dim() > 0) no_zeros(input);
    w.out[0] = input.dim() == 0 ? g : quotient_gradient(g, input, result);
  });
  Tensor y = sum_like(self, Mask(std::size_t(self.dim()), true), false, sum_type(self, dtype));
  fn.outputs({y}, {y});
  return y;
}
Tensor prod_dim(T self, I dim, bool keepdim, std::optional<DType> dtype) {
  const Mask mask = reduction_mask(Dims{dim}, self.dim());
  auto fn = node("ProdBackward1", {self}, {self}, [mask, keepdim](Backward& w, T x, T y) {
    const Tensor input = ops::to(x, w.grad[0].dtype());
    if (input.dim() == 0) {
      w.out[0] = w.grad[0];
      return;
    }
    const Tensor g = ops::restore_reduced(w.grad[0], mask, keepdim), result = ops::restore_reduced(y, mask, keepdim);
    const Tensor zero = compare("aten::eq", input, 0), zeros = count(zero, mask, true);
    { const Tensor total = ops::sum_kernel(zeros, Mask(std::size_t(zeros.dim()), true), false, DType::int64); }
    w.out[0] = quotient_gradient(g, input, result);
  });
  Tensor y = sum_like(self, mask, keepdim, sum_type(self, dtype));
  fn.outputs({y}, {y});
  return y;
}
const Op prod_op{{"aten::prod(Tensor self, *, ScalarType? dtype=None) -> Tensor", Autocast::fp32_set_dtype, "self, result", kSource}, prod};
const Op prod_dim_op{{"aten::prod.dim_int(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
                      Autocast::fp32_set_dtype, "self, result", kSource},
                     prod_dim};

// ---- nansum, nanmean, count_nonzero -----------------------------------------------------------------------------------------
Tensor nansum(T self, const DimList& dim, bool keepdim, std::optional<DType> dtype) {
  if (is_integral(self.dtype(), true)) return ops::sum_dim(self, dim, keepdim, dtype);
  const Mask mask = reduction_mask(dim, self.dim());
  auto fn = node("NansumBackward0", {self}, {self}, [mask, keepdim](Backward& w, T x) {
    const Tensor g = ops::to(w.grad[0], x.dtype());
    const Tensor expanded = ops::expand(ops::restore_reduced(g, mask, keepdim || x.dim() == 0), x.sizes(), false);
    w.out[0] = expanded * Lazy(x).isnan().logical_not();
  });
  Tensor y = sum_like(self, mask, keepdim, dtype.value_or(self.dtype()));
  fn.outputs({y});
  return y;
}
const Op nansum_op{{"aten::nansum(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor", Autocast::none,
                    "self", kSource},
                   nansum};
Tensor nanmean(T self, const DimList& dim, bool keepdim, std::optional<DType> dtype) {
  if (!is_differentiable(self.dtype()))
    throw Error("nanmean(): expected input to have floating point or complex dtype, found " + describe(self));
  Tensor number;
  {
    const Tensor there = Lazy(detached(self)).isnan();  // logical_not_ in place
    number = count(there, reduction_mask(dim, self.dim()), keepdim);
  }
  const Tensor sum = nansum_op(self, dim, keepdim, dtype);
  return ops::div(sum, number);
}
const Op nanmean_op{{"aten::nanmean(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
                     Autocast::none, "", "native/ReduceOps.cpp nanmean"},
                    nanmean};
Tensor count_nonzero(T self, const DimList& dim) {
  const Mask mask = reduction_mask(dim, self.dim());
  if (self.dtype() == DType::boolean) return count(self, mask, false);
  const Tensor nonzero = compare("aten::ne", self, 0);
  return count(nonzero, mask, false);
}
const Op count_nonzero_op{{"aten::count_nonzero(Tensor self, int? dim=None) -> Tensor", Autocast::none, "",
                           "native/TensorAdvancedIndexing.cpp count_nonzero_cuda"},
                          +[](T self, std::optional<I> dim) { return count_nonzero(self, dim ? DimList(Dims{*dim}) : DimList()); }};
const Op count_nonzero_dims_op{{"aten::count_nonzero.dim_IntList(Tensor self, int[] dim) -> Tensor", Autocast::none, "",
                                "native/TensorAdvancedIndexing.cpp count_nonzero_cuda"},
                               +[](T self, const Dims& dim) { return count_nonzero(self, dim); }};

// ---- diff ------------------------------------------------------------------------------------------------------------------
Tensor diff(T self, I n, I dim_, T prepend, T append) {
  if (self.dim() == 0) throw Error("diff expects input to be at least one-dimensional");
  const I dim = wrap_dim(dim_, self.dim());
  Tensor x = self;
  if (prepend || append) {
    Tensors parts;
    for (T part : {prepend, self, append})
      if (part) parts.push_back(part);
    x = ops::cat(parts, dim);
  }
  for (I i = 0; i < std::min(n, self.size(dim)); ++i) {
    const Tensor before = ops::narrow(x, dim, 0, x.size(dim) - 1), after = ops::narrow(x, dim, 1, x.size(dim) - 1);
    x = x.dtype() == DType::boolean ? call_tensor_op("aten::logical_xor", after, before) : ops::sub(after, before, 1);
  }
  return x;
}
const Op diff_op{{"aten::diff(Tensor self, int n=1, int dim=-1, Tensor? prepend=None, Tensor? append=None) -> Tensor", Autocast::none, "",
                  "native/ReduceOps.cpp diff"},
                 diff};

}  // namespace
}  // namespace memest
