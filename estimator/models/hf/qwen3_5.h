// The text model of qwen3_5 and qwen3_5_moe, for what stands on it.
#pragma once
#include "models/hf/decoder.h"

namespace memest::hf {

/// Qwen3_5TextModel, Qwen3_5MoeTextModel: embed_tokens, layers, norm, rotary_emb.
class Qwen3_5TextModel final : public DecoderBody {
 public:
  Qwen3_5TextModel(std::shared_ptr<const DecoderConfig> config, std::shared_ptr<const DecoderForm> form);
  /// What follows the embedding. `position_ids`: [batch, length], or [3, batch, length] for time, height and width, which look for no
  /// packed sequences; undefined: counted from the cache's length.
  std::pair<X, CachePtr> of_embeddings(X inputs_embeds, X position_ids, CachePtr cache);
  X embed(const X& input_ids) override { return (*embed_tokens_)(input_ids); }

 protected:
  std::pair<X, CachePtr> forward(X input) override;

 private:
  class RotaryEmbedding;
  std::shared_ptr<const DecoderConfig> c_;
  UnaryPtr embed_tokens_;
  std::vector<DecoderLayerPtr> layers_;
  UnaryPtr norm_;
  std::shared_ptr<RotaryEmbedding> rotary_emb_;
};

/// A text_config (or a text model's own config) with what its class computes.
Config qwen3_5_text_config(const Config& text);
/// The text alone: also of a composite's config, as AutoModelForCausalLM takes it.
NetworkPtr make_qwen3_5_text(const Config& config, const Options& o);
/// The text model's parts: "Qwen3_5", or "Qwen3_5Moe" with experts.
DecoderForm qwen3_5_form(const Config& text);

}  // namespace memest::hf
