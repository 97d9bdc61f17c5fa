// Elementwise arithmetic and activations.
#pragma once
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
extern const Op<Tensor(T)> relu;
extern const Op<Tensor(T)> relu_;
extern const Op<Tensor(T)> silu;
extern const Op<Tensor(T)> silu_;
extern const Op<Tensor(T, const std::string&)> gelu;
extern const Op<Tensor(T, const Scalar&, const Scalar&)> hardtanh;
extern const Op<Tensor(T, const Scalar&, const Scalar&)> hardtanh_;

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
