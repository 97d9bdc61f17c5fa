// torch.nn.Embedding, EmbeddingBag (torch/nn/modules/sparse.py) and their functions (torch/nn/functional.py).
#include <fmt/format.h>

#include "fake/autograd.h"
#include "nn/layer.h"
#include "ops/copy.h"
#include "ops/embedding.h"
#include "ops/views.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

/// Counted from the table's start; -1 for none.
I padding_row(std::optional<I> padding_idx, I rows) {
  if (!padding_idx) return -1;
  if (*padding_idx >= rows || *padding_idx < -rows)
    throw Error(fmt::format("padding_idx must be within num_embeddings: found {} of {}", *padding_idx, rows));
  return *padding_idx < 0 ? rows + *padding_idx : *padding_idx;
}
void renorm(T weight, T input, std::optional<double> max_norm, double norm_type) {
  if (!max_norm) return;
  NoGrad below;
  ops::embedding_renorm_(weight, input, *max_norm, norm_type);
}

Tensor embedding(Tensor input, Tensor weight, std::optional<I> padding_idx, std::optional<double> max_norm, double norm_type,
                 bool scale_grad_by_freq, bool sparse) {
  if (is_floating(input.dtype()) && !is_floating(weight.dtype())) std::swap(input, weight);  // torch.embedding has the table first
  const I padding = padding_row(padding_idx, weight.size(0));
  if (max_norm) input = ops::contiguous_tensor(input);
  renorm(weight, input, max_norm, norm_type);
  return ops::embedding(weight, input, padding, scale_grad_by_freq, sparse);
}
const Function embedding_function{
    "embedding(Tensor input, Tensor weight, int? padding_idx=None, float? max_norm=None, float norm_type=2.0, bool "
    "scale_grad_by_freq=False, bool sparse=False)",
    embedding};

Tensor embedding_bag(Tensor input, Tensor weight, Tensor offsets, std::optional<double> max_norm, double norm_type, bool scale_grad_by_freq,
                     const std::string& mode, bool sparse, Tensor per_sample_weights, bool include_last_offset,
                     std::optional<I> padding_idx) {
  if (is_floating(input.dtype()) && !is_floating(weight.dtype())) std::swap(input, weight);
  if (per_sample_weights && !(input.sizes() == per_sample_weights.sizes()))
    throw Error("embedding_bag: per_sample_weights must have the shape of the input, found " + describe(per_sample_weights) + " and " +
                describe(input));
  if (weight.dim() != 2) throw Error("weight has to be a 2D Tensor, but got " + describe(weight));
  if (input.dim() == 2) {
    if (offsets) throw Error("if input is 2D, then offsets has to be None, as input is treated is a mini-batch of fixed length sequences");
    offsets = Unbox<Tensor>::from(call_op("aten::arange", {I{0}, input.numel(), input.size(1)}, {{"dtype", input.dtype()}}));
    include_last_offset = false;
    input = ops::reshape(input, {-1});
    if (per_sample_weights) per_sample_weights = ops::reshape(per_sample_weights, {-1});
  } else if (input.dim() != 1) {
    throw Error("input has to be 1D or 2D Tensor, but got " + describe(input));
  } else if (!offsets || offsets.dim() != 1) {
    throw Error("offsets has to be a 1D Tensor");
  }
  const I kind = mode == "sum" ? 0 : mode == "mean" ? 1 : mode == "max" ? 2 : -1;
  if (kind < 0) throw Error("mode has to be one of sum, mean or max, found '" + mode + "'");
  if (kind == 2 && (scale_grad_by_freq || sparse))
    throw Error("max mode does not support scaling the gradient by the frequency, or sparse weights");
  renorm(weight, input, max_norm, norm_type);
  if (per_sample_weights && kind != 0)
    throw Error("embedding_bag: per_sample_weights is only supported for mode='sum' (got mode='" + mode + "')");
  auto [result, offset2bag, bag_size, max_indices] =
      ops::embedding_bag(weight, input, offsets, scale_grad_by_freq, kind, sparse, per_sample_weights, include_last_offset, padding_idx);
  offset2bag.reset();
  bag_size.reset();
  offsets.reset();
  max_indices.reset();
  return result;
}
const Function embedding_bag_function{
    "embedding_bag(Tensor input, Tensor weight, Tensor? offsets=None, float? max_norm=None, float norm_type=2.0, bool "
    "scale_grad_by_freq=False, str mode='mean', bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int? "
    "padding_idx=None)",
    embedding_bag};

