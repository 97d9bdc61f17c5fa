#include "run/loss.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "ops/ops.h"

namespace memest::run {
namespace {

Tensor no_target(T) { return {}; }
Tensor class_indices(T out) {
  if (out.dim() < 2) throw Error("--loss cross_entropy: the output needs a class dimension, found " + describe(out), "try --loss sum");
  Dims sizes = out.sizes();
  sizes.erase(1);
  return host_tensor(sizes, DType::int64);
}
Tensor like_output(T out) { return host_tensor(out.sizes(), out.dtype()); }

}  // namespace

const std::vector<LossRule>& all_losses() {
  static const std::vector<LossRule> losses{
      {"cross_entropy", "classes as int64 targets [B, ...]", class_indices,
       [](T out, T target) { return ops::cross_entropy_loss(out, target, Tensor(), 1, -100, 0.0); }},
      {"mse", "targets like the output", like_output, [](T out, T target) { return ops::mse_loss(out, target, 1); }},
      {"sum", "the sum of the output, no targets", no_target, [](T out, T) { return ops::sum(out, std::nullopt); }},
      {"mean", "the mean of the output, no targets", no_target, [](T out, T) { return ops::mean(out, std::nullopt); }},
      {"none", "no loss: the output itself is the loss in training", no_target, [](T out, T) { return out; }},
  };
  return losses;
}

const LossRule& find_loss(const std::string& name) {
  std::vector<std::string> names;
  for (auto& loss : all_losses()) {
    if (name == loss.name) return loss;
    names.emplace_back(loss.name);
  }
  throw Error(fmt::format("--loss: memest knows no loss '{}'", name.substr(0, 60)), "it knows " + join(names, ", "));
}

}  // namespace memest::run
