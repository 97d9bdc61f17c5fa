// Softmax and losses.
#pragma once
#include "ops/op.h"

namespace memest::ops {

extern const Op<Tensor(T, std::int64_t, std::optional<DType>)> softmax;
extern const Op<Tensor(T, std::int64_t, std::optional<DType>)> log_softmax;
/// reduction: 0 none, 1 mean, 2 sum (at::Reduction).
extern const Op<Tensor(T, T, T, std::int64_t, std::int64_t, double)> cross_entropy_loss;
extern const Op<Tensor(T, T, std::int64_t)> mse_loss;

}  // namespace memest::ops
