// torch.nn's losses (torch/nn/modules/loss.py): layers of a prediction and a target that call the function of torch.nn.functional.
#include <fmt/format.h>

#include "nn/layer.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;
using Flag = std::optional<bool>;

/// Weights of a loss: buffers where they are given, passed by name.
using Weights = std::vector<std::pair<const char*, Tensor>>;

/// A layer that calls a function with its inputs and, by name, the options it was made with.
class FunctionModule final : public Module {
 public:
  FunctionModule(const char* type, const char* function, std::size_t inputs, KeywordArguments options, const Weights& weights = {})
      : Module(type), function_(function), inputs_(inputs), options_(std::move(options)) {
    for (auto& [name, weight] : weights)
      if (weight) register_buffer(name, weight);
  }

 protected:
  Value forward(const Values& arguments, const KeywordArguments& keywords) override {
    if (arguments.size() + keywords.size() != inputs_)
      throw Error(fmt::format("{} takes {} inputs, {} were given", type(), inputs_, arguments.size() + keywords.size()));
    KeywordArguments all = keywords;
    all.insert(all.end(), options_.begin(), options_.end());
    for (auto& [name, buffer] : own_buffers()) all.emplace_back(name, buffer);
    return call_function(function_, arguments, all);
  }

 private:
  const char* function_;
  std::size_t inputs_;
  KeywordArguments options_;
};
/// _Loss.__init__: the legacy flags say which reduction is meant.
std::string reduction_of(const std::string& reduction, const Flag& size_average, const Flag& reduce) {
  if (!size_average && !reduce) return reduction;
  return !reduce.value_or(true) ? "none" : size_average.value_or(true) ? "mean" : "sum";
}
ModulePtr loss(const char* type, const char* function, std::size_t inputs, KeywordArguments options, const Weights& weights = {}) {
  return std::make_shared<FunctionModule>(type, function, inputs, std::move(options), weights);
}

/// Losses without options of their own.
#define MEMEST_PLAIN_LOSS(NAME, FUNCTION)                                                                                     \
  const Layer NAME##_layer{#NAME "(bool? size_average=None, bool? reduce=None, str reduction='mean')",                        \
                           [](const Flag& size_average, const Flag& reduce, const std::string& reduction) {                   \
                             return loss(#NAME, FUNCTION, 2, {{"reduction", reduction_of(reduction, size_average, reduce)}}); \
                           }};
MEMEST_PLAIN_LOSS(L1Loss, "l1_loss")
MEMEST_PLAIN_LOSS(MSELoss, "mse_loss")
MEMEST_PLAIN_LOSS(SoftMarginLoss, "soft_margin_loss")
MEMEST_PLAIN_LOSS(MultiLabelMarginLoss, "multilabel_margin_loss")
#undef MEMEST_PLAIN_LOSS
/// Losses with a weight alone.
#define MEMEST_WEIGHTED_LOSS(NAME, FUNCTION)                                                                                   \
  const Layer NAME##_layer{                                                                                                    \
      #NAME "(Tensor? weight=None, bool? size_average=None, bool? reduce=None, str reduction='mean')",                         \
      [](T weight, const Flag& size_average, const Flag& reduce, const std::string& reduction) {                               \
        return loss(#NAME, FUNCTION, 2, {{"reduction", reduction_of(reduction, size_average, reduce)}}, {{"weight", weight}}); \
      }};
MEMEST_WEIGHTED_LOSS(BCELoss, "binary_cross_entropy")
MEMEST_WEIGHTED_LOSS(MultiLabelSoftMarginLoss, "multilabel_soft_margin_loss")
#undef MEMEST_WEIGHTED_LOSS

const Layer smooth_l1_layer{
    "SmoothL1Loss(bool? size_average=None, bool? reduce=None, str reduction='mean', float beta=1.0)",
    [](const Flag& size_average, const Flag& reduce, const std::string& reduction, double beta) {
      return loss("SmoothL1Loss", "smooth_l1_loss", 2, {{"reduction", reduction_of(reduction, size_average, reduce)}, {"beta", beta}});
    }};
const Layer huber_layer{"HuberLoss(str reduction='mean', float delta=1.0)", [](const std::string& reduction, double delta) {
                          return loss("HuberLoss", "huber_loss", 2, {{"reduction", reduction}, {"delta", delta}});
                        }};
const Layer bce_with_logits_layer{
    "BCEWithLogitsLoss(Tensor? weight=None, bool? size_average=None, bool? reduce=None, str reduction='mean', Tensor? pos_weight=None)",
    [](T weight, const Flag& size_average, const Flag& reduce, const std::string& reduction, T pos_weight) {
      return loss("BCEWithLogitsLoss", "binary_cross_entropy_with_logits", 2,
                  {{"reduction", reduction_of(reduction, size_average, reduce)}}, {{"weight", weight}, {"pos_weight", pos_weight}});
    }};
const Layer kl_div_layer{
    "KLDivLoss(bool? size_average=None, bool? reduce=None, str reduction='mean', bool log_target=False)",
    [](const Flag& size_average, const Flag& reduce, const std::string& reduction, bool log_target) {
      return loss("KLDivLoss", "kl_div", 2, {{"reduction", reduction_of(reduction, size_average, reduce)}, {"log_target", log_target}});
    }};
const Layer poisson_nll_layer{
    "PoissonNLLLoss(bool log_input=True, bool full=False, bool? size_average=None, float eps=1e-08, bool? reduce=None, str "
    "reduction='mean')",
    [](bool log_input, bool full, const Flag& size_average, double eps, const Flag& reduce, const std::string& reduction) {
      return loss("PoissonNLLLoss", "poisson_nll_loss", 2,
                  {{"log_input", log_input}, {"full", full}, {"eps", eps}, {"reduction", reduction_of(reduction, size_average, reduce)}});
    }};
