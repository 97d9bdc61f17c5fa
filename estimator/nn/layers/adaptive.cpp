// torch.nn.AdaptiveLogSoftmaxWithLoss (torch/nn/modules/adaptive.py), statement by statement. How many rows of a batch fall into a cluster
// depends on the targets: they are taken to be spread evenly over the classes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "nn/layer.h"
#include "ops/indexing.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

Tensor op(const char* name, const Values& arguments) { return Unbox<Tensor>::from(call_op(name, arguments, {})); }
ModulePtr linear(I in, I out, bool bias) { return make_layer("Linear", {{"in_features", in}, {"out_features", out}, {"bias", bias}}); }

class AdaptiveLogSoftmaxWithLoss final : public Module {
 public:
  AdaptiveLogSoftmaxWithLoss(I in_features, I classes, const Dims& cutoffs, double div_value, bool head_bias)
      : Module("AdaptiveLogSoftmaxWithLoss"), cutoffs_(cutoffs) {
    check_cutoffs(classes);
    cutoffs_.push_back(classes);
    const I clusters = cutoffs_.size() - 1;
    head_ = register_module("head", linear(in_features, cutoffs_[0] + clusters, head_bias));
    tail_ = register_module("tail", std::make_shared<ModuleList>(std::vector<ModulePtr>{}));
    for (int i = 0; i < clusters; ++i) {
      const I hidden = I(double(in_features) / std::pow(div_value, i + 1));
      if (hidden < 1) throw Error(fmt::format("AdaptiveLogSoftmaxWithLoss: div_value {} leaves cluster {} without features", div_value, i));
      auto projection = std::make_shared<Sequential>();
      projection->append(linear(in_features, hidden, false));
      projection->append(linear(hidden, cutoffs_[i + 1] - cutoffs_[i], false));
      tail_->append(projection);
    }
  }

 protected:
  Value forward(const Values& arguments, const KeywordArguments&) override {
    if (arguments.size() != 2) throw Error("AdaptiveLogSoftmaxWithLoss takes input_ and target_");
    const Tensor given = Unbox<Tensor>::from(arguments[0]), given_target = Unbox<Tensor>::from(arguments[1]);
    check_inputs(given, given_target);
    const bool batched = given_target.dim() > 0;
    const Tensor input = batched ? given : ops::unsqueeze(given, 0), target = batched ? given_target : ops::unsqueeze(given_target, 0);
    Names n;
    n.output = ops::zeros({target.size(0)}, input.dtype());
    n.gather_inds = empty({target.size(0)}, target.dtype());
    ops::note_data_dependent("AdaptiveLogSoftmaxWithLoss", "targets are spread evenly over the classes");
    for (int i = 0; i < cutoffs_.size(); ++i) cluster(n, i, input, target);
    const Tensor head_output = (*head_)(input);
    const Tensor head_logprob = ops::log_softmax(head_output, 1, std::nullopt);
    {  // output += head_logprob.gather(1, gather_inds.unsqueeze(1)).squeeze()
      const Tensor gathered = ops::gather(head_logprob, 1, ops::unsqueeze(n.gather_inds, 1), false);
      n.output = ops::add_(n.output, op("aten::squeeze", {gathered}), 1);
    }
    Tensor loss;
    {
      const Tensor negative = ops::neg(n.output);
      loss = ops::mean(negative, std::nullopt);
    }
    if (!batched) n.output = ops::squeeze_dim(n.output, 0);
    return make_tuple({n.output, loss});
  }

 private:
  /// The names of forward that live from one cluster to the next.
  struct Names {
    Tensor output, gather_inds, target_mask, row_indices, relative_target, input_subset, cluster_output, cluster_logprob, local_logprob;
  };
  void check_cutoffs(I classes) const {
    bool right = !cutoffs_.empty() && cutoffs_[0] > 0 && cutoffs_.back() <= classes - 1;
    for (int i = 1; i < cutoffs_.size(); ++i) right &= cutoffs_[i - 1] < cutoffs_[i];
    if (!right)
      throw Error(
          "cutoffs should be a sequence of unique, positive integers sorted in an increasing order, where each value is between 1 and "
          "n_classes-1");
  }
  static void check_inputs(T input, T target) {
    if (target.dim() > 1) throw Error("0D or 1D target tensor expected, multi-target not supported");
    if (input.dim() != target.dim() + 1)
      throw Error(fmt::format("{}D target tensor expects {}D input tensors, but found inputs with size {}", target.dim(), target.dim() + 1,
                              to_string(input.sizes())));
    if (target.dim() == 1 && input.size(0) != target.size(0))
      throw Error("Input and target should have the same size in the batch dimension.");
  }
  /// Rows of the batch below the i-th cutoff.
  I rows_below(int i, I batch) const { return i < 0 ? 0 : checked_mul(batch, cutoffs_[i]) / cutoffs_.back(); }

  void cluster(Names& n, int i, T input, T target) {
    const I rows = rows_below(i, target.size(0)) - rows_below(i - 1, target.size(0));
    const ops::AssumedSelection selection(rows);
    {  // (target >= low_idx) & (target < high_idx)
      const Tensor from = op("aten::ge", {target, I{0}}), below = op("aten::lt", {target, I{0}});
      n.target_mask = op("aten::bitwise_and", {from, below});
    }
    n.row_indices = op("aten::squeeze", {op("aten::nonzero", {n.target_mask})});
    if (rows == 0) return;
    if (i == 0) {
      const Tensor values = chosen(target, n.target_mask);
      n.gather_inds = op("aten::index_copy_", {n.gather_inds, I{0}, n.row_indices, values});
      return;
    }
    {
      const Tensor values = chosen(target, n.target_mask);
      n.relative_target = op("aten::sub", {values, I{1}});
    }
    n.input_subset = ops::index_select(input, 0, n.row_indices);
    n.cluster_output = Unbox<Tensor>::from(tail_->children()[std::size_t(i - 1)].second->call({n.input_subset}));
    n.gather_inds = op("aten::index_fill_", {n.gather_inds, I{0}, n.row_indices, I{0}});
    n.cluster_logprob = ops::log_softmax(n.cluster_output, 1, std::nullopt);
    n.local_logprob = ops::gather(n.cluster_logprob, 1, ops::unsqueeze(n.relative_target, 1), false);
    n.output = op("aten::index_copy_", {n.output, I{0}, n.row_indices, ops::squeeze_dim(n.local_logprob, 1)});
  }
  static Tensor chosen(T target, T mask) { return ops::index(target, Tensors{mask}); }

  Dims cutoffs_;
  ModulePtr head_;
  std::shared_ptr<ModuleList> tail_;
};
const Layer adaptive_log_softmax_with_loss{
    "AdaptiveLogSoftmaxWithLoss(int in_features, int n_classes, int[] cutoffs, float div_value=4.0, bool head_bias=False)",
    [](I in_features, I classes, const Dims& cutoffs, double div_value, bool head_bias) -> ModulePtr {
      return std::make_shared<AdaptiveLogSoftmaxWithLoss>(in_features, classes, cutoffs, div_value, head_bias);
    }};

}  // namespace
}  // namespace memest::nn
