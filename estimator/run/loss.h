// Losses that --loss can name: what target they need and how they are computed, as torch.nn.functional has them.
#pragma once
#include <string>
#include <vector>

#include "ops/value.h"

namespace memest::run {

struct LossRule {
  const char* name;
  const char* what;         ///< one line, for lists
  Tensor (*target)(T out);  ///< on the host, like what a loader gives; undefined where none is needed
  Tensor (*compute)(T out, T target);
};
const std::vector<LossRule>& all_losses();
/// Throws Error with near names.
const LossRule& find_loss(const std::string& name);

}  // namespace memest::run
