#include "models/hf/parts.h"

#include <algorithm>
#include <array>
#include <unordered_set>

#include "models/hf/experts.h"
#include "nn/adapter.h"

namespace memest::hf {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  return text;
}
template <std::size_t N>
bool contains_any(const std::string& text, const std::array<const char*, N>& words) {
  return std::any_of(words.begin(), words.end(), [&](const char* word) { return text.find(word) != std::string::npos; });
}

using Part = I nn::ParameterParts::*;

class Counter {
 public:
  explicit Counter(std::string head) : head_(std::move(head)) {}
  void visit(const nn::Module& m, const std::string& path, const std::string& name, Part inherited) {
    const Part part = part_of(m, path, name, inherited);
    for (auto& [parameter, p] : m.own_parameters())
      if (p && seen_.insert(p.get()).second) parts.*of_parameter(parameter, part) += p.numel();
    for (auto& [child, module] : m.children()) visit(*module, path.empty() ? child : path + "." + child, child, part);
  }
  nn::ParameterParts parts;

 private:
  /// A module whose own name or class tells nothing is of its parent's part.
  Part part_of(const nn::Module& m, const std::string& path, const std::string& name, Part inherited) const {
    static constexpr std::array kNorms{"norm", "ln_", "layernorm"}, kEmbeddings{"embed", "wte", "wpe"};
    static constexpr std::array kAttention{"attn", "attention", "mixer", "mamba", "temporal_block"};
    static constexpr std::array kMlp{"mlp", "ffn",          "feed_forward", "feedforward", "dense", "expert",
                                     "moe", "intermediate", "fc1",          "fc2",         "router"};
    static constexpr std::array kHeads{"lm_head", "embed_out", "score", "classifier", "qa_outputs", "pooler", "cls", "predictions"};
    const std::string own = lower(name), type = lower(m.type());
    if (!head_.empty() && path == head_) return &nn::ParameterParts::head;
    if (m.children().empty() && (contains_any(type, kNorms) || contains_any(own, kNorms))) return &nn::ParameterParts::norms;
    if (inherited != &nn::ParameterParts::other) return inherited;
    if (contains_any(own, kHeads)) return &nn::ParameterParts::head;
    if (type.ends_with("mlp") || type.ends_with("moe")) return &nn::ParameterParts::mlp;  // nemotron_h calls every kind `mixer`
    if (contains_any(own, kAttention) || type.ends_with("attention") || own == "conv") return &nn::ParameterParts::attention;
    if (contains_any(own, kMlp) || type.ends_with("layerff")) return &nn::ParameterParts::mlp;
    if (dynamic_cast<const nn::InputEmbedding*>(&m) || contains_any(own, kEmbeddings) || type == "embedding")
      return &nn::ParameterParts::embeddings;
    return inherited;
  }
  static Part of_parameter(const std::string& name, Part part) {
    if (part != &nn::ParameterParts::other) return part;
    static constexpr std::array kEmbeddings{"embed", "cls_token", "mask_token", "position"};
    return contains_any(name, kEmbeddings) ? &nn::ParameterParts::embeddings : part;
  }

  std::string head_;
  std::unordered_set<const TensorImpl*> seen_;
};

}  // namespace

nn::ParameterParts parameter_parts(const nn::Module& root, const std::string& head) {
  Counter counter(head);
  counter.visit(root, "", "", &nn::ParameterParts::other);
  const ExpertParameters experts = expert_parameters(root);
  counter.parts.experts = experts.total;
  counter.parts.active_experts = experts.active;
  return counter.parts;
}

}  // namespace memest::hf
