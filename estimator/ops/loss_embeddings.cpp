// Losses that compare several inputs with each other: composites of other ops.
// Source: aten/src/ATen/native/Loss.cpp of 2.15.
#include "ops/factories.h"
#include "ops/loss_reduction.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"

namespace memest {
namespace {
using I = std::int64_t;
constexpr const char* kSource = "native/Loss.cpp";

Tensor zeros_like(T x) { return ops::zeros_like(x, std::nullopt, MemoryFormat::contiguous); }
Tensor where(const char* comparison, T target, I value, T chosen, T other) {
  const Tensor mask = call_tensor_op(comparison, target, value);
  return call_tensor_op("aten::where", mask, chosen, other);
}

Tensor hinge_embedding_loss(T self, T target, double, I reduction) {
  const Tensor zeros = zeros_like(self);
  const Tensor difference = number_minus(self);
  const Tensor clamped = call_tensor_op("aten::clamp_min_", difference, I{0});
  const Tensor of_margin = where("aten::ne", target, 1, clamped, zeros);
  const Tensor of_self = where("aten::ne", target, -1, self, zeros);
  const Tensor output = ops::add(of_margin, of_self, 1);
  return apply_loss_reduction(output, reduction);
}
const Op hinge_embedding_loss_op{
    {"aten::hinge_embedding_loss(Tensor self, Tensor target, float margin=1.0, int reduction=Mean) -> Tensor", Autocast::fp32, "", kSource},
    hinge_embedding_loss};

/// (-target * (input1 - input2) + margin).clamp_min_(0)
Tensor margin_ranking_loss(T input1, T input2, T target, double margin, I reduction) {
  Tensor output;
  {
    const Tensor difference = ops::sub(input1, input2, 1), negative = ops::neg(target), product = ops::mul(negative, difference);
    output = ops::add_scalar(product, margin);
  }
  output = call_tensor_op("aten::clamp_min_", output, I{0});
  return apply_loss_reduction(output, reduction);
}
const Op margin_ranking_loss_op{
    {"aten::margin_ranking_loss(Tensor input1, Tensor input2, Tensor target, float margin=0.0, int reduction=Mean) -> Tensor",
     Autocast::fp32, "", kSource},
    margin_ranking_loss};

Tensor sum_of_products(T a, T b, I dim) {
  const Tensor product = ops::mul(a, b);
  return ops::sum_dim(product, Dims{dim}, false, std::nullopt);
}
Tensor squared_magnitude(T x, I dim) {
  const Tensor product = ops::mul(x, x), sum = ops::sum_dim(product, Dims{dim}, false, std::nullopt);
  return ops::add_scalar(sum, 1e-12);
}
Tensor cosine_embedding_loss(T input1, T input2, T target, double margin, I reduction) {
  const int dim = target.dim();
  if (dim > 1) throw Error("0D or 1D target tensor expected, multi-target not supported");
  if (input1.dim() != dim + 1)
    throw Error("a target of " + std::to_string(dim) + " dimensions expects inputs of one more, found " + describe(input1) + " and " +
                describe(input2));
  const Tensor product = sum_of_products(input1, input2, dim);
  const Tensor magnitude1 = squared_magnitude(input1, dim), magnitude2 = squared_magnitude(input2, dim);
  const Tensor squared = ops::mul(magnitude1, magnitude2), denominator = call_tensor_op("aten::sqrt_", squared);
  const Tensor cosine = ops::div(product, denominator);
  const Tensor zeros = zeros_like(cosine);
  const Tensor pos = number_minus(cosine);
  const Tensor shifted = call_tensor_op("aten::sub", cosine, margin), neg = call_tensor_op("aten::clamp_min_", shifted, I{0});
  const Tensor of_pos = where("aten::eq", target, 1, pos, zeros);
  const Tensor of_neg = where("aten::eq", target, -1, neg, zeros);
  const Tensor output = ops::add(of_pos, of_neg, 1);
  return apply_loss_reduction(output, reduction);
}
const Op cosine_embedding_loss_op{
    {"aten::cosine_embedding_loss(Tensor input1, Tensor input2, Tensor target, float margin=0.0, int reduction=Mean) -> Tensor",
     Autocast::fp32, "", kSource},
    cosine_embedding_loss};

Tensor pairwise_distance(T a, T b, double p, double eps) { return call_tensor_op("aten::pairwise_distance", a, b, p, eps); }
Tensor triplet_margin_loss(T anchor, T positive, T negative, double margin, double p, double eps, bool swap, I reduction) {
  if (anchor.dim() != positive.dim() || positive.dim() != negative.dim())
    throw Error("All inputs should have the same dimension, found " + describe(anchor) + ", " + describe(positive) + " and " +
                describe(negative));
  const Tensor to_positive = pairwise_distance(anchor, positive, p, eps);
  Tensor to_negative = pairwise_distance(anchor, negative, p, eps);
  Tensor output;
  {
    if (swap) {
      const Tensor swapped = pairwise_distance(positive, negative, p, eps);
      to_negative = call_tensor_op("aten::min", to_negative, swapped);
    }
    const Tensor shifted = ops::add_scalar(to_positive, margin), difference = ops::sub(shifted, to_negative, 1);
    output = call_tensor_op("aten::clamp_min", difference, I{0});
  }
  return apply_loss_reduction(output, reduction);
}
const Op triplet_margin_loss_op{
    {"aten::triplet_margin_loss(Tensor anchor, Tensor positive, Tensor negative, float margin=1.0, float p=2, float eps=1e-06, bool "
     "swap=False, int reduction=Mean) -> Tensor",
     Autocast::fp32, "", kSource},
    triplet_margin_loss};

}  // namespace
}  // namespace memest
