// Matrix products.
#pragma once
#include "ops/op.h"

namespace memest::ops {

extern const Op<Tensor(T, T)> mm;
extern const Op<Tensor(T, T, T, const Scalar&, const Scalar&)> addmm;
extern const Op<Tensor(T, T)> bmm;
extern const Op<Tensor(T, T)> matmul;
extern const Op<Tensor(T, T, T)> linear;

}  // namespace memest::ops
