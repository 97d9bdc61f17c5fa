// What torch.nn.functional asks of an input before it normalises with the input's own statistics.
#pragma once
#include "base/dims.h"

namespace memest::nn {

/// _verify_batch_size: throws Error where a channel has one value.
void verify_batch_size(const Dims& sizes);
/// _verify_spatial_size: throws Error where an instance has one value.
void verify_spatial_size(const Dims& sizes);

}  // namespace memest::nn
