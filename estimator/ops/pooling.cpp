// Sources: derivatives.yaml; aten/src/ATen/native/{Pooling,AdaptiveAveragePooling}.cpp, native/cuda/DilatedMaxPool2d.cu, native/Pool.h.
#include "ops/pooling.h"

#include <fmt/format.h>

#include "ops/copy.h"
#include "ops/iterator.h"
#include "ops/reductions.h"

namespace memest {
namespace {
using I = std::int64_t;

/// pooling_output_shape (native/Pool.h).
I pooled(I n, I kernel, I stride, I padding, I dilation, bool ceil_mode) {
  if (kernel <= 0 || stride <= 0 || dilation <= 0) throw Error("pooling: kernel size, stride and dilation must be positive");
  if (padding < 0 || padding > (checked_mul(kernel - 1, dilation) + 1) / 2)
    throw Error(
        fmt::format("pooling: pad should be at most half of effective kernel size, but got pad={}, kernel_size={}", padding, kernel));
  const I room = checked_add(n, 2 * padding) - checked_mul(dilation, kernel - 1) - 1 + (ceil_mode ? stride - 1 : 0);
  I out = (room < 0 ? -((-room + stride - 1) / stride) : room / stride) + 1;
  if (ceil_mode && (out - 1) * stride >= n + padding) --out;
  if (out <= 0) throw Error(fmt::format("pooling: the output size is too small: an input of {} with a kernel of {}", n, kernel));
  return out;
}

Dims two(const char* name, const Dims& list, const Dims& otherwise = {}) {
  if (list.empty() && !otherwise.empty()) return two(name, otherwise);
  if (list.size() == 1) return {list[0], list[0]};
  if (list.size() != 2) throw Error(fmt::format("pooling: {} must be one number or two, found {}", name, to_string(list)));
  return list;
}

Tensor max_pool2d(T self, const Dims& kernel_size, const Dims& stride, const Dims& padding, const Dims& dilation, bool ceil_mode) {
  if (self.dim() != 3 && self.dim() != 4) throw Error("max_pool2d: expected a 3D or 4D input, found " + describe(self));
  const Dims k = two("kernel_size", kernel_size), s = two("stride", stride, k), p = two("padding", padding), d = two("dilation", dilation);
  Dims sizes = self.sizes();
  for (int i = 0; i < 2; ++i) sizes[i - 2] = pooled(sizes[i - 2], k[i], s[i], p[i], d[i], ceil_mode);
  auto fn = node("MaxPool2DWithIndicesBackward0", {self}, {self}, [](Backward& w, T x, T) {
    Tensor grad = is_contiguous(w.grad[0], suggest_memory_format(x)) ? w.grad[0] : ops::clone(w.grad[0], suggest_memory_format(x));
    w.out[0] = empty(x.sizes(), x.dtype(), suggest_memory_format(x));
  });
  const MemoryFormat format = suggest_memory_format(self);
  Tensor y = empty(sizes, self.dtype(), format), indices = empty(sizes, DType::int64, format);
  Tensor x = is_contiguous(self, format) ? self : ops::clone(self, format);
  fn.outputs({y}, {indices});
  return y;
}

Tensor adaptive_avg_pool2d(T self, const Dims& output_size) {
  if (self.dim() != 3 && self.dim() != 4) throw Error("adaptive_avg_pool2d: expected a 3D or 4D input, found " + describe(self));
  const Dims out = two("output_size", output_size);
  if (out[0] < 0 || out[1] < 0) throw Error("adaptive_avg_pool2d: the output size must be non-negative, found " + to_string(out));
  if (out[0] == 1 && out[1] == 1) return ops::mean_dim(self, Dims{-1, -2}, true, std::nullopt);
  auto fn = node("AdaptiveAvgPool2DBackward0", {self}, {self}, [](Backward& w, T x) {
    Tensor grad = is_contiguous(w.grad[0], suggest_memory_format(x)) ? w.grad[0] : ops::clone(w.grad[0], suggest_memory_format(x));
    w.out[0] = empty(x.sizes(), x.dtype(), suggest_memory_format(x));
  });
  Dims sizes = self.sizes();
  sizes[-2] = out[0], sizes[-1] = out[1];
  Tensor y = empty(sizes, self.dtype(), suggest_memory_format(self));
  fn.outputs({y});
  return y;
}

}  // namespace

namespace ops {
const Op<Tensor(T, const Dims&, const Dims&, const Dims&, const Dims&, bool)> max_pool2d{
    {"aten::max_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> "
     "Tensor",
     Autocast::none, "self, indices", "derivatives.yaml max_pool2d_with_indices; native/cuda/DilatedMaxPool2d.cu"},
    memest::max_pool2d};
const Op<Tensor(T, const Dims&)> adaptive_avg_pool2d{
    {"aten::adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor", Autocast::none, "self",
     "native/AdaptiveAveragePooling.cpp; native/cuda/AdaptiveAveragePooling.cu"},
    memest::adaptive_avg_pool2d};
}  // namespace ops
}  // namespace memest
