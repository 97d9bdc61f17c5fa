// Optimizers as torch.optim runs them on a GPU: LibTorch's C++ library has only loops over parameters, so these call the aten ops that the
// Python calls, in its order.
#pragma once
#include <memory>
#include <vector>

#include "torch/optimizer.h"

namespace memest::plugin {

/// sgd, adam or adamw in the foreach or the fused form ("foreach": false: LibTorch's own loop); others are LibTorch's.
std::unique_ptr<Optimizer> foreach_optimizer(const Json& request, const std::vector<at::Tensor>& parameters);

}  // namespace memest::plugin
