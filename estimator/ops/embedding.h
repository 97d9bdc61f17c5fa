// Embeddings.
#pragma once
#include "ops/op.h"

namespace memest::ops {

extern const Op<Tensor(T, T, std::int64_t, bool, bool)> embedding;

}  // namespace memest::ops
