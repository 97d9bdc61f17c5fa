// torch.amp.GradScaler (torch/amp/grad_scaler.py of 2.15), with its tensors and their lifetimes; values are whatever the device computes.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace memest::plugin {

class GradScaler {
 public:
  at::Tensor scale(const at::Tensor& loss);
  /// unscale_, of an optimizer that does not do it itself.
  void unscale(const std::vector<at::Tensor>& parameters);
  void update();

 private:
  at::Tensor scale_, growth_tracker_, found_inf_;
};

}  // namespace memest::plugin
