// Ops of images: padding, resampling, grids, rearranged pixels, patches.
#pragma once
#include "ops/op.h"

namespace memest::ops {

extern const Op<Tensor(T, const Dims&, const Scalar&)> constant_pad_nd;
/// mode: constant, reflect, replicate or circular.
extern const Op<Tensor(T, const Dims&, const std::string&, std::optional<double>)> pad;

}  // namespace memest::ops
