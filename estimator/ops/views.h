// Views (no allocation in forward), and cat, stack.
#pragma once
#include "ops/op.h"

namespace memest::ops {

using I = std::int64_t;
extern const Op<Tensor(T, const Dims&)> view;
extern const Op<Tensor(T, const Dims&)> reshape;
extern const Op<Tensor(T, const Dims&)> unsafe_view;
extern const Op<Tensor(T, I, I)> flatten;
extern const Op<Tensor(T, I, I)> transpose;
extern const Op<Tensor(T)> t;
extern const Op<Tensor(T, const Dims&)> permute;
extern const Op<Tensor(T, const Dims&, bool)> expand;
extern const Op<Tensor(T, I)> unsqueeze;
extern const Op<Tensor(T, I)> squeeze_dim;
extern const Op<Tensor(T, I, I)> select;
extern const Op<Tensor(T, I, std::optional<I>, std::optional<I>, I)> slice;
extern const Op<Tensor(T, I, I, I)> narrow;
extern const Op<Tensors(T, I, I)> split;
extern const Op<Tensors(T, const Dims&, I)> split_with_sizes;
extern const Op<Tensors(T, I, I)> chunk;
extern const Op<Tensors(T, I)> unbind;
extern const Op<Tensor(T, const Dims&, const Dims&)> movedim;
extern const Op<Tensor(T, I, I, I)> diagonal;
extern const Op<Tensor(T, I, I, I)> unfold;
extern const Op<Tensor(T, const Dims&, const Dims&, std::optional<I>)> as_strided;
extern const Op<Tensor(T)> alias;
extern const Op<Tensor(T)> view_as_real;
extern const Op<Tensor(T)> view_as_complex;
extern const Op<Tensor(const Tensors&, I)> cat;
extern const Op<Tensor(const Tensors&, I)> stack;

}  // namespace memest::ops
