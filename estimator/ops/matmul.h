// Matrix products and linear.
#pragma once
#include "ops/op.h"

namespace memest::ops {

extern const Op<Tensor(T, T)> mm;
extern const Op<Tensor(T, T, T, const Scalar&, const Scalar&)> addmm;
extern const Op<Tensor(T, T)> bmm;
extern const Op<Tensor(T, T, T, const Scalar&, const Scalar&)> baddbmm;
extern const Op<Tensor(T, T)> mv;
extern const Op<Tensor(T, T)> dot;
extern const Op<Tensor(T, T)> vdot;
extern const Op<Tensor(T, T)> outer;
extern const Op<Tensor(T, T)> matmul;
extern const Op<Tensor(T, T, T)> linear;

/// left * right summed over dimensions, kept with size 1 (native/Linear.cpp sumproduct_pair): what einsum and bilinear are made of.
Tensor sumproduct_pair(T left, T right, const Dims& sum_dims);

}  // namespace memest::ops
