// Tensors with Python's methods and Python's lifetimes, so that a family's forward reads, allocates and frees like the original.
//
// A method called on a temporary takes it over, and an op drops its arguments when it returns: `x.pow(2).mean(-1)` frees the square as soon
// as the mean exists. C++ evaluates a call's object before its arguments (`a().mul(b())` is a, then b), but not the two sides of `a() *
// b()`, and not the arguments of one call: write at most one allocating call among these.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/ops.h"

namespace memest::hf {

using I = std::int64_t;

class X;
/// Calls the aten op of that name with arguments by position, as torch.NAME(...) would; for ops off the hot path.
X aten(const char* name, Values arguments, KeywordArguments keywords = {});
std::vector<X> aten_list(const char* name, Values arguments);

/// One `from:to:step` of an index (torch/csrc/autograd/python_variable_indexing.cpp): a whole slice is an alias.
Tensor indexed_slice(Tensor self, I dim, std::optional<I> from, std::optional<I> to, I step);

class X : public Tensor {
 public:
  X() = default;
  X(Tensor t) : Tensor(std::move(t)) {}

// A method of one statement; `self` is this tensor, moved out of a temporary.
#define MEMEST_METHOD(RESULT, NAME, PARAMETERS, ...)      \
  RESULT NAME PARAMETERS const& {                         \
    Tensor self = *this;                                  \
    return __VA_ARGS__;                                   \
  }                                                       \
  RESULT NAME PARAMETERS&& {                              \
    Tensor self = std::move(static_cast<Tensor&>(*this)); \
    return __VA_ARGS__;                                   \
  }
  // ---- arithmetic
  MEMEST_METHOD(X, add, (X other), ops::add(std::move(self), std::move(other), 1))
  MEMEST_METHOD(X, sub, (X other), ops::sub(std::move(self), std::move(other), 1))
  MEMEST_METHOD(X, mul, (X other), ops::mul(std::move(self), std::move(other)))
  MEMEST_METHOD(X, div, (X other), ops::div(std::move(self), std::move(other)))
  MEMEST_METHOD(X, add, (Scalar number), ops::add(std::move(self), wrapped_number(number.dtype()), 1))
  MEMEST_METHOD(X, sub, (Scalar number), ops::sub(std::move(self), wrapped_number(number.dtype()), 1))
  MEMEST_METHOD(X, mul, (Scalar number), ops::mul(std::move(self), wrapped_number(number.dtype())))
  MEMEST_METHOD(X, div, (Scalar number), ops::div(std::move(self), wrapped_number(number.dtype())))
  MEMEST_METHOD(X, add_, (X other), ops::add_(std::move(self), std::move(other), 1))
  MEMEST_METHOD(X, neg, (), ops::neg(std::move(self)))
  MEMEST_METHOD(X, pow, (Scalar exponent), ops::pow_scalar(std::move(self), exponent))
  MEMEST_METHOD(X, rsqrt, (), ops::rsqrt(std::move(self)))
  MEMEST_METHOD(X, sqrt, (), ops::sqrt(std::move(self)))
  MEMEST_METHOD(X, exp, (), ops::exp(std::move(self)))
  MEMEST_METHOD(X, tanh, (), ops::tanh(std::move(self)))
  MEMEST_METHOD(X, sigmoid, (), ops::sigmoid(std::move(self)))
  MEMEST_METHOD(X, matmul, (X other), ops::matmul(std::move(self), std::move(other)))
  MEMEST_METHOD(X, bmm, (X other), ops::bmm(std::move(self), std::move(other)))
  // ---- reductions
  MEMEST_METHOD(X, mean, (I dim, bool keepdim = false), ops::mean_dim(std::move(self), Dims{dim}, keepdim, std::nullopt))
  MEMEST_METHOD(X, sum, (I dim, bool keepdim = false), ops::sum_dim(std::move(self), Dims{dim}, keepdim, std::nullopt))
  MEMEST_METHOD(X, softmax, (I dim, std::optional<DType> dtype = std::nullopt), ops::softmax(std::move(self), dim, dtype))
  // ---- types and copies
  MEMEST_METHOD(X, to, (DType dtype), ops::to_dtype(std::move(self), dtype, false, false, std::nullopt))
  MEMEST_METHOD(X, to_float, (), ops::to_dtype(std::move(self), DType::float32, false, false, std::nullopt))
  MEMEST_METHOD(X, contiguous, (), ops::contiguous(std::move(self), MemoryFormat::contiguous))
  MEMEST_METHOD(X, clone, (), ops::clone(std::move(self), std::nullopt))
  MEMEST_METHOD(X, detach, (), ops::detach(std::move(self)))
  // ---- views
  MEMEST_METHOD(X, view, (const Dims& size), ops::view(std::move(self), size))
  MEMEST_METHOD(X, reshape, (const Dims& shape), ops::reshape(std::move(self), shape))
  MEMEST_METHOD(X, transpose, (I a, I b), ops::transpose(std::move(self), a, b))
  MEMEST_METHOD(X, t, (), ops::t(std::move(self)))
  MEMEST_METHOD(X, permute, (const Dims& dims), ops::permute(std::move(self), dims))
  MEMEST_METHOD(X, expand, (const Dims& size), ops::expand(std::move(self), size, false))
  MEMEST_METHOD(X, unsqueeze, (I dim), ops::unsqueeze(std::move(self), dim))
  MEMEST_METHOD(X, squeeze, (I dim), ops::squeeze_dim(std::move(self), dim))
  MEMEST_METHOD(X, flatten, (I start, I end = -1), ops::flatten(std::move(self), start, end))
  /// x[..., from:to] along one dimension; negative bounds count from the end.
  MEMEST_METHOD(X, slice, (I dim, std::optional<I> from, std::optional<I> to, I step = 1),
                indexed_slice(std::move(self), dim, from, to, step))
  MEMEST_METHOD(X, select, (I dim, I index), ops::select(std::move(self), dim, index))
  MEMEST_METHOD(std::vector<X>, split, (I size, I dim = 0), list(ops::split(std::move(self), size, dim)))
  MEMEST_METHOD(std::vector<X>, split, (const Dims& sizes, I dim = 0), list(ops::split_with_sizes(std::move(self), sizes, dim)))
  MEMEST_METHOD(std::vector<X>, chunk, (I count, I dim = 0), list(ops::chunk(std::move(self), count, dim)))
  MEMEST_METHOD(std::vector<X>, unbind, (I dim = 0), list(ops::unbind(std::move(self), dim)))
#undef MEMEST_METHOD
  /// x[:, :, None, :, :] and the like: releases up to 2.8 make a node of each whole slice.
  X whole_slices(int count) const {
    X y = *this;
    if (runtime().settings.torch.full_slice_records_node())
      for (int d = 0; d < count; ++d) y = std::move(y).slice(d, std::nullopt, std::nullopt);
    return y;
  }