class Embedding final : public UnaryModule {
 public:
  Embedding(I rows, I width, std::optional<I> padding_idx, std::optional<double> max_norm, double norm_type, bool by_freq, bool sparse)
      : UnaryModule("Embedding"),
        padding_idx_(padding_idx),
        max_norm_(max_norm),
        norm_type_(norm_type),
        by_freq_(by_freq),
        sparse_(sparse) {
    padding_row(padding_idx, rows);
    new_parameter("weight", {rows, width});
  }
  Tensor forward(T input) override { return embedding(input, parameter(0), padding_idx_, max_norm_, norm_type_, by_freq_, sparse_); }

 private:
  std::optional<I> padding_idx_;
  std::optional<double> max_norm_;
  double norm_type_;
  bool by_freq_, sparse_;
};
const Layer embedding_layer{
    "Embedding(int num_embeddings, int embedding_dim, int? padding_idx=None, float? max_norm=None, float norm_type=2.0, bool "
    "scale_grad_by_freq=False, bool sparse=False)",
    [](I rows, I width, std::optional<I> padding_idx, std::optional<double> max_norm, double norm_type, bool by_freq,
       bool sparse) -> ModulePtr { return std::make_shared<Embedding>(rows, width, padding_idx, max_norm, norm_type, by_freq, sparse); }};

class EmbeddingBag final : public Module {
 public:
  struct Options {
    std::optional<double> max_norm;
    double norm_type;
    bool by_freq;
    std::string mode;
    bool sparse, include_last_offset;
    std::optional<I> padding_idx;
  };
  EmbeddingBag(I rows, I width, const Options& o) : Module("EmbeddingBag"), o_(o) {
    padding_row(o.padding_idx, rows);
    new_parameter("weight", {rows, width});
  }

 protected:
  Value forward(const Values& arguments, const KeywordArguments& keywords) override {
    static const Schema schema = Schema::parse("EmbeddingBag(Tensor input, Tensor? offsets=None, Tensor? per_sample_weights=None)");
    std::string problem;
    auto values = bind_arguments(schema, arguments, keywords, problem);
    if (!values) throw Error(problem, "its forward takes input, offsets=None, per_sample_weights=None");
    auto tensor = [&](std::size_t i) { return Unbox<Tensor>::from((*values)[i]); };
    return to_value(embedding_bag(tensor(0), parameter(0), tensor(1), o_.max_norm, o_.norm_type, o_.by_freq, o_.mode, o_.sparse, tensor(2),
                                  o_.include_last_offset, o_.padding_idx));
  }

 private:
  const Options o_;
};
const Layer embedding_bag_layer{
    "EmbeddingBag(int num_embeddings, int embedding_dim, float? max_norm=None, float norm_type=2.0, bool scale_grad_by_freq=False, str "
    "mode='mean', bool sparse=False, bool include_last_offset=False, int? padding_idx=None)",
    [](I rows, I width, std::optional<double> max_norm, double norm_type, bool by_freq, const std::string& mode, bool sparse,
       bool include_last_offset, std::optional<I> padding_idx) -> ModulePtr {
      return std::make_shared<EmbeddingBag>(
          rows, width, EmbeddingBag::Options{max_norm, norm_type, by_freq, mode, sparse, include_last_offset, padding_idx});
    }};

}  // namespace
}  // namespace memest::nn
