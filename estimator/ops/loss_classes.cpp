// Losses of scores for classes.
// Sources: derivatives.yaml; aten/src/ATen/native/LossNLL.cpp, native/cuda/{Loss,NLLLoss2d,MultiMarginLoss,MultiLabelMarginCriterion}.cu
// of 2.15.
#include "ops/copy.h"
#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/loss.h"
#include "ops/loss_reduction.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/views.h"

namespace memest {
namespace {
using I = std::int64_t;

// ---- nll -----------------------------------------------------------------------------------------------------------------
/// nll_loss_forward, nll_loss2d_forward: the second makes the total weight first, and copies of what is not contiguous.
template <bool Spatial>
Tensor nll_loss(T self, T target, T weight, I reduction, I) {
  Dims wanted = self.sizes();
  if (wanted.size() > 1)
    wanted.erase(1);
  else
    wanted = {};
  if (!(target.sizes() == wanted))
    throw Error("nll_loss: a target of shape " + to_string(wanted) + " is expected for an input of shape " + to_string(self.sizes()) +
                ", found " + to_string(target.sizes()));
  if (weight && weight.numel() != self.size(self.dim() == 1 ? 0 : 1))
    throw Error("nll_loss: weight must have one value for each class, found " + describe(weight) + " for " + describe(self));
  auto fn = node(Spatial ? "NllLoss2DBackward0" : "NllLossBackward0", {self}, {self, target, weight}, [](Backward& w, T x, T, T, T) {
    w.out[0] = empty(x.sizes(), x.dtype());
    if constexpr (!Spatial) const Tensor input = ops::contiguous_tensor(x);
  });
  Tensor total_weight, y;
  {
    NoGrad below;
    if constexpr (Spatial) total_weight = empty({}, self.dtype());
    y = reduction == kReductionNone ? empty(target.sizes(), self.dtype()) : empty({}, self.dtype());
    if constexpr (!Spatial) total_weight = empty({}, self.dtype());
    const Tensor input = ops::contiguous_tensor(self), classes = ops::contiguous_tensor(target);
  }
  fn.outputs({y}, {total_weight});
  return y;
}
const Op nll_loss_op{
    {"aten::nll_loss(Tensor self, Tensor target, Tensor? weight=None, int reduction=Mean, SymInt ignore_index=-100) -> Tensor",
     Autocast::fp32, "self, target, weight, total_weight", "derivatives.yaml nll_loss_forward; native/cuda/Loss.cu"},
    nll_loss<false>};
const Op nll_loss2d_op{
    {"aten::nll_loss2d(Tensor self, Tensor target, Tensor? weight=None, int reduction=Mean, SymInt ignore_index=-100) -> Tensor",
     Autocast::fp32, "self, target, weight, total_weight", "derivatives.yaml nll_loss2d_forward; native/cuda/NLLLoss2d.cu"},
    nll_loss<true>};
/// Other than 1, 2 or 4 dimensions become [N, C, 1, d1 * d2 * ...].
Tensor nll_loss_nd(T self, T target, T weight, I reduction, I ignore_index) {
  if (self.dim() < 1) throw Error("Expected 1 or more dimensions (got 0)");
  if (self.dim() != 1 && (target.dim() == 0 || self.size(0) != target.size(0)))
    throw Error("Expected input batch_size (" + std::to_string(self.size(0)) + ") to match target batch_size (" +
                (target.dim() ? std::to_string(target.size(0)) : "none") + ").");
  if (self.dim() <= 2) return nll_loss_op(self, target, weight, reduction, ignore_index);
  if (self.dim() == 4) return nll_loss2d_op(self, target, weight, reduction, ignore_index);
  const I n = self.size(0), c = self.size(1), positions = self.numel() / std::max<I>(1, n * c);
  if (target.numel() != n * positions)
    throw Error("nll_loss: a target for " + describe(self) + " has its sizes without the second, found " + describe(target));
  const Dims sizes = target.sizes();
  Tensor input = ops::contiguous_tensor(self), classes = ops::contiguous_tensor(target);
  input = ops::view(input, Dims{n, c, 1, positions});
  classes = ops::view(classes, Dims{n, 1, positions});
  const Tensor y = nll_loss2d_op(input, classes, weight, reduction, ignore_index);
  return reduction == kReductionNone ? ops::view(y, sizes) : y;
}
const Op nll_loss_nd_op{
    {"aten::nll_loss_nd(Tensor self, Tensor target, Tensor? weight=None, int reduction=Mean, SymInt ignore_index=-100) -> Tensor",
     Autocast::none, "", "native/LossNLL.cpp nll_loss_nd"},
    nll_loss_nd};

// ---- cross entropy -------------------------------------------------------------------------------------------------------
/// The weight with as many dimensions as the input, the classes at `class_dim`.
Tensor weight_for(T weight, T input, int class_dim) {
  Dims sizes = Dims::filled(input.dim(), 1);
  sizes[class_dim] = weight.size(0);
  return ops::view(weight, sizes);
}
/// -(input * target * weight), summed.
Tensor of_probabilities(T self, T probabilities, T weight, I reduction, double label_smoothing) {
  const int class_dim = self.dim() == 1 ? 0 : 1;
  const Tensor input = ops::log_softmax(self, class_dim, self.dtype());
  Tensor target = probabilities;
  if (label_smoothing > 0) {
    const Tensor scaled = ops::mul_scalar(target, 1 - label_smoothing);
    target = ops::add_scalar(scaled, label_smoothing);
  }
  Tensor weight_like;
  if (weight) weight_like = input.dim() > 1 ? weight_for(weight, input, 1) : weight;
  const Tensor product = ops::mul(input, target), weighted = weight ? ops::mul(product, weight_like) : Tensor();
  T terms = weight ? weighted : product;
  const Tensor sum =
      reduction == kReductionNone ? ops::sum_dim(terms, Dims{class_dim}, false, std::nullopt) : ops::sum(terms, std::nullopt);
  const Tensor negative = ops::neg(sum);
  return reduction == kReductionMean ? ops::div_scalar(negative, I{1}) : negative;
}
/// The sum of the weights of the classes that are not ignored.
Tensor weight_of_targets(T weight, T target, T ignored) {
  const Tensor kept = call_tensor_op("aten::bitwise_not", ignored), classes = call_tensor_op("aten::masked_select", target, kept);
  const Tensor flat = ops::flatten(classes, 0, -1), weights = call_tensor_op("aten::gather", weight, I{0}, flat);
  return ops::sum(weights, std::nullopt);
}
Tensor smoothed_mean(T smooth_loss, T weight, T target, T ignored) {
  if (weight) {
    const Tensor weights = weight_of_targets(weight, target, ignored), sum = ops::sum(smooth_loss, std::nullopt);
    return ops::div(sum, weights);
  }
  const Tensor kept = call_tensor_op("aten::bitwise_not", ignored);
  const Tensor count = ops::sum(kept, std::nullopt), sum = ops::sum(smooth_loss, std::nullopt);
  return ops::div(sum, count);
}
Tensor with_label_smoothing(T self, T target, T weight, I reduction, I ignore_index, double label_smoothing) {
  const int class_dim = self.dim() == 1 ? 0 : 1;
  const Tensor input = ops::log_softmax(self, class_dim, self.dtype());
  const Tensor nll = nll_loss_nd_op(input, target, weight, reduction, ignore_index);
  Tensor smooth_loss;
  {
    const Tensor weighted = weight ? ops::mul(input, weight_for(weight, input, class_dim)) : Tensor();
    const Tensor sum = ops::sum_dim(weight ? weighted : input, Dims{class_dim}, false, std::nullopt);
    smooth_loss = ops::neg(sum);
  }
  const Tensor ignored = call_tensor_op("aten::eq", target, ignore_index);
  smooth_loss = call_tensor_op("aten::masked_fill_", smooth_loss, ignored, 0.0);
  const Tensor reduced = reduction == kReductionMean  ? smoothed_mean(smooth_loss, weight, target, ignored)
                         : reduction == kReductionSum ? ops::sum(smooth_loss, std::nullopt)
                                                      : smooth_loss;
  const Tensor smooth = ops::mul_scalar(reduced, label_smoothing), exact = ops::mul_scalar(nll, 1 - label_smoothing);
  return ops::add(exact, smooth, 1);
}
Tensor cross_entropy_loss(T self, T target, T weight, I reduction, I ignore_index, double label_smoothing) {
  if (label_smoothing < 0 || label_smoothing > 1)
    throw Error("label_smoothing must be between 0.0 and 1.0. Got: " + std::to_string(label_smoothing));
  if (self.sizes() == target.sizes()) {
    if (!is_floating(target.dtype()))
      throw Error("Expected floating point type for target with class probabilities, got " + std::string(name_of(target.dtype())));
    return of_probabilities(self, target, weight, reduction, label_smoothing);
  }
  if (label_smoothing > 0) return with_label_smoothing(self, target, weight, reduction, ignore_index, label_smoothing);
  // LossNLL.cpp passes the input's own type, so autocast leaves log_softmax in it
  return nll_loss_nd_op(ops::log_softmax(self, self.dim() == 1 ? 0 : 1, self.dtype()), target, weight, reduction, ignore_index);
}

// ---- margins ---------------------------------------------------------------------------------------------------------------
/// One loss for each row, summed into the result by another kernel.
Tensor multi_margin_loss(T self, T target, const Scalar& p, const Scalar&, T weight, I reduction) {
  if (p.to_double() != 1 && p.to_double() != 2) throw Error("multi_margin_loss: invalid p, expected 1 or 2");
  auto fn = node("MultiMarginLossBackward0", {self}, {self, target, weight},
                 [](Backward& w, T x, T, T) { w.out[0] = empty(x.sizes(), x.dtype()); });
  NoGrad below;
  const bool one_each = reduction == kReductionNone && target.dim() > 0;
  Tensor y = empty(one_each ? target.sizes() : Dims(), self.dtype());
  const Tensor input = ops::contiguous_tensor(self), classes = ops::contiguous_tensor(target);
  if (self.dim() > 1 && !one_each) {
    const Tensor rows = empty({self.size(0)}, self.dtype());
    reduction_scratch(rows, kReductionSum);
  }
  fn.outputs({y});
  return y;
}
const Op multi_margin_loss_op{
    {"aten::multi_margin_loss(Tensor self, Tensor target, Scalar p=1, Scalar margin=1, Tensor? weight=None, int reduction=Mean) -> Tensor",
     Autocast::fp32, "self, target, weight", "derivatives.yaml; native/cuda/MultiMarginLoss.cu"},
    multi_margin_loss};

Tensor multilabel_margin_loss(T self, T target, I reduction) {
  auto fn =
      node("MultilabelMarginLossBackward0", {self}, {self, target}, [](Backward& w, T x, T, T) { w.out[0] = empty(x.sizes(), x.dtype()); });
  NoGrad below;
  const Tensor input = ops::contiguous_tensor(self), classes = ops::contiguous_tensor(target);
  const Tensor is_target = empty(target.sizes(), self.dtype());
  Tensor y;
  if (self.dim() > 1 && reduction != kReductionNone) {
    const Tensor rows = empty({self.size(0)}, self.dtype());
    y = empty({}, self.dtype());
    reduction_scratch(rows, kReductionSum);
  } else {
    y = empty(self.dim() > 1 ? Dims{self.size(0)} : Dims(), self.dtype());
  }
  fn.outputs({y}, {is_target});
  return y;
}
const Op multilabel_margin_loss_op{
    {"aten::multilabel_margin_loss(Tensor self, Tensor target, int reduction=Mean) -> Tensor", Autocast::fp32, "self, target, is_target",
     "derivatives.yaml; native/cuda/MultiLabelMarginCriterion.cu"},
    multilabel_margin_loss};

}  // namespace

namespace ops {
const Op<Tensor(T, T, T, std::int64_t, std::int64_t, double)> cross_entropy_loss{
    {"aten::cross_entropy_loss(Tensor self, Tensor target, Tensor? weight=None, int reduction=Mean, SymInt ignore_index=-100, float "
     "label_smoothing=0.0) -> Tensor",
     Autocast::none, "", "native/LossNLL.cpp cross_entropy_loss"},
    memest::cross_entropy_loss};
}  // namespace ops
}  // namespace memest
