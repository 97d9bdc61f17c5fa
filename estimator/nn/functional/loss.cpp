// The losses of torch/nn/functional.py (2.15), statement by statement.
#include <fmt/format.h>

#include <cmath>

#include "nn/layer.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;
using Flag = std::optional<bool>;
enum : I { kNone, kMean, kSum };

/// torch/nn/_reduction.py: get_enum, and legacy_get_enum where size_average or reduce is given.
I reduction_of(const std::string& reduction, const Flag& size_average = {}, const Flag& reduce = {}) {
  if (size_average || reduce) return !reduce.value_or(true) ? kNone : size_average.value_or(true) ? kMean : kSum;
  if (reduction == "none") return kNone;
  if (reduction == "mean" || reduction == "elementwise_mean") return kMean;
  if (reduction == "sum") return kSum;
  throw Error(fmt::format("{} is not a valid value for reduction", reduction.substr(0, 60)), "it is none, mean or sum");
}
Tensor op(const char* name, const Values& arguments) { return Unbox<Tensor>::from(call_op(name, arguments, {})); }
Tensor reduced(T loss, I reduction) {
  return reduction == kMean ? ops::mean(loss, std::nullopt) : reduction == kSum ? ops::sum(loss, std::nullopt) : loss;
}

/// expanded_input, expanded_target = torch.broadcast_tensors(input, target)
std::pair<Tensor, Tensor> broadcast_tensors(T input, T target) {
  const Tensors expanded = Unbox<Tensors>::from(call_op("aten::broadcast_tensors", {list_of(Tensors{input, target})}, {}));
  return {expanded.at(0), expanded.at(1)};
}
void check_weight(T weight, T input) {
  if (!(weight.sizes() == input.sizes())) throw Error("Weights and input must have the same size.");
}
/// torch.sum(errors * weight) / torch.sum(weight). Python's locals go in the order in which they were named.
Tensor weighted(Tensor errors, T weight, I reduction) {
  Tensor weighted_errors = ops::mul(errors, weight);
  if (reduction == kNone) return weighted_errors;
  Tensor sum = ops::sum(weighted_errors, std::nullopt);
  if (reduction == kMean) {
    const Tensor weights = ops::sum(weight, std::nullopt);
    Tensor mean = ops::div(sum, weights);
    sum = std::move(mean);
  }
  errors.reset();
  return sum;
}
const Function l1_loss_f{
    "l1_loss(Tensor input, Tensor target, bool? size_average=None, bool? reduce=None, str reduction='mean', Tensor? weight=None)",
    [](T input, T target, const Flag& size_average, const Flag& reduce, const std::string& reduction, T weight) {
      const I how = reduction_of(reduction, size_average, reduce);
      const auto [x, y] = broadcast_tensors(input, target);
      if (!weight) return op("aten::l1_loss", {x, y, how});
      check_weight(weight, input);
      Tensor absolute_errors;
      {
        const Tensor difference = ops::sub(x, y, 1);
        absolute_errors = op("aten::abs", {difference});
      }
      return weighted(std::move(absolute_errors), weight, how);
    }};
const Function mse_loss_f{
    "mse_loss(Tensor input, Tensor target, bool? size_average=None, bool? reduce=None, str reduction='mean', Tensor? weight=None)",
    [](T input, T target, const Flag& size_average, const Flag& reduce, const std::string& reduction, T weight) {
      const I how = reduction_of(reduction, size_average, reduce);
      const auto [x, y] = broadcast_tensors(input, target);
      if (!weight) return ops::mse_loss(x, y, how);
      check_weight(weight, input);
      Tensor squared_errors;
      {
        const Tensor difference = ops::sub(x, y, 1);
        squared_errors = ops::pow_scalar(difference, I{2});
      }
      return weighted(std::move(squared_errors), weight, how);
    }};
const Function smooth_l1_loss_f{
    "smooth_l1_loss(Tensor input, Tensor target, bool? size_average=None, bool? reduce=None, str reduction='mean', float beta=1.0)",
    [](T input, T target, const Flag& size_average, const Flag& reduce, const std::string& reduction, double beta) {
      const I how = reduction_of(reduction, size_average, reduce);
      const auto [x, y] = broadcast_tensors(input, target);
      return beta == 0 ? op("aten::l1_loss", {x, y, how}) : op("aten::smooth_l1_loss", {x, y, how, beta});
    }};