const Layer gaussian_nll_layer{
    "GaussianNLLLoss(*, bool full=False, float eps=1e-06, str reduction='mean')", [](bool full, double eps, const std::string& reduction) {
      return loss("GaussianNLLLoss", "gaussian_nll_loss", 3, {{"full", full}, {"eps", eps}, {"reduction", reduction}});
    }};
const Layer nll_layer{
    "NLLLoss(Tensor? weight=None, bool? size_average=None, int ignore_index=-100, bool? reduce=None, str reduction='mean')",
    [](T weight, const Flag& size_average, I ignore_index, const Flag& reduce, const std::string& reduction) {
      return loss("NLLLoss", "nll_loss", 2, {{"ignore_index", ignore_index}, {"reduction", reduction_of(reduction, size_average, reduce)}},
                  {{"weight", weight}});
    }};
const Layer cross_entropy_layer{
    "CrossEntropyLoss(Tensor? weight=None, bool? size_average=None, int ignore_index=-100, bool? reduce=None, str reduction='mean', float "
    "label_smoothing=0.0)",
    [](T weight, const Flag& size_average, I ignore_index, const Flag& reduce, const std::string& reduction, double label_smoothing) {
      return loss("CrossEntropyLoss", "cross_entropy", 2,
                  {{"ignore_index", ignore_index},
                   {"reduction", reduction_of(reduction, size_average, reduce)},
                   {"label_smoothing", label_smoothing}},
                  {{"weight", weight}});
    }};
const Layer multi_margin_layer{
    "MultiMarginLoss(int p=1, float margin=1.0, Tensor? weight=None, bool? size_average=None, bool? reduce=None, str reduction='mean')",
    [](I p, double margin, T weight, const Flag& size_average, const Flag& reduce, const std::string& reduction) {
      if (p != 1 && p != 2) throw Error("only p == 1 and p == 2 supported");
      return loss("MultiMarginLoss", "multi_margin_loss", 2,
                  {{"p", p}, {"margin", margin}, {"reduction", reduction_of(reduction, size_average, reduce)}}, {{"weight", weight}});
    }};
/// Losses with a margin alone.
#define MEMEST_MARGIN_LOSS(NAME, FUNCTION, INPUTS, MARGIN)                                                                        \
  const Layer NAME##_layer{                                                                                                       \
      #NAME "(float margin=" MARGIN ", bool? size_average=None, bool? reduce=None, str reduction='mean')",                        \
      [](double margin, const Flag& size_average, const Flag& reduce, const std::string& reduction) {                             \
        return loss(#NAME, FUNCTION, INPUTS, {{"margin", margin}, {"reduction", reduction_of(reduction, size_average, reduce)}}); \
      }};
MEMEST_MARGIN_LOSS(HingeEmbeddingLoss, "hinge_embedding_loss", 2, "1.0")
MEMEST_MARGIN_LOSS(CosineEmbeddingLoss, "cosine_embedding_loss", 3, "0.0")
MEMEST_MARGIN_LOSS(MarginRankingLoss, "margin_ranking_loss", 3, "0.0")
#undef MEMEST_MARGIN_LOSS
const Layer triplet_margin_layer{
    "TripletMarginLoss(float margin=1.0, float p=2.0, float eps=1e-06, bool swap=False, bool? size_average=None, bool? reduce=None, str "
    "reduction='mean')",
    [](double margin, double p, double eps, bool swap, const Flag& size_average, const Flag& reduce, const std::string& reduction) {
      if (margin <= 0) throw Error(fmt::format("TripletMarginLoss: expected margin to be greater than 0, got {} instead", margin));
      return loss(
          "TripletMarginLoss", "triplet_margin_loss", 3,
          {{"margin", margin}, {"p", p}, {"eps", eps}, {"swap", swap}, {"reduction", reduction_of(reduction, size_average, reduce)}});
    }};
const Layer triplet_margin_with_distance_layer{
    "TripletMarginWithDistanceLoss(*, Any distance_function=None, float margin=1.0, bool swap=False, str reduction='mean')",
    [](const Value& distance_function, double margin, bool swap, const std::string& reduction) {
      if (margin <= 0)
        throw Error(fmt::format("TripletMarginWithDistanceLoss: expected margin to be greater than 0, got {} instead", margin));
      if (!is_none(distance_function)) throw Error("TripletMarginWithDistanceLoss: only the default distance_function is modelled");
      return loss("TripletMarginWithDistanceLoss", "triplet_margin_with_distance_loss", 3,
                  {{"margin", margin}, {"swap", swap}, {"reduction", reduction}});
    }};
const Layer ctc_layer{
    "CTCLoss(int blank=0, str reduction='mean', bool zero_infinity=False)", [](I blank, const std::string& reduction, bool zero_infinity) {
      return loss("CTCLoss", "ctc_loss", 4, {{"blank", blank}, {"reduction", reduction}, {"zero_infinity", zero_infinity}});
    }};

// ---- distances (torch/nn/modules/distance.py) ----------------------------------------------------------------------------
const Layer cosine_similarity_layer{"CosineSimilarity(int dim=1, float eps=1e-08)", [](I dim, double eps) {
                                      return loss("CosineSimilarity", "cosine_similarity", 2, {{"dim", dim}, {"eps", eps}});
                                    }};
const Layer pairwise_distance_layer{
    "PairwiseDistance(float p=2.0, float eps=1e-06, bool keepdim=False)", [](double p, double eps, bool keepdim) {
      return loss("PairwiseDistance", "pairwise_distance", 2, {{"p", p}, {"eps", eps}, {"keepdim", keepdim}});
    }};

}  // namespace
}  // namespace memest::nn
