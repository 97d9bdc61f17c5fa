// Activations.
#pragma once
#include "ops/op.h"

namespace memest::ops {

extern const Op<Tensor(T)> relu;
extern const Op<Tensor(T)> relu_;
extern const Op<Tensor(T)> silu;
extern const Op<Tensor(T)> silu_;
extern const Op<Tensor(T)> mish;
extern const Op<Tensor(T)> mish_;
extern const Op<Tensor(T)> hardswish;
extern const Op<Tensor(T)> hardswish_;
extern const Op<Tensor(T)> hardsigmoid;
extern const Op<Tensor(T)> hardsigmoid_;
extern const Op<Tensor(T)> log_sigmoid;
extern const Op<Tensor(T, const std::string&)> gelu;
extern const Op<Tensor(T, const Scalar&, const Scalar&)> hardtanh;
extern const Op<Tensor(T, const Scalar&, const Scalar&)> hardtanh_;
extern const Op<Tensor(T, const Scalar&, const Scalar&, const Scalar&)> elu;
extern const Op<Tensor(T, const Scalar&, const Scalar&, const Scalar&)> elu_;
extern const Op<Tensor(T, const Scalar&)> celu;
extern const Op<Tensor(T, const Scalar&)> celu_;
extern const Op<Tensor(T, const Scalar&)> leaky_relu;
extern const Op<Tensor(T, const Scalar&)> leaky_relu_;
extern const Op<Tensor(T, const Scalar&, const Scalar&)> softplus;
extern const Op<Tensor(T, const Scalar&, const Scalar&)> threshold;
extern const Op<Tensor(T, const Scalar&, const Scalar&)> threshold_;
extern const Op<Tensor(T, T)> prelu;
extern const Op<Tensor(T, const Scalar&, const Scalar&, bool)> rrelu;
extern const Op<Tensor(T, const Scalar&, const Scalar&, bool)> rrelu_;

}  // namespace memest::ops
