#include "run/lora.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "nn/adapter.h"
#include "nn/layer.h"
#include "ops/ops.h"

namespace memest::run {
namespace {

/// lora.Linear.forward: result = result + lora_B(lora_A(dropout(x))) * scaling, in the adapter's type, and back.
class LoraLinear final : public nn::LinearAdapter {
 public:
  LoraLinear(nn::ModulePtr a, nn::ModulePtr b, nn::ModulePtr dropout, double scaling, DType dtype)
      : a_(std::move(a)), b_(std::move(b)), dropout_(std::move(dropout)), scaling_(scaling), dtype_(dtype) {}

  Tensor adapt(Tensor x, Tensor result) override {
    const DType type = result.dtype();
    x = ops::to_dtype(x, dtype_, false, false, std::nullopt);  // _cast_input_dtype
    Tensor delta = dropout_ ? (*dropout_)(x) : x;
    delta = (*a_)(delta);
    delta = (*b_)(delta);
    Tensor scaled = ops::mul_scalar(std::move(delta), scaling_);
    result = ops::add(result, std::move(scaled), 1);
    return ops::to_dtype(result, type, false, false, std::nullopt);
  }

 private:
  nn::ModulePtr a_, b_, dropout_;
  double scaling_;
  DType dtype_;
};

/// check_target_module_exists: a target is a module's name, or the end of its path; "all-linear" is every linear layer but the head that
/// gives logits over the vocabulary.
bool is_target(const Lora& lora, const std::string& path, const std::string& head) {
  if (lora.targets.size() == 1 && lora.targets[0] == "all-linear") return path != head;
  for (auto& target : lora.targets)
    if (path == target || path.ends_with("." + target)) return true;
  return false;
}

class Injection {
 public:
  Injection(nn::Model& model, const Lora& lora) : lora_(lora), head_(model.output_embeddings()) { visit(*model.root, ""); }
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
    // autocast_adapter_dtype: adapters of a 16-bit layer are float32
    const DType dtype = lora_.dtype.value_or(is_reduced_floating(weight.dtype()) ? DType::float32 : weight.dtype());
    auto linear = [&](std::int64_t in, std::int64_t out) {
      Scoped<DType> scope(runtime().default_dtype, dtype);
      return nn::make_layer("Linear", {{"in_features", in}, {"out_features", out}, {"bias", false}});
    };
    nn::ModulePtr dropout = lora_.dropout > 0 ? nn::make_layer("Dropout", {{"p", lora_.dropout}}) : nullptr;
    if (dropout) module.register_module("lora_dropout", dropout);
    auto a = module.register_module("lora_A", linear(weight.sizes()[1], lora_.r));
    auto b = module.register_module("lora_B", linear(lora_.r, weight.sizes()[0]));
    layer.set_adapter(std::make_shared<LoraLinear>(a, b, dropout, lora_.alpha / double(lora_.r), dtype));
    ++adapted_;
  }

  const Lora& lora_;
  const std::string head_;
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

}  // namespace

void add_lora(nn::Model& model, const Lora& lora, bool checkpointed) {
  for (auto& p : model.root->parameters()) p->requires_grad = false;
  const Injection injection(model, lora);
  if (injection.adapted() == 0) {
    std::vector<std::string> names;
    for (auto& path : injection.linears()) names.push_back(path.substr(path.rfind('.') + 1));
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    throw Error("--lora: no linear layer of the model is named " + join(lora.targets, " or "),
                names.empty() ? "the model has no linear layer" : "its linear layers are " + join(names, ", "));
  }
  if (checkpointed)
    if (auto* embedding = first_embedding(*model.root)) embedding->require_grads();
}

}  // namespace memest::run
