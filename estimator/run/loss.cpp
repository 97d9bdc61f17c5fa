#include "run/loss.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "nn/layer.h"
#include "nn/text_options.h"
#include "ops/ops.h"

namespace memest::run {
namespace {

std::vector<const LossRule*>& registered() {
  static std::vector<const LossRule*> losses;
  return losses;
}

Tensor no_target(T) { return {}; }
/// One class for each sample and position.
Tensor class_indices(T out) {
  if (out.dim() < 2) throw Error("--loss: the output needs a class dimension, found " + describe(out), "try --loss sum");
  Dims sizes = out.sizes();
  sizes.erase(1);
  return host_tensor(sizes, DType::int64);
}
Tensor like_output(T out) { return host_tensor(out.sizes(), out.dtype()); }
/// Classes padded with -1, as multilabel_margin takes them.
Tensor class_lists(T out) { return host_tensor(out.sizes(), DType::int64); }

/// torch.nn.functional's function of that name.
template <const char* Function>
Tensor functional(T out, T target, const KeywordArguments& arguments) {
  return Unbox<Tensor>::from(nn::call_function(Function, {out, target}, arguments));
}

#define MEMEST_LOSS(NAME, FUNCTION, WHAT, TARGET) \
  constexpr char k_##NAME[] = FUNCTION;           \
  const LossRule NAME##_rule{#NAME, WHAT, TARGET, functional<k_##NAME>, k_##NAME};
MEMEST_LOSS(cross_entropy, "cross_entropy", "classes as int64 targets [B, ...]", class_indices)
MEMEST_LOSS(nll, "nll_loss", "the same of log-probabilities", class_indices)
MEMEST_LOSS(mse, "mse_loss", "targets like the output", like_output)
MEMEST_LOSS(l1, "l1_loss", "targets like the output", like_output)
MEMEST_LOSS(smooth_l1, "smooth_l1_loss", "targets like the output", like_output)
MEMEST_LOSS(huber, "huber_loss", "targets like the output", like_output)
MEMEST_LOSS(bce, "binary_cross_entropy", "targets like the output, which holds probabilities", like_output)
MEMEST_LOSS(bce_with_logits, "binary_cross_entropy_with_logits", "targets like the output", like_output)
MEMEST_LOSS(kl_div, "kl_div", "probabilities like the output, which holds log-probabilities", like_output)
MEMEST_LOSS(poisson_nll, "poisson_nll_loss", "targets like the output", like_output)
MEMEST_LOSS(soft_margin, "soft_margin_loss", "targets of 1 and -1 like the output", like_output)
MEMEST_LOSS(hinge_embedding, "hinge_embedding_loss", "targets of 1 and -1 like the output", like_output)
MEMEST_LOSS(multi_margin, "multi_margin_loss", "classes as int64 targets [B]", class_indices)
MEMEST_LOSS(multilabel_margin, "multilabel_margin_loss", "classes as int64 targets like the output", class_lists)
MEMEST_LOSS(multilabel_soft_margin, "multilabel_soft_margin_loss", "targets of 0 and 1 like the output", like_output)
#undef MEMEST_LOSS
const LossRule sum_rule{"sum", "the sum of the output, no targets", no_target,
                        [](T out, T, const KeywordArguments&) { return ops::sum(out, std::nullopt); }};
const LossRule mean_rule{"mean", "the mean of the output, no targets", no_target,
                         [](T out, T, const KeywordArguments&) { return ops::mean(out, std::nullopt); }};
const LossRule none_rule{"none", "no loss: the output itself is the loss in training", no_target,
                         [](T out, T, const KeywordArguments&) { return out; }};

}  // namespace

LossRule::LossRule(const char* loss_name, const char* meaning, Target target_of, Compute compute_with, const char* function_name)
    : name(loss_name), what(meaning), target(target_of), compute(compute_with), function(function_name) {
  registered().push_back(this);
}
const std::vector<const LossRule*>& all_losses() { return registered(); }

namespace {
const LossRule& find_loss(const std::string& name) {
  if (name == "chunked")
    throw Error("--loss chunked is the loss of a causal language model of a Hugging Face config", "use --task causal-lm with it");
  std::vector<std::string> names;
  for (auto* loss : all_losses()) {
    if (name == loss->name) return *loss;
    names.emplace_back(loss->name);
  }
  const std::string near = did_you_mean(name, names);
  throw Error(fmt::format("memest knows no loss '{}'", name.substr(0, 60)),
              near.empty() ? "it knows " + join(names, ", ") : near + " It knows " + join(names, ", "));
}
/// The function takes these arguments beside the output and the target.
void check_arguments(const LossRule& rule, const KeywordArguments& arguments) {
  if (arguments.empty()) return;
  if (!rule.function) throw Error(fmt::format("--loss {} takes no arguments", rule.name));
  for (auto& [key, value] : arguments)
    if (key == "reduction" && is_none(value))
      throw Error(fmt::format("--loss {}: grad can be implicitly created only for scalar outputs", rule.name), "reduction is mean or sum");
  const Tensor any = host_tensor({}, DType::float32);
  for (auto* f : nn::all_functions()) {
    if (f->name() != rule.function) continue;
    std::string problem;
    if (!bind_arguments(f->schema(), {any, any}, arguments, problem))
      throw Error("--loss: " + problem, "its signature is " + std::string(f->signature()));
  }
}
}  // namespace

Loss::Loss(const std::string& text) {
  auto [name, arguments] = parse_named_options("--loss", text, "cross_entropy:label_smoothing=0.1");
  rule_ = &find_loss(name);
  check_arguments(*rule_, arguments);
  arguments_ = std::move(arguments);
}

}  // namespace memest::run