  static std::vector<X> list(Tensors tensors) {
    return std::vector<X>(std::make_move_iterator(tensors.begin()), std::make_move_iterator(tensors.end()));
  }
};

inline X cat(std::vector<X> tensors, I dim) {
  Tensors list(std::make_move_iterator(tensors.begin()), std::make_move_iterator(tensors.end()));
  return ops::cat(std::move(list), dim);
}
inline X stack(std::vector<X> tensors, I dim) {
  Tensors list(std::make_move_iterator(tensors.begin()), std::make_move_iterator(tensors.end()));
  return ops::stack(std::move(list), dim);
}
/// torch.zeros((), ...), torch.arange(n), ... on the device.
X arange(I count, DType dtype = DType::int64);
X zeros(const Dims& sizes, DType dtype);
X ones(const Dims& sizes, DType dtype);
X full(const Dims& sizes, Scalar value, DType dtype);
X where(X condition, X self, X other);
X where(X condition, X self, Scalar other);
X where(X condition, Scalar self, X other);

/// The end of a function: Python drops a frame's names in the order of their first binding, C++ its locals in the reverse one.
template <class R, class... Names>
R leave(R result, Names&... names) {
  (names.reset(), ...);
  return result;
}

/// A function's or module's result with more than one tensor, as a Python tuple is unpacked.
using Pair = std::pair<X, X>;

}  // namespace memest::hf
