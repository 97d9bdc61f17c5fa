// An optimizer of a probe.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "torch/plugin.h"

namespace memest::plugin {

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual void step() = 0;
  /// Tensors that it keeps for its parameters.
  virtual std::vector<at::Tensor> state() = 0;
};

/// {"name": "adamw", "lr": 0.1, "momentum": 0.9, "nesterov": true} of torch::optim; null for "none".
std::unique_ptr<Optimizer> torch_optimizer(const Json& request, const std::vector<at::Tensor>& parameters);

}  // namespace memest::plugin
