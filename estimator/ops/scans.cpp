// Cumulative sums, products, extremes and logarithms of sums of exponentials.
// Sources: derivatives.yaml; FunctionsManual.cpp cumsum_backward, cumprod_backward (ReduceOps.cpp), logcumsumexp_backward,
// cummaxmin_backward; aten/src/ATen/native/ReduceOps.cpp, native/cuda/ScanKernels.cpp, ScanUtils.cuh of 2.15.
#include "ops/copy.h"
#include "ops/cub.h"
#include "ops/expression.h"
#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/pointwise.h"
#include "ops/pointwise_rules.h"
#include "ops/reduction_kernels.h"

namespace memest {
namespace {
using I = std::int64_t;
constexpr const char* kSource = "derivatives.yaml; native/cuda/ScanKernels.cpp, ScanUtils.cuh";

int scanned_dim(T x, I dim) { return x.dim() ? wrap_dim(dim, x.dim()) : 0; }
/// scan_dim: a contiguous copy of the input; one row goes to cub's scan.
void scan_scratch(T x, int dim) {
  if (!runtime().settings.kernel_scratch() || x.dim() == 0 || x.numel() == 0) return;
  NoGrad below;
  const Tensor input = ops::contiguous_tensor(x);
  if (x.numel() == x.size(dim)) Scratch scan(cub_scan(x.numel(), item_size(x.dtype())));
}
/// The kernel over an input of the result's own type.
Tensor scan(const char* op, T x, int dim) {
  Scoped<const char*> scope(runtime().op, op);
  Tensor y = empty(x.sizes(), x.dtype());
  scan_scratch(x, dim);
  return y;
}
Tensor flip(T x) {
  Scoped<const char*> scope(runtime().op, "aten::flip");
  return empty_like(x);
}
/// x.flip(dim).cumsum(dim).flip(dim) and the like.
Tensor reversed(const char* op, T x, int dim) {
  const Tensor flipped = flip(x), scanned = scan(op, flipped, dim);
  return flip(scanned);
}
/// The result, then the input in its type.
Tensor converted_scan(T self, int dim, DType type) {
  Tensor y = empty(self.sizes(), type);
  const Tensor x = self.dtype() == type || !runtime().settings.kernel_scratch() ? self : empty_like(self, type);
  scan_scratch(x, dim);
  return y;
}
DType scan_type(T self, std::optional<DType> dtype) {
  return dtype.value_or(is_integral(self.dtype(), true) ? DType::int64 : self.dtype());
}

// ---- cumsum --------------------------------------------------------------------------------------------------------------
auto cumsum_formula(int dim) {
  return [dim](Backward& w) {
    const Tensor g = ops::to(w.grad[0], w.dtype(0));
    w.out[0] = g.numel() <= 1 || g.size(dim) == 1 ? g : reversed("aten::cumsum", g, dim);
  };
}
Tensor cumsum(T self, I dim_, std::optional<DType> dtype) {
  const int dim = scanned_dim(self, dim_);
  auto fn = node("CumsumBackward0", {self}, {}, cumsum_formula(dim));
  Tensor y = converted_scan(self, dim, scan_type(self, dtype));
  fn.outputs({y});
  return y;
}
Tensor cumsum_(T self, I dim_, std::optional<DType>) {
  const int dim = scanned_dim(self, dim_);
  node("CumsumBackward0", {self}, {}, cumsum_formula(dim)).in_place(self);
  scan_scratch(self, dim);
  return self;
}
const Op cumsum_op{{"aten::cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor", Autocast::fp32_set_dtype, "", kSource},
                   cumsum};
const Op cumsum_in_place{{"aten::cumsum_(Tensor(a!) self, int dim, *, ScalarType? dtype=None) -> Tensor(a!)", Autocast::none, "", kSource},
                         cumsum_};

// ---- cumprod -------------------------------------------------------------------------------------------------------------
/// Where no element is zero; the general case is not modelled.
void cumprod_backward(Backward& w, T x, T y, int dim) {
  const Tensor g = ops::to(w.grad[0], x.dtype());
  if (x.numel() <= 1 || x.size(dim) == 1) {
    w.out[0] = g;
    return;
  }
  const Tensor product = Lazy(y) * g;
  const Tensor zero = compare("aten::eq", x, 0);
  { const Tensor any = reduced(zero, reduction_mask({}, zero.dim()), false, DType::boolean, {1}); }
  const Tensor sums = reversed("aten::cumsum", product, dim);
  w.out[0] = ops::binary("aten::div", sums, x);
}
auto cumprod_formula(int dim) {
  return [dim](Backward& w, T x, T y) { cumprod_backward(w, x, y, dim); };
}
Tensor cumprod(T self, I dim_, std::optional<DType> dtype) {
  const int dim = scanned_dim(self, dim_);
  auto fn = node("CumprodBackward0", {self}, {self}, cumprod_formula(dim));
  Tensor y = converted_scan(self, dim, scan_type(self, dtype));
  fn.outputs({y}, {y});
  return y;
}
Tensor cumprod_(T self, I dim_, std::optional<DType>) {
  const int dim = scanned_dim(self, dim_);
  Tensor original = original_of(self, self.requires_grad());
  auto fn = node("CumprodBackward0", {self}, {original}, cumprod_formula(dim));
  original.reset();
  scan_scratch(self, dim);
  fn.in_place(self, {self});
  return self;
}
const Op cumprod_op{
    {"aten::cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor", Autocast::fp32_set_dtype, "self, result", kSource},
    cumprod};
const Op cumprod_in_place{
    {"aten::cumprod_(Tensor(a!) self, int dim, *, ScalarType? dtype=None) -> Tensor(a!)", Autocast::none, "self, result", kSource},
    cumprod_};

// ---- cummax, cummin ------------------------------------------------------------------------------------------------------
/// Values with their places; the gradient is scattered into zeros.
template <Text Node>
std::tuple<Tensor, Tensor> cumulative_extreme(T self, I dim_) {
  scanned_dim(self, dim_);
  auto fn = node(Node.value, {self}, {self}, [](Backward& w, T x, T) { w.out[0] = ops::zeros(x.sizes(), x.dtype()); });
  Tensor values = empty(self.sizes(), self.dtype()), indices = empty(self.sizes(), DType::int64);
  if (runtime().settings.kernel_scratch() && self.dim() > 0) {
    NoGrad below;
    const Tensor input = ops::contiguous_tensor(self);
  }
  fn.outputs({values}, {indices});
  return {values, indices};
}
const Op cummax_op{{"aten::cummax(Tensor self, int dim) -> (Tensor values, Tensor indices)", Autocast::none, "self, indices", kSource},
                   cumulative_extreme<"CummaxBackward0">};
const Op cummin_op{{"aten::cummin(Tensor self, int dim) -> (Tensor values, Tensor indices)", Autocast::none, "self, indices", kSource},
                   cumulative_extreme<"CumminBackward0">};

// ---- logcumsumexp --------------------------------------------------------------------------------------------------------
/// (reverse_logcumsumexp(log_grad - result) + self).exp()
Tensor signed_part(T log_grad, T x, T result, int dim) {
  const Tensor difference = ops::binary("aten::sub", log_grad, result);
  const Tensor sums = reversed("aten::logcumsumexp", difference, dim), shifted = ops::binary("aten::add", sums, x);
  return ops::unary("aten::exp", shifted);
}
Tensor logcumsumexp(T self, I dim_) {
  const int dim = scanned_dim(self, dim_);
  auto fn = node("LogcumsumexpBackward0", {self}, {self}, [dim](Backward& w, T x, T result) {
    T g = w.grad[0];
    if (g.dim() == 0 || g.numel() == 0) {
      w.out[0] = g;
      return;
    }
    const Tensor least = scalar_like(g);
    const Tensor magnitude = Lazy(g).abs().log();
    const Tensor positive = where(compare("aten::gt", g, 0), magnitude, least);
    const Tensor negative = where(compare("aten::lt", g, 0), magnitude, least);
    const Tensor output_pos = signed_part(positive, x, result, dim), output_neg = signed_part(negative, x, result, dim);
    w.out[0] = ops::binary("aten::sub", output_pos, output_neg);
  });
  Tensor y = scan("aten::logcumsumexp", self, dim);
  fn.outputs({y}, {y});
  return y;
}
const Op logcumsumexp_op{{"aten::logcumsumexp(Tensor self, int dim) -> Tensor", Autocast::none, "self, result", kSource}, logcumsumexp};

}  // namespace
}  // namespace memest