const Function huber_loss_f{"huber_loss(Tensor input, Tensor target, str reduction='mean', float delta=1.0, Tensor? weight=None)",
                            [](T input, T target, const std::string& reduction, double delta, T weight) {
                              const I how = reduction_of(reduction);
                              const auto [x, y] = broadcast_tensors(input, target);
                              if (!weight) return op("aten::huber_loss", {x, y, how, delta});
                              check_weight(weight, input);
                              Tensor unweighted_loss = op("aten::huber_loss", {x, y, I{kNone}, delta});
                              const Tensor weighted_loss = ops::mul(unweighted_loss, weight);
                              Tensor loss = reduced(weighted_loss, how);
                              unweighted_loss.reset();
                              return loss;
                            }};
const Function soft_margin_loss_f{
    "soft_margin_loss(Tensor input, Tensor target, bool? size_average=None, bool? reduce=None, str reduction='mean')",
    [](T input, T target, const Flag& size_average, const Flag& reduce, const std::string& reduction) {
      return op("aten::soft_margin_loss", {input, target, reduction_of(reduction, size_average, reduce)});
    }};

// ---- probabilities -------------------------------------------------------------------------------------------------------
const Function binary_cross_entropy_f{
    "binary_cross_entropy(Tensor input, Tensor target, Tensor? weight=None, bool? size_average=None, bool? reduce=None, str "
    "reduction='mean')",
    [](T input, T target, T given_weight, const Flag& size_average, const Flag& reduce, const std::string& reduction) {
      const I how = reduction_of(reduction, size_average, reduce);
      if (!(target.sizes() == input.sizes()))
        throw Error(
            fmt::format("Using a target size ({}) that is different to the input size ({}) is deprecated. Please ensure they have "
                        "the same size.",
                        to_string(target.sizes()), to_string(input.sizes())));
      Tensor weight = given_weight;
      if (weight) weight = ops::expand(weight, target.sizes(), false);
      return op("aten::binary_cross_entropy", {input, target, to_value(weight), how});
    }};
const Function binary_cross_entropy_with_logits_f{
    "binary_cross_entropy_with_logits(Tensor input, Tensor target, Tensor? weight=None, bool? size_average=None, bool? reduce=None, str "
    "reduction='mean', Tensor? pos_weight=None)",
    [](T input, T target, T weight, const Flag& size_average, const Flag& reduce, const std::string& reduction, T pos_weight) {
      const I how = reduction_of(reduction, size_average, reduce);
      if (!(target.sizes() == input.sizes()))
        throw Error(
            fmt::format("Target size ({}) must be the same as input size ({})", to_string(target.sizes()), to_string(input.sizes())));
      return op("aten::binary_cross_entropy_with_logits", {input, target, to_value(weight), to_value(pos_weight), how});
    }};
const Function kl_div_f{
    "kl_div(Tensor input, Tensor target, bool? size_average=None, bool? reduce=None, str reduction='mean', bool log_target=False)",
    [](T input, T target, const Flag& size_average, const Flag& reduce, const std::string& reduction, bool log_target) {
      const bool batchmean = reduction == "batchmean" && !size_average && !reduce;
      const I how = batchmean ? I{kSum} : reduction_of(reduction, size_average, reduce);
      const Tensor loss = Unbox<Tensor>::from(call_op("aten::kl_div", {input, target, how}, {{"log_target", log_target}}));
      return reduction == "batchmean" && input.dim() != 0 ? ops::div_scalar(loss, input.size(0)) : loss;
    }};
const Function poisson_nll_loss_f{
    "poisson_nll_loss(Tensor input, Tensor target, bool log_input=True, bool full=False, bool? size_average=None, float eps=1e-08, bool? "
    "reduce=None, str reduction='mean')",
    [](T input, T target, bool log_input, bool full, const Flag& size_average, double eps, const Flag& reduce,
       const std::string& reduction) {
      return op("aten::poisson_nll_loss", {input, target, log_input, full, eps, reduction_of(reduction, size_average, reduce)});
    }};

