// What the losses share: the reduction at their end (native/Loss.cpp apply_loss_reduction).
#pragma once
#include "ops/op.h"

namespace memest {

/// at::Reduction::Reduction.
enum Reduction : std::int64_t { kReductionNone = 0, kReductionMean = 1, kReductionSum = 2 };

/// The loss itself, its mean or its sum.
Tensor apply_loss_reduction(T loss, std::int64_t reduction);
/// at::mean_out or sum_out into a result that exists: only what the kernel takes beside it.
void reduction_scratch(T loss, std::int64_t reduction);
/// A result made in full size and resized to 0-d: it keeps that storage while it lives.
Tensor resized_to_scalar(Tensor full);
/// A composite's call of an op by its name.
template <class... A>
Tensor call_tensor_op(const char* op, A&&... arguments) {
  return Unbox<Tensor>::from(call_op(op, {to_value(std::forward<A>(arguments))...}, {}));
}
/// number - x (aten/src/ATen/TensorOperators.h): a tensor like x filled with the number, then x taken from it in place.
Tensor number_minus(T x);

}  // namespace memest
