#include "optim/master_weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "ops/copy.h"

namespace memest::optim {
namespace {

std::vector<const MasterWeightsRecord*>& records() {
  static std::vector<const MasterWeightsRecord*> all;
  return all;
}

}  // namespace

MasterWeightsRecord::MasterWeightsRecord(const char* record_name, DType type, Make make_one)
    : name(record_name), dtype(type), make(make_one) {
  records().push_back(this);
}

std::vector<std::string> master_weights_names() {
  std::vector<std::string> names;
  for (auto* r : records()) names.push_back(r->name);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::unique_ptr<MasterWeights> make_master_weights(const std::string& name, DType model, Optimizer& optimizer) {
  std::vector<std::string> types;
  for (auto* r : records()) {
    if (r->name != name) continue;
    if (r->dtype != model) {
      types.emplace_back(r->dtype == DType::float16 ? "fp16" : "bf16");
      continue;
    }
    if (optimizer.needs_closure()) throw Error("--master-weights: an optimizer that calls a closure cannot be wrapped");
    if (optimizer.state_bytes() > 0)
      throw Error("--master-weights: this optimizer makes its states in its constructor, for the 16-bit parameters",
                  "use an optimizer that makes them at its first step, such as adamw or sgd:momentum=0.9");
    return r->make(optimizer);
  }
  if (types.empty())
    throw Error(fmt::format("--master-weights: '{}' is unknown", name.substr(0, 60)), "it may be " + join(master_weights_names(), ", "));
  throw Error(fmt::format("--master-weights {} is for models in 16 bits of its own kind", name),
              "use --precision " + join(types, " or ") + ": parameters in float32 are their own master weights");
}

void MasterWeights::clip_grad_value() {
  throw Error("--clip-grad-value: DeepSpeed clips by norm only", "use --clip-grad-norm, or --master-weights apex");
}

Tensor MasterWeights::new_master(T parameter) {
  CategoryScope category(Category::optimizer_state);
  Tensor copy = ops::clone(parameter, std::nullopt);
  Tensor master = ops::to_copy(copy, DType::float32);
  bytes_ = checked_add(bytes_, checked_mul(master.numel(), item_size(DType::float32)));
  return detached(master);
}

}  // namespace memest::optim
