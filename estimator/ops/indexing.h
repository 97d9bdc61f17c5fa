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
/// While it lives, a mask is taken to hold so many true elements, where the caller knows better than "all": a share of a batch.
class AssumedSelection {
 public:
  explicit AssumedSelection(std::int64_t count);
  ~AssumedSelection();
  AssumedSelection(const AssumedSelection&) = delete;
  AssumedSelection& operator=(const AssumedSelection&) = delete;

 private:
  std::optional<std::int64_t> before_;
};

}  // namespace memest::ops
