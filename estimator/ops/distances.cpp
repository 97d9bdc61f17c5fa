// Distances and similarities of vectors.
// Sources: derivatives.yaml; FunctionsManual.cpp _euclidean_dist_backward; aten/src/ATen/native/Distance.cpp, native/cuda/DistanceKernel.cu
// of 2.15.
#include "ops/copy.h"
#include "ops/expression.h"
#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/loss_reduction.h"
#include "ops/matmul.h"
#include "ops/norms.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/views.h"

namespace memest {
namespace {
using I = std::int64_t;

// ---- cosine_similarity, pairwise_distance ----------------------------------------------------------------------------------
/// Each tensor over its own norm, clamped in place by a tensor of eps without grad.
Tensor cosine_similarity(T x1_, T x2_, I dim, double) {
  const DType type = result_type({x1_, x2_});
  const Dims sizes = broadcast(x1_.sizes(), x2_.sizes());
  const Tensor x2 = ops::expand(ops::to(x2_, type), sizes, false), x1 = ops::expand(ops::to(x1_, type), sizes, false);
  auto norm_of = [dim](T x) {
    const Tensor norm = ops::vector_norm(x, 2, Dims{dim}, true, std::nullopt);
    return ops::clone(norm, std::nullopt);
  };
  const Tensor norm1 = norm_of(x1), norm2 = norm_of(x2);
  const Tensor eps = empty({}, op_math_type(type));
  const Tensor right = ops::div(x2, norm2), left = ops::div(x1, norm1);
  const Tensor product = ops::mul(left, right);
  return ops::sum_dim(product, Dims{dim}, false, std::nullopt);
}
const Op cosine_similarity_op{{"aten::cosine_similarity(Tensor x1, Tensor x2, int dim=1, float eps=1e-08) -> Tensor", Autocast::fp32, "",
                               "native/Distance.cpp cosine_similarity"},
                              cosine_similarity};

Tensor pairwise_distance(T x1, T x2, double p, double eps, bool keepdim) {
  const Tensor difference = ops::sub(x1, x2, 1), shifted = ops::add_scalar(difference, eps);
  return call_tensor_op("aten::norm", shifted, p, Dims{-1}, keepdim);
}
const Op pairwise_distance_op{{"aten::pairwise_distance(Tensor x1, Tensor x2, float p=2, float eps=1e-06, bool keepdim=False) -> Tensor",
                               Autocast::none, "", "native/Distance.cpp pairwise_distance"},
                              pairwise_distance};

// ---- cdist -------------------------------------------------------------------------------------------------------------------
Tensor squared_norms(T x) {
  const Tensor squares = ops::unary("aten::pow", x);
  return ops::sum_dim(squares, Dims{-1}, true, std::nullopt);
}
/// x * sums - ratio.matmul(other): the gradient of one side, all of whose temporaries live on in `alive`.
Tensor euclidean_gradient(Tensors& alive, T x, T ratio, T other, I summed, bool keepdim) {
  const Tensor product = alive.emplace_back(ops::matmul(ratio, other));
  Tensor sums = alive.emplace_back(ops::sum_dim(ratio, Dims{summed}, keepdim, std::nullopt));
  if (!keepdim) sums = ops::unsqueeze(sums, -1);
  const Tensor scaled = alive.emplace_back(ops::binary("aten::mul", x, sums));
  return ops::binary("aten::sub", scaled, product);
}
/// By one matrix product of inputs padded with their norms and ones.
Tensor euclidean_dist(T x1, T x2) {
  auto fn = node("EuclideanDistBackward0", {x1, x2}, {x1, x2}, [](Backward& w, T a, T b, T result) {
    const Tensor ratio = ops::binary("aten::div", w.grad[0], result);
    { const Tensor zero = compare("aten::eq", result, 0); }
    Tensors alive;
    w.out[0] = euclidean_gradient(alive, a, ratio, b, -1, true);
    w.out[1] = euclidean_gradient(alive, b, ops::transpose(ratio, -2, -1), a, -1, false);
    while (!alive.empty()) alive.pop_back();
  });
  Tensor y;
  {
    NoGrad below;
    Tensor norm1 = squared_norms(x1), ones1 = ops::ones_like(norm1, std::nullopt, MemoryFormat::contiguous);
    Tensor norm2 = squared_norms(x2), ones2 = ops::ones_like(norm2, std::nullopt, MemoryFormat::contiguous);
    Tensor scaled = ops::unary("aten::mul", x1);
    const Tensor left = ops::cat({scaled, norm1, ones1}, -1);
    ones1.reset(), norm1.reset(), scaled.reset();
    const Tensor right = ops::cat({x2, ones2, norm2}, -1);
    norm2.reset(), ones2.reset();
    y = ops::matmul(left, ops::transpose(right, -2, -1));
  }
  fn.outputs({y}, {y});
  return y;
}
Tensor contiguous_transpose(T x) { return ops::contiguous_tensor(ops::transpose(x, -2, -1)); }
Dims batch_sizes(T a, T b) { return broadcast(a.sizes().slice(0, a.dim() - 2), b.sizes().slice(0, b.dim() - 2)); }
Tensor batch_expanded(T x, const Dims& batch) {
  return ops::contiguous_tensor(ops::expand(x, batch + x.sizes().slice(x.dim() - 2, x.dim()), false));
}
/// _cdist_backward: inputs of the common batch sizes, the gradient, and a buffer with one for each pair.
Tensor cdist_gradient(T x, T other) {
  const Dims batch = batch_sizes(x, other);
  const Tensor x1 = batch_expanded(x, batch), x2 = batch_expanded(other, batch);
  const Tensor gradient = empty({batch.numel(), x.size(-2), x.size(-1)}, x.dtype());
  if (runtime().settings.kernel_scratch()) const Tensor buffer = empty({batch.numel(), other.size(-2), x.size(-2), x.size(-1)}, x.dtype());
  return ops::view(gradient, x1.sizes());
}
/// Every pair on its own. Inputs of equal batch sizes: others are copied to their common ones.
Tensor cdist_forward(T x1, T x2, const Dims& output_sizes) {
  auto fn = node("CdistBackward0", {x1, x2}, {x1, x2}, [](Backward& w, T a, T b, T result) {
    if (w.needs(0)) {
      const Tensor g = ops::contiguous_tensor(w.grad[0]);
      w.out[0] = cdist_gradient(a, b);
    }
    if (w.needs(1)) {
      const Tensor distances = contiguous_transpose(result), g = contiguous_transpose(w.grad[0]);
      w.out[1] = cdist_gradient(b, a);
    }
  });
  Tensor y;
  {
    NoGrad below;
    const Dims batch = batch_sizes(x1, x2);
    const Tensor tensor1 = batch_expanded(x1, batch), tensor2 = batch_expanded(x2, batch);
    y = empty(output_sizes, x1.dtype());
  }
  fn.outputs({y}, {y});
  return y;
}
Tensor cdist(T x1, T x2, double p, std::optional<I> compute_mode) {
  if (x1.dim() < 2 || x2.dim() < 2) throw Error("cdist only supports at least 2D tensors, found " + describe(x1) + " and " + describe(x2));
  if (x1.size(-1) != x2.size(-1))
    throw Error("X1 and X2 must have the same number of columns. X1: " + std::to_string(x1.size(-1)) +
                " X2: " + std::to_string(x2.size(-1)));
  const I mode = compute_mode.value_or(0), rows1 = x1.size(-2), rows2 = x2.size(-2), columns = x1.size(-1);
  const Dims batch = batch_sizes(x1, x2);
  const Dims sizes = batch + Dims{rows1, rows2};
  const bool by_product = p == 2 && (mode == 1 || (mode == 0 && (rows1 > 25 || rows2 > 25)));
  if (!by_product) return cdist_forward(x1, x2, sizes);
  auto batched = [&](T x, I rows) { return ops::view(batch_expanded(x, batch), {batch.numel(), rows, columns}); };
  const Tensor tensor1 = batched(x1, rows1), tensor2 = batched(x2, rows2);
  const Tensor distances = batch.numel() == 1 ? euclidean_dist(x1, x2) : euclidean_dist(tensor1, tensor2);
  return ops::view(distances, sizes);
}
const Op cdist_op{{"aten::cdist(Tensor x1, Tensor x2, float p=2, int? compute_mode=None) -> Tensor", Autocast::fp32, "x1, x2, result",
                   "derivatives.yaml _cdist_forward, _euclidean_dist; native/Distance.cpp, native/cuda/DistanceKernel.cu"},
                  cdist};

// ---- pdist -------------------------------------------------------------------------------------------------------------------
Tensor pdist(T given, double) {
  if (given.dim() != 2) throw Error("pdist only supports 2D tensors, got: " + std::to_string(given.dim()) + "D");
  const Tensor self = ops::contiguous_tensor(given);
  const I n = self.size(0);
  auto fn = node("PdistBackward0", {self}, {self}, [n](Backward& w, T x, T) {
    w.out[0] = empty(x.sizes(), x.dtype());
    if (n > 1 && runtime().settings.kernel_scratch()) const Tensor buffer = empty({n - 1, n, x.size(1)}, x.dtype());
  });
  Tensor y = empty({n * (n - 1) / 2}, self.dtype());
  fn.outputs({y}, {y});
  return y;
}
const Op pdist_op{{"aten::pdist(Tensor self, float p=2) -> Tensor", Autocast::fp32, "self, result",
                   "derivatives.yaml _pdist_forward; native/Distance.cpp, native/cuda/DistanceKernel.cu"},
                  pdist};

}  // namespace
}  // namespace memest
