// Sums, means and the engine's sum_to_size.
#pragma once
#include "ops/iterator.h"
#include "ops/op.h"

namespace memest::ops {

extern const Op<Tensor(T, std::optional<DType>)> sum;
extern const Op<Tensor(T, const std::optional<Dims>&, bool, std::optional<DType>)> sum_dim;
extern const Op<Tensor(T, std::optional<DType>)> mean;
extern const Op<Tensor(T, const std::optional<Dims>&, bool, std::optional<DType>)> mean_dim;
/// at::sum_to: sums over the dimensions that broadcasting added.
Tensor sum_to_size(T x, const Dims& sizes);
/// unsqueeze_multiple: a reduced tensor with its lost dimensions as ones again.
Tensor restore_reduced(T x, const std::vector<bool>& mask, bool keepdim);
/// The kernel of sum over a mask of dimensions, below autograd.
/// Any reduction: the result and the scratch that the kernel takes beside it.
Tensor reduce_kernel(T x, const std::vector<bool>& mask, bool keepdim, DType dtype, const ReduceKernel& kernel);
Tensor sum_kernel(T x, const std::vector<bool>& mask, bool keepdim, DType dtype);

}  // namespace memest::ops