/// The variance with the shape that the loss broadcasts.
Tensor checked_variance(T input, const Value& given) {
  if (auto* number = std::get_if<double>(&given)) {
    if (*number < 0) throw Error("var has negative entry/entries");
    const Tensor ones = ops::ones_like(input, std::nullopt, std::nullopt);
    return ops::mul_scalar(ones, *number);
  }
  const Tensor var = Unbox<Tensor>::from(given);
  {
    Tensor negative = op("aten::lt", {var, I{0}});
    const Tensor any = op("aten::any", {negative});
    negative.reset();
  }
  const Dims &sizes = input.sizes(), &of_var = var.sizes();
  if (of_var == sizes) return var;
  if (sizes.size() > 0 && of_var == sizes.slice(0, sizes.size() - 1)) return ops::unsqueeze(var, -1);
  I different = 0;
  for (int i = 0; i < std::min(sizes.size(), of_var.size()); ++i)
    if (sizes[i] != of_var[i]) different += of_var[i];
  if (sizes.size() != of_var.size() || different != 1) throw Error("var is of incorrect size");
  return var;
}
const Function gaussian_nll_loss_f{
    "gaussian_nll_loss(Tensor input, Tensor target, Any var, bool full=False, float eps=1e-06, str reduction='mean')",
    [](T input, T target, const Value& given, bool full, double eps, const std::string& reduction) {
      Tensor var = checked_variance(input, given);
      const I how = reduction_of(reduction);
      var = ops::clone(var, std::nullopt);
      {
        NoGrad guard;
        op("aten::clamp_", {var, eps});
      }
      Tensor loss;
      {  // 0.5 * (torch.log(var) + (input - target) ** 2 / var)
        Tensor log = ops::log(var), ratio;
        {
          Tensor difference = ops::sub(input, target, 1);
          Tensor squared = ops::pow_scalar(difference, I{2});
          difference.reset();
          ratio = ops::div(squared, var);
        }
        Tensor sum = ops::add(log, ratio, 1);
        log.reset();
        ratio.reset();
        loss = ops::mul_scalar(sum, 0.5);
      }
      if (full) op("aten::add_", {loss, 0.5 * std::log(2 * M_PI)});
      return reduced(loss, how);
    }};

// ---- classes -------------------------------------------------------------------------------------------------------------
const Function nll_loss_f{
    "nll_loss(Tensor input, Tensor target, Tensor? weight=None, bool? size_average=None, int ignore_index=-100, bool? reduce=None, str "
    "reduction='mean')",
    [](T input, T target, T weight, const Flag& size_average, I ignore_index, const Flag& reduce, const std::string& reduction) {
      return op("aten::nll_loss_nd", {input, target, to_value(weight), reduction_of(reduction, size_average, reduce), ignore_index});
    }};
const Function cross_entropy_f{
    "cross_entropy(Tensor input, Tensor target, Tensor? weight=None, bool? size_average=None, int ignore_index=-100, bool? reduce=None, "
    "str "
    "reduction='mean', float label_smoothing=0.0)",
    [](T input, T target, T weight, const Flag& size_average, I ignore_index, const Flag& reduce, const std::string& reduction,
       double label_smoothing) {
      return ops::cross_entropy_loss(input, target, weight, reduction_of(reduction, size_average, reduce), ignore_index, label_smoothing);
    }};
const Function multi_margin_loss_f{
    "multi_margin_loss(Tensor input, Tensor target, int p=1, float margin=1.0, Tensor? weight=None, bool? size_average=None, bool? "
    "reduce=None, str reduction='mean')",
    [](T input, T target, I p, double margin, T weight, const Flag& size_average, const Flag& reduce, const std::string& reduction) {
      const I how = reduction_of(reduction, size_average, reduce);
      if (p != 1 && p != 2) throw Error("only p == 1 and p == 2 supported");
      if (weight && weight.dim() != 1) throw Error("weight must be one-dimensional");
      return op("aten::multi_margin_loss", {input, target, p, margin, to_value(weight), how});
    }};
const Function multilabel_margin_loss_f{
    "multilabel_margin_loss(Tensor input, Tensor target, bool? size_average=None, bool? reduce=None, str reduction='mean')",
    [](T input, T target, const Flag& size_average, const Flag& reduce, const std::string& reduction) {
      return op("aten::multilabel_margin_loss", {input, target, reduction_of(reduction, size_average, reduce)});
    }};

/// target * logsigmoid(input) + (1 - target) * logsigmoid(-input), each operand going with its operation
Tensor two_log_likelihoods(T input, T target) {
  Tensor right, left;  // the left one goes first
  {
    const Tensor log = ops::log_sigmoid(input);
    left = ops::mul(target, log);
  }
  {
    const Tensor rest = op("aten::rsub", {target, I{1}});
    Tensor log;
    {
      const Tensor negative = ops::neg(input);
      log = ops::log_sigmoid(negative);
    }
    right = ops::mul(rest, log);
    log.reset();
  }
  return ops::add(left, right, 1);
}
const Function multilabel_soft_margin_loss_f{
    "multilabel_soft_margin_loss(Tensor input, Tensor target, Tensor? weight=None, bool? size_average=None, bool? reduce=None, str "
    "reduction='mean')",
    [](T input, T target, T weight, const Flag& size_average, const Flag& reduce, const std::string& reduction) {
      const I how = reduction_of(reduction, size_average, reduce);
      Tensor loss;
      {
        const Tensor sum = two_log_likelihoods(input, target);
        loss = ops::neg(sum);
      }
      if (weight) loss = ops::mul(loss, weight);
      const int class_dim = input.dim() - 1;
      Tensor mean;
      {
        const Tensor sum = ops::sum_dim(loss, Dims{class_dim}, false, std::nullopt);
        mean = ops::div_scalar(sum, input.size(class_dim));
      }
      loss = std::move(mean);
      return reduced(loss, how);
    }};

