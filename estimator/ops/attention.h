// Dropout and attention.
#pragma once
#include "ops/op.h"

namespace memest::ops {

extern const Op<Tensor(T, double, bool)> dropout;
extern const Op<Tensor(T, T, T, T, double, bool, std::optional<double>, bool)> scaled_dot_product_attention;

}  // namespace memest::ops
