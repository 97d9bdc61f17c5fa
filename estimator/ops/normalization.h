// Normalisation layers.
#pragma once
#include "ops/op.h"

namespace memest::ops {

extern const Op<Tensor(T, T, T, T, T, bool, double, double, bool)> batch_norm;
extern const Op<Tensor(T, T, T, T, T, bool, double, double, bool)> instance_norm;
extern const Op<Tensor(T, const Dims&, T, T, double, bool)> layer_norm;
extern const Op<Tensor(T, const Dims&, T, std::optional<double>)> rms_norm;
extern const Op<Tensor(T, std::int64_t, T, T, double, bool)> group_norm;

}  // namespace memest::ops
