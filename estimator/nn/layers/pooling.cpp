// torch.nn pooling layers (torch/nn/modules/pooling.py).
#include "nn/layer.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

class MaxPool2d final : public UnaryModule {
 public:
  MaxPool2d(Dims kernel, Dims stride, Dims padding, Dims dilation, bool ceil_mode)
      : UnaryModule("MaxPool2d"),
        kernel_(std::move(kernel)),
        stride_(std::move(stride)),
        padding_(std::move(padding)),
        dilation_(std::move(dilation)),
        ceil_mode_(ceil_mode) {}
  Tensor forward(T input) override { return ops::max_pool2d(input, kernel_, stride_, padding_, dilation_, ceil_mode_); }

 private:
  Dims kernel_, stride_, padding_, dilation_;
  bool ceil_mode_;
};
const Layer max_pool2d{
    "MaxPool2d(int[2] kernel_size, int[2]? stride=None, int[2] padding=0, int[2] dilation=1, bool return_indices=False, bool "
    "ceil_mode=False)",
    [](const Dims& kernel, const std::optional<Dims>& stride, const Dims& padding, const Dims& dilation, bool return_indices,
       bool ceil_mode) -> ModulePtr {
      if (return_indices) throw Error("MaxPool2d: return_indices is not modelled");
      return std::make_shared<MaxPool2d>(kernel, stride.value_or(kernel), padding, dilation, ceil_mode);
    }};

class AdaptiveAvgPool2d final : public UnaryModule {
 public:
  explicit AdaptiveAvgPool2d(Dims size) : UnaryModule("AdaptiveAvgPool2d"), size_(std::move(size)) {}
  Tensor forward(T input) override { return ops::adaptive_avg_pool2d(input, size_); }

 private:
  Dims size_;
};
const Layer adaptive_avg_pool2d{"AdaptiveAvgPool2d(int[2] output_size)",
                                [](const Dims& size) -> ModulePtr { return std::make_shared<AdaptiveAvgPool2d>(size); }};

}  // namespace
}  // namespace memest::nn
