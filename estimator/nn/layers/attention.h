// What the attention layers share (torch/nn/functional.py, torch/nn/modules/{activation,transformer}.py).
#pragma once
#include <string>
#include <vector>

#include "nn/module.h"

namespace memest::nn {

/// F._canonical_mask: a boolean mask becomes one of 0 and -inf.
Tensor canonical_mask(T mask, const char* name, DType target);
/// MultiheadAttention.merge_masks: one mask of both, and its type: 1 by keys, 2 by queries and keys.
struct MergedMask {
  Tensor mask;
  std::optional<std::int64_t> type;
};
MergedMask merge_masks(T attn_mask, T key_padding_mask, T query, std::int64_t heads);
/// The arguments of a forward by its signature: positional ones, then by keyword; missing ones are None.
Values named(const std::string& what, const std::vector<std::string>& names, const Values& arguments, const KeywordArguments& keywords);
inline bool flag(const Value& v, bool otherwise) { return is_none(v) ? otherwise : Unbox<bool>::from(v); }
/// The tensor that an argument must be.
Tensor tensor_argument(const std::string& what, const std::string& name, const Value& v);
/// The fused paths run: no autocast, and grad is off or nothing requires it.
bool allows_fast_path(const Tensors& tensors);

}  // namespace memest::nn
