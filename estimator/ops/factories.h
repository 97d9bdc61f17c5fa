// New tensors: zeros, ones, full, arange and their kin.
#pragma once
#include "ops/op.h"

namespace memest::ops {

extern const Op<Tensor(T, std::optional<DType>, std::optional<MemoryFormat>)> zeros_like;
extern const Op<Tensor(T, std::optional<DType>, std::optional<MemoryFormat>)> ones_like;
Tensor zeros(const Dims& sizes, DType dtype);
/// A 0-d tensor on the device, as torch.tensor(value, device="cuda").
Tensor scalar_tensor(DType dtype);

}  // namespace memest::ops
