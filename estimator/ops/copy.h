// Copies and casts: clone, contiguous, to.
#pragma once
#include "ops/op.h"

namespace memest::ops {

extern const Op<Tensor(T, std::optional<MemoryFormat>)> clone;
extern const Op<Tensor(T, MemoryFormat)> contiguous;
extern const Op<Tensor(T, DType, bool, bool, std::optional<MemoryFormat>)> to_dtype;
extern const Op<Tensor(T, T, bool)> copy_;
extern const Op<Tensor(T)> detach;

/// _to_copy: always a copy.
Tensor to_copy(T x, DType dtype);
/// x.to(dtype): x itself where it has the type.
Tensor to(T x, DType dtype);
/// x.float()
inline Tensor to_float(T x) { return to(x, DType::float32); }
/// x_host.to("cuda", memory_format=format): in another layout than the host's, by way of a contiguous copy (native/cuda/Copy.cu).
Tensor to_device(T host, MemoryFormat format);
inline Tensor contiguous_tensor(T x) { return contiguous(x, MemoryFormat::contiguous); }

}  // namespace memest::ops
