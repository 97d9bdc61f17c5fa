// Convolutions.
#pragma once
#include "ops/op.h"

namespace memest::ops {

extern const Op<Tensor(T, T, T, const Dims&, const Dims&, const Dims&, bool, const Dims&, std::int64_t)> convolution;
extern const Op<Tensor(T, T, T, const Dims&, const Dims&, const Dims&, std::int64_t)> conv1d;
extern const Op<Tensor(T, T, T, const Dims&, const Dims&, const Dims&, std::int64_t)> conv2d;
extern const Op<Tensor(T, T, T, const Dims&, const Dims&, const Dims&, std::int64_t)> conv3d;
extern const Op<Tensor(T, T, T, const Dims&, const Dims&, const Dims&, std::int64_t, const Dims&)> conv_transpose1d;
extern const Op<Tensor(T, T, T, const Dims&, const Dims&, const Dims&, std::int64_t, const Dims&)> conv_transpose2d;
extern const Op<Tensor(T, T, T, const Dims&, const Dims&, const Dims&, std::int64_t, const Dims&)> conv_transpose3d;

}  // namespace memest::ops
