#include "run/lora.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "nn/embedded_model.h"
#include "nn/layer.h"
#include "ops/ops.h"

namespace memest::run {
namespace {

/// lora.Linear.forward: result = result + lora_B(lora_A(dropout(x))) * scaling, in the adapter's type, and back. Of a quantised layer
/// (lora/bnb.py Linear4bit, Linear8bitLt): types change outside autocast only, and a 4-bit layer's result is cloned first.
class LoraLinear final : public nn::LinearAdapter {
 public:
  using Of = nn::QuantizedWeight::Adapter;
  LoraLinear(Of of, nn::ModulePtr a, nn::ModulePtr b, nn::ModulePtr dropout, double scaling, DType dtype)
      : of_(of), a_(std::move(a)), b_(std::move(b)), dropout_(std::move(dropout)), scaling_(scaling), dtype_(dtype) {}

  Tensor adapt(Tensor x, Tensor result) override {
    if (of_ != Of::plain) return adapt_quantized(std::move(x), std::move(result));
    const DType type = result.dtype();
    x = ops::to_dtype(x, dtype_, false, false, std::nullopt);  // _cast_input_dtype
    Tensor delta = dropout_ ? (*dropout_)(x) : x;
    delta = (*a_)(delta);
    delta = (*b_)(delta);
    Tensor scaled = ops::mul_scalar(delta, scaling_);
    delta.reset();
    result = ops::add(result, std::move(scaled), 1);
    return ops::to_dtype(result, type, false, false, std::nullopt);
  }

 private:
  Tensor adapt_quantized(Tensor x, Tensor result) {
    if (of_ == Of::clones) result = ops::clone(result, std::nullopt);
    const bool converts = !runtime().autocast.enabled;
    const DType expected = result.dtype();
    if (converts) x = ops::to_dtype(x, dtype_, false, false, std::nullopt);
    Tensor delta = dropout_ ? (*dropout_)(x) : x;
    delta = (*a_)(delta);
    delta = (*b_)(delta);
    Tensor output = ops::mul_scalar(delta, scaling_);
    delta.reset();
    if (converts) output = ops::to_dtype(output, expected, false, false, std::nullopt);
    result = ops::add(result, output, 1);
    x.reset();
    output.reset();
    return result;
  }

  const Of of_;
  nn::ModulePtr a_, b_, dropout_;
  double scaling_;
  DType dtype_;
};

/// check_target_module_exists: a target is a module's name, or the end of its path; "all-linear" is every linear layer but the head that
/// gives logits over the vocabulary. A name of a module that holds layers ("mlp") means all of them.
bool is_target(const Lora& lora, const std::string& path, const std::string& head) {
  if (lora.targets.size() == 1 && lora.targets[0] == "all-linear") return path != head;
  for (auto& target : lora.targets)
    if (path == target || path.ends_with("." + target) || ("." + path).find("." + target + ".") != std::string::npos) return true;
  return false;
}

class Injection {
 public:
  Injection(nn::Model& model, const Lora& lora, bool follows) : lora_(lora), head_(model.output_embeddings()), follows_(follows) {
    visit(*model.root, "");
  }
  int adapted() const { return adapted_; }
  const std::vector<std::string>& linears() const { return linears_; }

 private:
  void visit(nn::Module& module, const std::string& path) {
    if (!seen_.insert(&module).second) return;
    if (auto* layer = dynamic_cast<nn::Adaptable*>(&module)) {
      linears_.push_back(path);
      if (is_target(lora_, path, head_)) adapt(module, *layer);
      return;
    }
    for (auto& [name, child] : module.children()) visit(*child, path.empty() ? name : path + "." + name);
  }

