// Products of matrices by groups of rows: torch._grouped_mm, and what transformers does where that is missing.
#pragma once
#include "ops/op.h"

namespace memest::ops {

/// self [rows, inner] with mat2 [groups, inner, columns], or [m, rows] with [rows, n] to [groups, m, n]; offs: int32 ends of the groups.
extern const Op<Tensor(T, T, T, T, std::optional<DType>)> grouped_mm;
/// transformers::grouped_mm_fallback (integrations/moe.py).
Tensor grouped_mm_fallback(T input, T weight, T offs);

/// Whether groups have rows is decided by values. Where they have, each product takes a cuBLAS workspace; without it none does, as with
/// offsets of zero. The assumption holds in the backward of what is made while it lives.
class AssumedGroups {
 public:
  explicit AssumedGroups(bool hold_rows);
  ~AssumedGroups();
  AssumedGroups(const AssumedGroups&) = delete;
  AssumedGroups& operator=(const AssumedGroups&) = delete;

 private:
  bool before_;
};

}  // namespace memest::ops
