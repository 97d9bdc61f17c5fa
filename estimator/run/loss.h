// Losses that --loss and a spec can name: one record each, which says what target they need and how they are computed, as
// torch.nn.functional has them.
#pragma once
#include <string>
#include <vector>

#include "ops/value.h"

namespace memest::run {

class LossRule {
 public:
  using Target = Tensor (*)(T out);
  using Compute = Tensor (*)(T out, T target);
  LossRule(const char* loss_name, const char* meaning, Target target_of, Compute function);
  LossRule(const LossRule&) = delete;

  const char* name;
  const char* what;  ///< one line, for lists
  Target target;     ///< on the host, like what a loader gives; undefined where none is needed
  Compute compute;
};
/// In the order in which they are listed.
const std::vector<const LossRule*>& all_losses();
/// Throws Error with near names and the list.
const LossRule& find_loss(const std::string& name);

}  // namespace memest::run
