#include "optim/optimizer.h"

#include <fmt/format.h>

#include "base/text.h"
#include "ops/ops.h"

namespace memest::optim {
namespace {

std::vector<const OptimizerRecord*>& registered() {
  static std::vector<const OptimizerRecord*> records;
  return records;
}

/// "true", "0.9", "none", "0.9+0.999" (a tuple).
Value parse_value(const std::string& text) {
  std::string low;
  for (char c : text) low += char(c >= 'A' && c <= 'Z' ? c + 32 : c);
  if (low == "true" || low == "yes") return true;
  if (low == "false" || low == "no") return false;
  if (low == "none") return None{};
  if (auto i = parse_int(text)) return *i;
  if (auto d = parse_number(text)) return *d;
  if (text.find('+') != std::string::npos) {
    Values items;
    for (auto& part : split(text, '+')) items.push_back(parse_value(part));
    return make_tuple(std::move(items));
  }
  return text;
}

}  // namespace

OptimizerRecord::OptimizerRecord(const char* signature, const char* state_text) : Record(signature), state(state_text) {
  registered().push_back(this);
}
const std::vector<const OptimizerRecord*>& all_optimizers() { return registered(); }

MakeOptimizer parse_optimizer(const std::string& text) {
  const auto colon = text.find(':');
  const std::string name = text.substr(0, colon);
  if (name == "none" && colon == std::string::npos) return {};
  KeywordArguments keywords;
  if (colon != std::string::npos)
    for (auto& part : split(std::string_view(text).substr(colon + 1), ',')) {
      const auto equals = part.find('=');
      if (equals == std::string::npos || equals == 0)
        throw Error(fmt::format("--optimizer {}: '{}' is not of the form key=value", text, part),
                    "for example sgd:momentum=0.9,nesterov=true");
      keywords.emplace_back(part.substr(0, equals), parse_value(part.substr(equals + 1)));
    }
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

Form form_of(std::optional<bool> foreach, std::optional<bool> fused) {
  if (foreach.value_or(false) && fused.value_or(false)) throw Error("`fused` and `foreach` cannot be True together");
  if (fused.value_or(false)) return Form::fused;
  return foreach.value_or(true) ? Form::foreach : Form::for_loop;
}

void Optimizer::zero_grad(bool set_to_none) {
  if (set_to_none)
    for (auto& p : parameters_) p->grad.reset();
}

void Optimizer::count_state(T state) {
  if (!state.on_host()) state_bytes_ += state.numel() * item_size(state.dtype());
  state->storage->categorize(Category::optimizer_state);
}
Tensor Optimizer::new_state(T like) {
  CategoryScope category(Category::optimizer_state);
  Tensor state = ops::zeros_like(like, std::nullopt, MemoryFormat::preserve);
  count_state(state);
  return state;
}
Tensor Optimizer::new_state(const Dims& sizes, DType dtype) {
  CategoryScope category(Category::optimizer_state);
  Tensor state = ops::zeros(sizes, dtype);
  count_state(state);
  return state;
}
Tensors Optimizer::with_gradient() const {
  Tensors list;
  for (auto& p : parameters_)
    if (p->grad) list.push_back(p);
  return list;
}

Tensors foreach_new(const char* op, const Tensors& like) {
  Scoped<const char*> scope(runtime().op, op);
  Tensors out;
  out.reserve(like.size());
  for (auto& x : like) out.push_back(empty_like(x));
  return out;
}
Tensors gradients_of(const Tensors& parameters) {
  Tensors out;
  for (auto& p : parameters) out.push_back(p->grad);
  return out;
}
std::vector<std::vector<std::size_t>> by_dtype(const Tensors& parameters) {
  std::vector<std::pair<DType, std::vector<std::size_t>>> groups;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto it = std::find_if(groups.begin(), groups.end(), [&](auto& g) { return g.first == parameters[i].dtype(); });
    if (it == groups.end()) it = groups.insert(groups.end(), {parameters[i].dtype(), {}});
    it->second.push_back(i);
  }
  std::vector<std::vector<std::size_t>> out;
  for (auto& [dtype, positions] : groups) out.push_back(std::move(positions));
  return out;
}
Tensors picked(const Tensors& list, const std::vector<std::size_t>& positions) {
  Tensors out;
  for (std::size_t i : positions) out.push_back(list[i]);
  return out;
}

}  // namespace memest::optim