// ---- embeddings ----------------------------------------------------------------------------------------------------------
const Function margin_ranking_loss_f{
    "margin_ranking_loss(Tensor input1, Tensor input2, Tensor target, float margin=0, bool? size_average=None, bool? reduce=None, str "
    "reduction='mean')",
    [](T input1, T input2, T target, double margin, const Flag& size_average, const Flag& reduce, const std::string& reduction) {
      return op("aten::margin_ranking_loss", {input1, input2, target, margin, reduction_of(reduction, size_average, reduce)});
    }};
const Function hinge_embedding_loss_f{
    "hinge_embedding_loss(Tensor input, Tensor target, float margin=1.0, bool? size_average=None, bool? reduce=None, str reduction='mean')",
    [](T input, T target, double margin, const Flag& size_average, const Flag& reduce, const std::string& reduction) {
      return op("aten::hinge_embedding_loss", {input, target, margin, reduction_of(reduction, size_average, reduce)});
    }};
const Function cosine_embedding_loss_f{
    "cosine_embedding_loss(Tensor input1, Tensor input2, Tensor target, float margin=0, bool? size_average=None, bool? reduce=None, str "
    "reduction='mean')",
    [](T input1, T input2, T target, double margin, const Flag& size_average, const Flag& reduce, const std::string& reduction) {
      return op("aten::cosine_embedding_loss", {input1, input2, target, margin, reduction_of(reduction, size_average, reduce)});
    }};
void check_margin(double margin) {
  if (margin <= 0) throw Error(fmt::format("margin must be greater than 0, got {}", margin));
}
const Function triplet_margin_loss_f{
    "triplet_margin_loss(Tensor anchor, Tensor positive, Tensor negative, float margin=1.0, float p=2, float eps=1e-06, bool swap=False, "
    "bool? size_average=None, bool? reduce=None, str reduction='mean')",
    [](T anchor, T positive, T negative, double margin, double p, double eps, bool swap, const Flag& size_average, const Flag& reduce,
       const std::string& reduction) {
      check_margin(margin);
      return op("aten::triplet_margin_loss",
                {anchor, positive, negative, margin, p, eps, swap, reduction_of(reduction, size_average, reduce)});
    }};
const Function triplet_margin_with_distance_loss_f{
    "triplet_margin_with_distance_loss(Tensor anchor, Tensor positive, Tensor negative, *, Any distance_function=None, float margin=1.0, "
    "bool swap=False, str reduction='mean')",
    [](T anchor, T positive, T negative, const Value& distance_function, double margin, bool swap, const std::string& reduction) {
      const I how = reduction_of(reduction);
      check_margin(margin);
      if (!is_none(distance_function)) throw Error("triplet_margin_with_distance_loss: only the default distance_function is modelled");
      auto distance = [](T a, T b) { return op("aten::pairwise_distance", {a, b}); };
      const Tensor dist_pos = distance(anchor, positive);
      Tensor dist_neg = distance(anchor, negative), dist_swap;
      if (swap) {
        dist_swap = distance(positive, negative);
        dist_neg = op("aten::minimum", {dist_neg, dist_swap});
      }
      Tensor loss;
      {  // torch.clamp_min(margin + dist_pos - dist_neg, 0)
        Tensor shifted = ops::add_scalar(dist_pos, margin);
        const Tensor difference = ops::sub(shifted, dist_neg, 1);
        shifted.reset();
        loss = op("aten::clamp_min", {difference, I{0}});
      }
      Tensor ret = reduced(loss, how);
      dist_neg.reset();
      return ret;
    }};

// ---- sequences -----------------------------------------------------------------------------------------------------------
const Function ctc_loss_f{
    "ctc_loss(Tensor log_probs, Tensor targets, Any input_lengths, Any target_lengths, int blank=0, str reduction='mean', bool "
    "zero_infinity=False)",
    [](T log_probs, T targets, const Value& input_lengths, const Value& target_lengths, I blank, const std::string& reduction,
       bool zero_infinity) {
      return op("aten::ctc_loss", {log_probs, targets, input_lengths, target_lengths, blank, reduction_of(reduction), zero_infinity});
    }};

}  // namespace
}  // namespace memest::nn