  void adapt(nn::Module& module, nn::Adaptable& layer) {
    const Tensor weight = module.own_parameters()[0].second;
    const std::int64_t in = weight.sizes()[layer.transposed() ? 0 : 1], out = weight.sizes()[layer.transposed() ? 1 : 0];
    // autocast_adapter_dtype: adapters of a 16-bit layer are float32
    const DType dtype = lora_.dtype.value_or(is_reduced_floating(weight.dtype()) ? DType::float32 : weight.dtype());
    auto linear = [&](std::int64_t from, std::int64_t to) {
      Scoped<DType> scope(runtime().default_dtype, dtype);
      return nn::make_layer("Linear", {{"in_features", from}, {"out_features", to}, {"bias", false}});
    };
    nn::ModulePtr dropout = lora_.dropout > 0 ? nn::make_layer("Dropout", {{"p", lora_.dropout}}) : nullptr;
    if (dropout) module.register_module("lora_dropout", dropout);
    auto a = module.register_module("lora_A", linear(in, lora_.r));
    auto b = module.register_module("lora_B", linear(lora_.r, out));
    using Of = nn::QuantizedWeight::Adapter;
    const Of of = layer.quantized() ? layer.quantized()->adapter() : Of::plain;
    layer.set_adapter(std::make_shared<LoraLinear>(of, a, b, dropout, lora_.alpha / double(lora_.r), dtype));
    layer.adapters_follow = follows_;
    ++adapted_;
  }

  const Lora& lora_;
  const std::string head_;
  const bool follows_;
  std::set<const nn::Module*> seen_;
  std::vector<std::string> linears_;
  int adapted_ = 0;
};

nn::InputEmbedding* first_embedding(nn::Module& module) {
  if (auto* found = dynamic_cast<nn::InputEmbedding*>(&module)) return found;
  for (auto& [name, child] : module.children())
    if (auto* found = first_embedding(*child)) return found;
  return nullptr;
}

/// enable_input_require_grads: of each model in the tree; of one that names no such parts the first embedding.
bool require_input_grads(nn::Module& module) {
  bool found = false;
  if (auto* model = dynamic_cast<nn::EmbeddedModel*>(&module))
    if (auto* embedding = model->input_embedding()) {
      embedding->require_grads();
      found = true;
    }
  for (auto& [name, child] : module.children()) found |= require_input_grads(*child);
  return found;
}

}  // namespace

void add_lora(nn::Model& model, const Lora& lora, bool checkpointed, bool follows) {
  for (auto& p : model.root->parameters()) p->requires_grad = false;
  const Injection injection(model, lora, follows);
  if (injection.adapted() == 0) {
    std::vector<std::string> names;
    for (auto& path : injection.linears()) names.push_back(path.substr(path.rfind('.') + 1));
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    throw Error("--lora: no linear layer of the model is named " + join(lora.targets, " or "),
                names.empty() ? "the model has no linear layer" : "its linear layers are " + join(names, ", "));
  }
  if (checkpointed && !require_input_grads(*model.root))
    if (auto* embedding = first_embedding(*model.root)) embedding->require_grads();
}

namespace {

void load_adapters(nn::Module& module, std::vector<std::pair<Tensor, DType>>& later) {
  auto* layer = dynamic_cast<nn::Adaptable*>(&module);
  if (!layer || !layer->adapters_follow) {
    for (auto& [name, child] : module.children()) load_adapters(*child, later);
    return;
  }
  const Tensor weight = module.own_parameters()[0].second;
  std::optional<DType> first = layer->quantized() ? layer->quantized()->adapter_dtype() : weight.dtype();
  for (auto& p : module.children()) {
    for (auto& [name, x] : p.second->own_parameters()) {
      if (!x) continue;
      const DType final_dtype = x.dtype();
      CategoryScope category(Category::parameter);
      const Tensor moved = empty(x.sizes(), first.value_or(DType::float32));
      x->storage = moved->storage;
      x->dtype = moved.dtype();
      if (x.dtype() != final_dtype) later.emplace_back(x, final_dtype);
    }
  }
}

}  // namespace

void load_adapters(nn::Model& model) {
  std::vector<std::pair<Tensor, DType>> later;
  load_adapters(*model.root, later);
  for (auto& [x, dtype] : later) {
    CategoryScope category(Category::parameter);
    const Tensor cast = ops::to_copy(detached(x), dtype);
    x->storage = cast->storage;
    x->dtype = dtype;
  }
}

}  // namespace memest::run
