// Losses that --loss and a spec can name: one record each, which says what target they need and how they are computed, as
// torch.nn.functional has them, with its arguments: "cross_entropy:label_smoothing=0.1".
#pragma once
#include <string>
#include <vector>

#include "ops/schema.h"

namespace memest::run {

class LossRule {
 public:
  using Target = Tensor (*)(T out);
  using Compute = Tensor (*)(T out, T target, const KeywordArguments& arguments);
  /// `function` of torch.nn.functional takes the arguments; null: the loss takes none.
  LossRule(const char* loss_name, const char* meaning, Target target_of, Compute compute_with, const char* function_name = nullptr);
  LossRule(const LossRule&) = delete;

  const char* name;
  const char* what;  ///< one line, for lists
  Target target;     ///< on the host, like what a loader gives; undefined where none is needed
  Compute compute;
  const char* function;
};
/// In the order in which they are listed.
const std::vector<const LossRule*>& all_losses();
/// A loss with the arguments it was given.
class Loss {
 public:
  /// "huber:delta=0.5". Throws Error with near names and the list, or with the function's signature.
  explicit Loss(const std::string& text);
  Tensor target(T out) const { return rule_->target(out); }
  Tensor compute(T out, T target) const { return rule_->compute(out, target, arguments_); }

 private:
  const LossRule* rule_ = nullptr;
  KeywordArguments arguments_;
};

}  // namespace memest::run
