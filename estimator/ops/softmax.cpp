// Sources: derivatives.yaml; aten/src/ATen/native/SoftMax.cpp, native/cuda/SoftMax.cu of 2.15.
#include "ops/copy.h"
#include "ops/iterator.h"
#include "ops/loss.h"
#include "ops/pointwise.h"

namespace memest {
namespace {
using I = std::int64_t;

struct Kernel {
  const char* node;
  const char* backward;
  bool takes_product;  ///< softmax_backward_cuda_out takes grad * output, a tensor of its own
};
constexpr Kernel kSoftmax{"SoftmaxBackward0", "aten::_softmax_backward_data", true};
constexpr Kernel kLogSoftmax{"LogSoftmaxBackward0", "aten::_log_softmax_backward_data", false};

/// _softmax and _log_softmax: the output is made first, then a contiguous copy of the input.
Tensor soft(const Kernel& kernel, T self, I dim, bool half_to_float) {
  wrap_dim(dim, self.dim());
  if (!is_floating(self.dtype())) throw Error("softmax: not implemented for " + describe(self));
  auto fn = node(kernel.node, {self}, {}, [&kernel, type = self.dtype()](Backward& w, T result) {
    Scoped<const char*> scope(runtime().op, kernel.backward);
    w.out[0] = empty(w.grad[0].sizes(), type);
    Tensor grad = kernel.takes_product && runtime().settings.kernel_scratch() ? ops::binary("aten::mul", w.grad[0], result) : w.grad[0];
    grad = is_contiguous(grad) ? grad : ops::clone(grad, MemoryFormat::contiguous);
  });
  Tensor y = empty(self.sizes(), half_to_float ? DType::float32 : self.dtype());
  if (runtime().settings.kernel_scratch()) {
    NoGrad below;
    const Tensor x = ops::contiguous_tensor(self);
  }
  fn.outputs({y}, {y});
  return y;
}
/// With a dtype the input is converted first; only the kernel of float16 to float32 converts by itself.
template <const Kernel& Which>
Tensor with_dtype(T self, I dim, std::optional<DType> dtype) {
  const bool half_to_float = dtype == DType::float32 && self.dtype() == DType::float16;
  return soft(Which, dtype && !half_to_float ? ops::to(self, *dtype) : self, dim, half_to_float);
}
template <const Kernel& Which>
Tensor below_dtype(T self, I dim, bool half_to_float) {
  if (half_to_float && self.dtype() != DType::float16) throw Error("conversion is supported for Half type only");
  return soft(Which, self, dim, half_to_float);
}
constexpr const char* kSource = "derivatives.yaml _softmax, _log_softmax; native/cuda/SoftMax.cu";
const Op softmax_kernel_op{{"aten::_softmax(Tensor self, int dim, bool half_to_float) -> Tensor", Autocast::none, "result", kSource},
                           below_dtype<kSoftmax>};
const Op log_softmax_kernel_op{
    {"aten::_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor", Autocast::none, "result", kSource},
    below_dtype<kLogSoftmax>};
const Op special_softmax_op{
    {"aten::special_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor", Autocast::none, "result", "native/SoftMax.cpp"},
    +[](T self, I dim, std::optional<DType> dtype) { return ops::softmax(self, dim, dtype); }};
const Op special_log_softmax_op{{"aten::special_log_softmax(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor", Autocast::none,
                                 "result", "native/SoftMax.cpp"},
                                +[](T self, I dim, std::optional<DType> dtype) { return ops::log_softmax(self, dim, dtype); }};

}  // namespace

namespace ops {
const Op<Tensor(T, std::int64_t, std::optional<DType>)> softmax{
    {"aten::softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor", Autocast::fp32_set_dtype, "result", kSource},
    with_dtype<kSoftmax>};
const Op<Tensor(T, std::int64_t, std::optional<DType>)> log_softmax{
    {"aten::log_softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor", Autocast::fp32_set_dtype, "result", kSource},
    with_dtype<kLogSoftmax>};
}  // namespace ops
}  // namespace memest
