// Indexing with tensors, and what depends on values that memest does not have.
#pragma once
#include "ops/op.h"

namespace memest::ops {

extern const Op<Tensor(T, const Tensors&)> index;
extern const Op<Tensor(T, const Tensors&, T, bool)> index_put_;
extern const Op<Tensor(T, std::int64_t, T)> index_select;
extern const Op<Tensor(T, std::int64_t, T, bool)> gather;
extern const Op<Tensor(T, std::int64_t, T, T)> scatter_add;

/// Notes once for each op that a size depends on values, and what is assumed: "aten::nonzero: ... every element is taken".
void note_data_dependent(const char* op, const char* assumption);

}  // namespace memest::ops
