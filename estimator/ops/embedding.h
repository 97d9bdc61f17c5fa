// Embeddings.
#pragma once
#include "ops/op.h"

namespace memest::ops {

extern const Op<Tensor(T, T, std::int64_t, bool, bool)> embedding;
extern const Op<Tensor(T, T, double, double)> embedding_renorm_;
using BagResult = std::tuple<Tensor, Tensor, Tensor, Tensor>;  ///< output, offset2bag, bag_size, max_indices
/// mode: 0 sum, 1 mean, 2 max.
extern const Op<BagResult(T, T, T, bool, std::int64_t, bool, T, bool, std::optional<std::int64_t>)> embedding_bag;

}  // namespace memest::ops
