// Norms of vectors.
#pragma once
#include "ops/op.h"

namespace memest::ops {

extern const Op<Tensor(T, const Scalar&, const std::optional<Dims>&, bool, std::optional<DType>)> vector_norm;
/// FunctionsManual.cpp norm_backward: the gradient of x; `norm` and `g` have the reduced dimensions of `mask` as ones.
Tensor norm_backward(T g, T x, double p, T norm, const std::vector<bool>& mask);

}  // namespace memest::ops
