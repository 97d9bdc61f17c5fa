// What the kernels of reductions (native/cuda/Reduce.cuh, Reduce*.cu) have in common.
#pragma once
#include <vector>

#include "ops/op.h"

namespace memest {

/// The state that a reduction keeps for each output.
struct Accumulator {
  int size;               ///< bytes
  bool in_output = true;  ///< pieces can wait in the output; not where the state is of another kind
  int vec = 4;            ///< elements that one load takes along the input
};
/// A reduction: the result, and the scratch that the kernel takes beside it.
Tensor reduced(T x, const std::vector<bool>& mask, bool keepdim, DType dtype, const Accumulator& state);
/// ReduceOpsUtils.h make_reduction_from_out_ty: the input in the result's type; kernels read half types by themselves where that is
/// float32.
Tensor reduction_input(T x, DType dtype);
/// at::sum of a mask, as int64.
Tensor count(T mask, const std::vector<bool>& dims, bool keepdim);

/// FunctionsManual.cpp evenly_distribute_backward: the gradient shared among the elements that equal the value.
Tensor evenly_distribute_backward(T g, T x, T value);

}  // namespace memest
