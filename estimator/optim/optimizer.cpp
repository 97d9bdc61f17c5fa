#include "optim/optimizer.h"

#include <fmt/format.h>

#include "base/text.h"
#include "nn/text_options.h"
#include "ops/copy.h"
#include "ops/factories.h"

namespace memest::optim {
namespace {

std::vector<const OptimizerRecord*>& registered() {
  static std::vector<const OptimizerRecord*> records;
  return records;
}

}  // namespace

OptimizerRecord::OptimizerRecord(const char* signature, const char* state_text) : Record(signature), state(state_text) {
  registered().push_back(this);
}
const std::vector<const OptimizerRecord*>& all_optimizers() { return registered(); }

std::string optimizer_name(const std::string& text) { return text.substr(0, text.find(':')); }

MakeOptimizer parse_optimizer(const std::string& text) {
  if (text == "none") return {};
  const auto [name, keywords] = parse_named_options("--optimizer", text, "sgd:momentum=0.9,nesterov=true");
  std::vector<std::string> names{"none"};
  for (auto* record : registered()) {
    names.push_back(record->name());
    if (record->name() != name) continue;
    std::string problem;
    auto values = bind_arguments(record->schema(), {}, keywords, problem);
    if (!values) throw Error("--optimizer: " + problem, "its signature is " + std::string(record->signature()));
    return record->make(*values);
  }
  throw Error(fmt::format("memest knows no optimizer '{}'", name.substr(0, 60)), did_you_mean(name, names));
}

Form form_of(std::optional<bool> foreach, std::optional<bool> fused, bool differentiable) {
  if (fused.value_or(false) && differentiable) throw Error("--optimizer: `fused` does not support `differentiable`");
  if (foreach.value_or(false) && fused.value_or(false)) throw Error("--optimizer: `fused` and `foreach` cannot be `True` together");
  if (foreach.value_or(false) && differentiable)
    throw Error("--optimizer: _foreach ops don't support autograd: differentiable=true needs foreach=false");
  if (differentiable)
    throw Error(
        "--optimizer: a leaf Variable that requires grad is being used in an in-place operation: differentiable=true cannot step a model's "
        "own parameters");
  if (fused.value_or(false)) return Form::fused;
  if (!foreach && fused) return Form::for_loop;  // fused=False given: neither default applies
  return foreach.value_or(true) ? Form::foreach : Form::for_loop;
}

void check_argument(bool good, const char* what, double value) {
  if (!good) throw Error(fmt::format("--optimizer: Invalid {}: {}", what, value));
}
void check_betas(const std::vector<double>& betas) {
  for (std::size_t i = 0; i < betas.size(); ++i)
    if (!(betas[i] >= 0 && betas[i] < 1)) throw Error(fmt::format("--optimizer: Invalid beta parameter at index {}: {}", i, betas[i]));
}

Optimizer::Optimizer(ParameterGroups groups) : groups_(std::move(groups)) {
  for (auto& g : groups_) {
    g.first = count_;
    count_ += g.parameters.size();
  }
}

Tensors Optimizer::parameters() const {
  Tensors all;
  for (auto& g : groups_) all.insert(all.end(), g.parameters.begin(), g.parameters.end());
  return all;
}

void Optimizer::replace_parameters(std::vector<Tensors> of_groups) {
  std::size_t first = 0;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    groups_[i].parameters = std::move(of_groups[i]);
    groups_[i].first = first;
    first += groups_[i].parameters.size();
  }
}

void Optimizer::step() {
  for (auto& g : groups_) step(g);
}
void Optimizer::step(const std::function<void()>&) { step(); }

void Optimizer::zero_grad(bool set_to_none) {
  if (!set_to_none) return;  // zero_ and _foreach_zero_ are in place
  for (auto& g : groups_)
    for (auto& p : g.parameters) p->grad.reset();
}

void Optimizer::count_state(T state) {
  const Bytes bytes = checked_mul(state.numel(), item_size(state.dtype()));
  (state.on_host() ? host_state_bytes_ : state_bytes_) += bytes;
  state->storage->categorize(Category::optimizer_state);
}
void Optimizer::forget_state(T state) {
  const Bytes bytes = checked_mul(state.numel(), item_size(state.dtype()));
  (state.on_host() ? host_state_bytes_ : state_bytes_) -= bytes;
}
Tensor Optimizer::new_state(T like) { return new_state(like, like.dtype()); }
Tensor Optimizer::new_state(T like, DType dtype) {
  CategoryScope category(Category::optimizer_state);
  Tensor state = ops::zeros_like(like, dtype, MemoryFormat::preserve);
  count_state(state);
  return state;
}
Tensor Optimizer::new_state(const Dims& sizes, DType dtype) {
  CategoryScope category(Category::optimizer_state);
  Tensor state = ops::zeros(sizes, dtype);
  count_state(state);
  return state;
}
Tensor Optimizer::clone_state(T gradient) {
  CategoryScope category(Category::optimizer_state);
  Tensor state = ops::clone(gradient, std::nullopt);
  count_state(state);
  return state;
}
void Optimizer::load_state(bool mapped_to_device) {
  counters_on_device_ = mapped_to_device;
  state_bytes_ = host_state_bytes_ = 0;
}
Tensor Optimizer::new_counter(bool on_device) {
  return on_device || counters_on_device_ ? new_state(Dims{}, DType::float32) : host_tensor({}, DType::float32);
}

}  // namespace memest::optim
