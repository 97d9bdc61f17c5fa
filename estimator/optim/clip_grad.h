// torch.nn.utils.clip_grad_norm_ and clip_grad_value_ (torch/nn/utils/clip_grad.py of 2.15).
#pragma once
#include "optim/tensors.h"

namespace memest::optim {

/// The gradients' norms, one scalar each, live together; what it returns is a scalar on the device.
Tensor clip_grad_norm(const Tensors& parameters);
/// In place: takes nothing.
void clip_grad_value(const Tensors& parameters);

}  // namespace memest::optim
