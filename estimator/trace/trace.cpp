#include "trace/trace.h"

namespace memest {

std::string_view name_of(Category category) {
  static constexpr std::string_view names[kCategoryCount] = {"parameter",   "buffer",     "gradient",  "optimizer_state",
                                                             "input",       "activation", "temporary", "autocast_cache",
                                                             "grad_scaler", "workspace",  "kv_cache",  "assumed"};
  return names[int(category)];
}

std::string_view name_of(Phase phase) {
  static constexpr std::string_view names[] = {"load", "inputs", "zero_grad", "forward", "backward", "optimizer", "evaluation", "decode"};
  return names[int(phase)];
}

const char* MemoryTrace::intern(std::string_view text) {
  for (auto& name : names_)
    if (name == text) return name.c_str();
  return names_.emplace_back(text).c_str();
}

}  // namespace memest
