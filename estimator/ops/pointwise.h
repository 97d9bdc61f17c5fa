// Elementwise arithmetic and functions of one tensor that C++ code calls; all records stand in pointwise, unary, binary, comparison and
// selection.
#pragma once
#include "ops/activation.h"
#include "ops/op.h"

namespace memest::ops {

extern const Op<Tensor(T, T, const Scalar&)> add;
extern const Op<Tensor(T, T, const Scalar&)> sub;
extern const Op<Tensor(T, T)> mul;
extern const Op<Tensor(T, T)> div;
extern const Op<Tensor(T, T, const Scalar&)> add_;
extern const Op<Tensor(T, T, const Scalar&)> sub_;
extern const Op<Tensor(T, T)> mul_;
extern const Op<Tensor(T, T)> div_;
extern const Op<Tensor(T)> neg;
extern const Op<Tensor(T, const Scalar&)> pow_scalar;
extern const Op<Tensor(T)> exp;
extern const Op<Tensor(T)> log;
extern const Op<Tensor(T)> sqrt;
extern const Op<Tensor(T)> rsqrt;
extern const Op<Tensor(T)> tanh;
extern const Op<Tensor(T)> sigmoid;

/// x * number, x + number, as Python writes them: the number is wrapped and weak in promotion.
Tensor mul_scalar(T x, const Scalar& number);
Tensor add_scalar(T x, const Scalar& number);
Tensor div_scalar(T x, const Scalar& number);
/// Elementwise results below autograd, in backward formulas: one new tensor as TensorIterator makes it.
Tensor binary(const char* op, T a, T b);
Tensor binary(const char* op, T a, T b, DType dtype);
/// ... of one tensor and numbers.
Tensor unary(const char* op, T x);

}  // namespace memest::ops
