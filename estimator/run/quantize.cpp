#include "run/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <tuple>

#include "base/text.h"
#include "ops/ops.h"

namespace memest::run {
namespace {

struct Linear {
  std::string path;
  nn::Module* module;
  nn::Adaptable* layer;
};

void collect(nn::Module& module, const std::string& path, std::set<const nn::Module*>& seen, std::vector<Linear>& into) {
  if (!seen.insert(&module).second) return;
  if (auto* layer = dynamic_cast<nn::Adaptable*>(&module)) {
    into.push_back({path, &module, layer});
    return;
  }
  if (module.type() == "MultiheadAttention") return;  // its out_proj is of a class of its own, whose weight is used without a call
  for (auto& [name, child] : module.children()) collect(*child, path.empty() ? name : path + "." + name, seen, into);
}
std::vector<Linear> linears(nn::Module& root) {
  std::set<const nn::Module*> seen;
  std::vector<Linear> list;
  collect(root, "", seen, list);
  return list;
}

std::string without_weight(std::string name) {
  if (name.ends_with(".weight")) name.resize(name.size() - 7);
  return name;
}

/// Names of every parameter, a shared one at each of its places.
void all_names(nn::Module& module, const std::string& path, std::vector<std::pair<std::string, const TensorImpl*>>& into) {
  for (auto& [name, p] : module.own_parameters())
    if (p) into.emplace_back(path.empty() ? name : path + "." + name, p.get());
  for (auto& [name, child] : module.children()) all_names(*child, path.empty() ? name : path + "." + name, into);
}

/// quantizers/base.py get_keys_to_not_convert: tied weights, the last parameter's module, the output embeddings.
std::vector<std::string> default_skips(nn::Model& model) {
  if (!model.is_transformers()) return {};
  std::vector<std::pair<std::string, const TensorImpl*>> names;
  all_names(*model.root, "", names);
  std::vector<std::string> keys;
  for (auto& [name, p] : names)
    if (std::count_if(names.begin(), names.end(), [p = p](auto& other) { return other.second == p; }) > 1)
      keys.push_back(without_weight(name));
  const auto unique = model.root->named_parameters();
  if (!unique.empty()) keys.push_back(without_weight(unique.back().first));
  if (const std::string head = model.output_embeddings(); !head.empty()) keys.push_back(head);
  return keys;
}

/// quantizers_utils.should_convert_module; a pattern may hold * and ?.
bool matches(const std::string& key, const std::string& path) {
  if (path.ends_with(key)) return true;
  if (path.starts_with(key) && (path.size() == key.size() || path[key.size()] == '.' || key.ends_with("."))) return true;
  return glob_match(key, path) || glob_match(key + ".*", path);
}

/// core_model_loading.dot_natural_key: numbers by value and before words.
using Part = std::tuple<int, std::string, std::int64_t>;
std::vector<Part> natural_key(const std::string& name) {
  std::vector<Part> key;
  for (auto& part : split(name, '.')) {
    const auto digits = part.find_last_not_of("0123456789");
    const std::string text = digits == std::string::npos ? "" : part.substr(0, digits + 1), number = part.substr(text.size());
    const std::int64_t value = number.empty() ? -1 : parse_int(number).value_or(0);
    key.emplace_back(text.empty() ? 0 : 1, text, value);
  }
  return key;
}

/// PreTrainedModel.from_pretrained: the allocator is warmed up by one block of the model's size, then parameters come one by one in the
/// order of their names, then buffers.
void from_pretrained(nn::Model& model) {
  const std::vector<Linear> layers = linears(*model.root);
  auto layer_of = [&](const TensorImpl* p) -> const Linear* {
    for (auto& l : layers)
      if (l.layer->quantized() && l.module->own_parameters()[0].second.get() == p) return &l;
    return nullptr;
  };
  struct Item {
    std::vector<Part> key;
    Tensor parameter;
    const Linear* quantized;
  };
  std::vector<Item> items;
  Bytes half_bytes = 0;  // 4-bit weights take half a byte an element
  for (auto& [name, p] : model.root->named_parameters()) {
    const Linear* l = layer_of(p.get());
    const bool adapter = !l && std::any_of(layers.begin(), layers.end(),
                                           [&, n = name](auto& x) { return x.layer->adapters_follow && n.starts_with(x.path + ".lora_"); });
    if (adapter) continue;
    half_bytes = checked_add(half_bytes, l ? l->layer->quantized()->half_bytes(p) : checked_mul(p.numel(), 2 * item_size(p.dtype())));
    items.push_back({natural_key(name), p, l});
  }
  std::stable_sort(items.begin(), items.end(), [](auto& a, auto& b) { return a.key < b.key; });
  {
    CategoryScope category(Category::temporary);
    const Tensor warm_up = empty({half_bytes / 4}, DType::float16);
  }
  for (auto& item : items) {
    if (item.quantized) {
      item.quantized->layer->quantized()->load(item.parameter, true, item.quantized->layer->transposed());
      continue;
    }
    CategoryScope category(Category::parameter);
    const Tensor moved = ops::to_device(item.parameter, MemoryFormat::preserve);
    item.parameter->strides = moved.strides();
    item.parameter->storage = moved->storage;
  }
  for (auto& [name, b] : model.root->named_buffers()) {
    if (!b->storage->host) continue;
    CategoryScope category(Category::buffer);
    b->storage = ops::to_device(b, MemoryFormat::preserve)->storage;
  }
}

}  // namespace

void quantize(nn::Model& model, const nn::Quantization& quantization, DType compute) {
  nn::Quantization q = quantization;
  if (model.is_transformers() && q.four_bit() && !q.compute) q.compute = compute;
  std::vector<std::string> skips = q.skip ? *q.skip : default_skips(model);
  skips.insert(skips.end(), q.also_skip.begin(), q.also_skip.end());
  if (model.is_transformers()) skips.emplace_back("wo");  // _keep_in_fp32_modules of T5's kin
  auto maps = std::make_shared<nn::QuantizationMaps>();
  std::vector<std::string> left, derived;
  int count = 0;
  std::vector<std::pair<std::string, const TensorImpl*>> places;
  all_names(*model.root, "", places);
  auto tied = [&](T weight) { return std::count_if(places.begin(), places.end(), [&](auto& p) { return p.second == weight.get(); }) > 1; };
  for (auto& l : linears(*model.root)) {
    left.push_back(l.path);
    // integrations/bitsandbytes.py: nn.Linear itself and Conv1D, no class that is derived from it
    if (q.bitsandbytes() && model.is_transformers() && l.module->type() != "Linear" && l.module->type() != "Conv1D") {
      derived.push_back(l.module->type());
      continue;
    }
    if (tied(l.module->own_parameters()[0].second)) continue;
    if (std::any_of(skips.begin(), skips.end(), [&](auto& key) { return matches(key, l.path); })) continue;
    l.layer->set_quantized(nn::make_quantized(q, maps));
    for (auto& [name, p] : l.module->own_parameters())
      if (p) p->requires_grad = false;
    ++count;
  }
  if (count == 0)
    throw Error("--quant: no linear layer of the model is quantised",
                left.empty()      ? "the model has none"
                : derived.empty() ? "its linear layers are " + join(left, ", ").substr(0, 300)
                                  : "bitsandbytes takes the place of nn.Linear itself, and those of this model are " + derived[0]);
}

void load_quantized(nn::Model& model) {
  if (model.is_transformers())
    from_pretrained(model);
  else
    model.root->to_device();
}

void prepare_kbit_training(nn::Model& model) {
  std::set<const TensorImpl*> packed;
  for (auto& l : linears(*model.root))
    if (l.layer->quantized()) packed.insert(l.module->own_parameters()[0].second.get());
  for (auto& p : model.root->parameters()) {
    if (p->storage->host) continue;  // an adapter that comes later
    p->requires_grad = false;
    if (packed.contains(p.get()) || !(p.dtype() == DType::float16 || p.dtype() == DType::bfloat16)) continue;
    CategoryScope category(p->storage->category);
    const Tensor wide = ops::to_copy(detached(p), DType::float32);
    p->storage = wide->storage;
    p->strides = wide.strides();
    p->dtype = DType::float32;
    p->offset = 0;
  }
  runtime().empty_cache();
}

Bytes quantization_state_bytes(nn::Module& root) {
  Bytes sum = 0;
  for (auto& l : linears(root))
    if (l.layer->quantized()) sum = checked_add(sum, l.layer->quantized()->state_bytes());
  return sum;
}

}  // namespace memest::run
