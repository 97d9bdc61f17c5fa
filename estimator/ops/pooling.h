// Pooling.
#pragma once
#include "ops/op.h"

namespace memest::ops {

extern const Op<Tensor(T, const Dims&, const Dims&, const Dims&, const Dims&, bool)> max_pool2d;
extern const Op<Tensor(T, const Dims&)> adaptive_avg_pool2d;

}  // namespace memest::ops
