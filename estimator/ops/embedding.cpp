// Sources: derivatives.yaml embedding, _embedding_bag; aten/src/ATen/native/{Embedding.cpp,EmbeddingBag.cpp},
// native/cuda/{Embedding,EmbeddingBackwardKernel,EmbeddingBag}.cu of 2.15.
#include "ops/embedding.h"

#include <fmt/format.h>

#include "ops/copy.h"
#include "ops/cub.h"
#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/views.h"

namespace memest {
namespace {
using I = std::int64_t;

void check_indices(const char* name, T weight, T indices) {
  if (weight.dim() != 2) throw Error(std::string(name) + ": the weight must be 2-D, found " + describe(weight));
  if (indices.dtype() != DType::int64 && indices.dtype() != DType::int32)
    throw Error(std::string(name) + ": the indices must be int64 or int32, found " + describe(indices),
                "an input's dtype is given as --input NAME=SHAPE:int64");
}
[[noreturn]] void refuse_sparse(const char* name) {
  throw Error(std::string(name) + ": gradients of sparse=True are not modelled", "use sparse=False");
}

// ---- the gradient of a table -----------------------------------------------------------------------------------------------------

/// embedding_backward_cuda_kernel: rows of equal indices are summed in pieces of ten, then the pieces. A table of
/// fewer rows than four for each multiprocessor, of many pieces each, gets them added atomically, in float32.
Tensor sum_segments(T grad, I n, int index_size, I rows, bool bags) {
  constexpr I kRowsPerThread = 10;  // NROWS_PER_THREAD
  const I width = grad.size(-1), segments = std::min(rows, n), pieces = n / kRowsPerThread + segments;
  const int sum_size = grad.dtype() == DType::float64 ? 8 : 4;
  Tensor result = ops::zeros({rows, width}, grad.dtype());
  Scratch offsets(checked_mul(n, index_size)), count(8);
  {
    Scratch keys(checked_mul(n, index_size));
    Scratch unique(cub_unique_by_key(n, index_size));
  }
  Scratch sizes(checked_mul(segments, index_size)), piece_offsets(checked_mul(segments, index_size));
  { Scratch scan(cub_scan(segments, index_size)); }
  Scratch piece_count(8), piece_starts(checked_mul(pieces, index_size));
  const bool atomic = !bags && rows < 4 * I{runtime().settings.device.multiprocessors} && pieces > 4 * rows;
  if (!atomic) {
    Scratch sums(checked_mul(checked_mul(pieces, width), sum_size));
    return result;
  }
  Scratch piece_segments(checked_mul(pieces, index_size));
  Scratch sums(is_reduced_floating(grad.dtype()) ? checked_mul(checked_mul(rows, width), sum_size) : 0);
  return result;
}

/// The indices sorted with their places, and how often each occurs where the gradient is divided by that.
Tensor grad_by_sorting(T grad, T indices, I rows, bool scale_grad_by_freq, bool bags) {
  if (!runtime().settings.kernel_scratch()) return ops::zeros({rows, grad.size(-1)}, grad.dtype());
  const I n = indices.numel();
  const int size = item_size(indices.dtype());
  const Bytes list = checked_mul(n, size);
  Scratch sorted(list), places(list);
  {
    Scratch range(list);
    Scratch sort(cub_radix_sort(n, size, size, bits_of(rows)));
  }
  std::optional<Scratch> counts;
  if (scale_grad_by_freq) {
    counts.emplace(list);
    { Scratch sums(cub_scan_by_key(n, size)); }
    { Scratch largest(cub_scan_by_key(n, size)); }
  }
  return sum_segments(grad, n, size, rows, bags);
}

Tensor embedding_dense_backward(T grad_output, T indices, I rows, bool scale_grad_by_freq) {
  constexpr I kMostUnsorted = 3072;
  const Tensor list = ops::contiguous_tensor(indices), grad = ops::contiguous_tensor(grad_output);
  if (list.numel() <= kMostUnsorted && !scale_grad_by_freq) return ops::zeros({rows, grad.size(-1)}, grad.dtype());
  return grad_by_sorting(grad, list, rows, scale_grad_by_freq, false);
}

/// What decomposed programs call.
Tensor dense_backward(T grad_output, T indices, I rows, I, bool scale_grad_by_freq) {
  return embedding_dense_backward(grad_output, indices, rows, scale_grad_by_freq);
}
const Op embedding_dense_backward_record{
    {"aten::embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, bool scale_grad_by_freq) "
     "-> Tensor",
     Autocast::none, "not differentiable here", "native/cuda/EmbeddingBackwardKernel.cu"},
    dense_backward};

Tensor embedding(T weight, T indices, I, bool scale_grad_by_freq, bool sparse) {
  check_indices("embedding", weight, indices);
  if (sparse && runtime().grad_mode && weight.requires_grad()) refuse_sparse("embedding");
  Tensor list = indices;
  auto fn = node("EmbeddingBackward0", {weight}, {indices}, [scale_grad_by_freq](Backward& w, T i) {
    w.out[0] = embedding_dense_backward(w.grad[0], i, w.sizes(0)[0], scale_grad_by_freq);
  });
  Dims sizes = indices.sizes();
  sizes.push_back(weight.sizes()[1]);
  if (indices.dim() != 1) list = ops::reshape(indices, {indices.numel()});
  Tensor y = empty(sizes, weight.dtype());
  fn.outputs({y});
  return y;
}

/// embedding_renorm_cuda_: the rows that occur, found by sorting.
Tensor embedding_renorm_(T self, T indices, double, double) {
  check_indices("embedding_renorm_", self, indices);
  ++self->storage->version;
  if (!runtime().settings.kernel_scratch()) return self;
  CategoryScope workspace(Category::workspace);
  const I n = indices.numel();
  const Tensor copy = empty({n}, indices.dtype());
  Values sorted = std::get<std::shared_ptr<List>>(call_op("aten::sort", {to_value(copy)}, {}))->items;
  sorted.pop_back();
  const Tensor unique = empty({n}, indices.dtype()), count = empty(Dims{}, DType::int64);
  Scratch scratch(cub_unique(n, item_size(indices.dtype())));
  return self;
}

// ---- bags ------------------------------------------------------------------------------------------------------------------------

enum BagMode : I { kSum, kMean, kMax };

ops::BagResult embedding_bag_kernel(T weight, T indices_, T offsets_, bool scale_grad_by_freq, I mode, bool sparse, T per_sample_weights,
                                    bool include_last_offset, I) {
  check_indices("embedding_bag", weight, indices_);
  if (indices_.dim() != 1 || offsets_.dim() != 1)
    throw Error(fmt::format("embedding_bag: indices and offsets must be 1-D, found {} and {}", describe(indices_), describe(offsets_)));
  if (sparse && runtime().grad_mode && weight.requires_grad()) refuse_sparse("embedding_bag");
  if (include_last_offset && offsets_.numel() < 1) throw Error("include_last_offset: numBags should be at least 1");
  auto fn = node("EmbeddingBagBackward0", {weight, per_sample_weights},
                 {indices_, offsets_, per_sample_weights, save_if(weight, per_sample_weights)},
                 [mode, scale_grad_by_freq](Backward& w, T i, T offsets, T, T, T, T, T) {
                   const Tensor grad = ops::contiguous_tensor(w.grad[0]);
                   if (w.needs(1)) w.out[1] = empty({i.numel()}, grad.dtype());
                   if (!w.needs(0)) return;
                   const I rows = w.sizes(0)[0];
                   if (mode == kMax) {
                     w.out[0] = ops::zeros({rows, grad.size(1)}, grad.dtype());
                     return;
                   }
                   const Tensor list = ops::to(i, promote_types(i.dtype(), offsets.dtype()));
                   w.out[0] = grad_by_sorting(grad, list, rows, scale_grad_by_freq, true);
                 });
  const DType type = promote_types(indices_.dtype(), offsets_.dtype());
  const Tensor indices = ops::to(indices_, type), offsets = ops::to(offsets_, type);
  const I bags = offsets.numel() - (include_last_offset ? 1 : 0), width = weight.size(1);
  Tensor bag_size = empty(offsets.sizes(), type);
  Tensor offset2bag = empty({indices.numel()}, type);
  Tensor output = empty({bags, width}, weight.dtype());
  Tensor max_indices = mode == kMax ? empty({bags, width}, type) : empty({0}, type);
  fn.outputs({output}, {offset2bag, bag_size, max_indices});
  return {output, offset2bag, bag_size, max_indices};
}
constexpr const char* kBag = "derivatives.yaml _embedding_bag; native/EmbeddingBag.cpp, native/cuda/EmbeddingBag.cu";
constexpr const char* kBagSaves = "indices, offsets, per_sample_weights, weight, result1, result2, result3";
const Op<ops::BagResult(T, T, T, bool, I, bool, T, bool, I)> embedding_bag_op{
    {"aten::_embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, "
     "Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)",
     Autocast::none, kBagSaves, kBag},
    embedding_bag_kernel};
const Op embedding_bag_plain_op{
    {"aten::embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, "
     "Tensor? per_sample_weights=None, bool include_last_offset=False) -> (Tensor, Tensor, Tensor, Tensor)",
     Autocast::none, "", kBag},
    +[](T weight, T indices, T offsets, bool scale_grad_by_freq, I mode, bool sparse, T per_sample_weights, bool include_last_offset) {
      return embedding_bag_op(weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, -1);
    }};

}  // namespace

namespace ops {
const Op<Tensor(T, T, I, bool, bool)> embedding{
    {"aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False) -> Tensor",
     Autocast::none, "indices", "derivatives.yaml embedding; native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu"},
    memest::embedding};
const Op<Tensor(T, T, double, double)> embedding_renorm_{
    {"aten::embedding_renorm_(Tensor(a!) self, Tensor indices, float max_norm, float norm_type) -> Tensor(a!)", Autocast::none, "",
     "native/cuda/Embedding.cu embedding_renorm_cuda_"},
    memest::embedding_renorm_};
const Op<BagResult(T, T, T, bool, I, bool, T, bool, std::optional<I>)> embedding_bag{
    {"aten::embedding_bag.padding_idx(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq, int mode, bool sparse, "
     "Tensor? per_sample_weights, bool include_last_offset, int? padding_idx) -> (Tensor, Tensor, Tensor, Tensor)",
     Autocast::none, "", kBag},
    +[](T weight, T indices, T offsets, bool scale_grad_by_freq, I mode, bool sparse, T per_sample_weights, bool include_last_offset,
        std::optional<I> padding_idx) {
      return embedding_bag_op(weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset,
                              padding_idx.value_or(-1));
    }};
}  // namespace ops
}  // namespace memest
