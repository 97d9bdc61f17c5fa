// transformers/generation/utils.py 5.24: GenerationMixin.generate, greedy, of decoder-only models and of encoder-decoders.
#pragma once
#include <functional>

#include "models/hf/family.h"

namespace memest::hf {

/// A class, or the body under its head, whose forward takes no position_ids: generate() makes none for it.
struct WithoutPositions {
  virtual ~WithoutPositions() = default;
};
/// One whose forward takes no attention_mask either: generate() keeps it, a token longer after each call.
struct WithoutMask : WithoutPositions {};

struct Generation {
  I new_tokens = 1;         ///< max_new_tokens, all of which are generated
  bool all_logits = false;  ///< logits of the whole prompt, cast to float32, as before transformers 4.45
  bool use_cache = true;
  /// cache_implementation: a DynamicCache, "static" (run without torch.compile), "quantized" with the backend fp8.
  enum class CacheKind { dynamic, fixed, fp8 } cache = CacheKind::dynamic;
  std::function<void()> on_decode;  ///< called once the first token exists
};
/// model.generate(**batch, attention_mask=attention_mask): the sequences, [batch, length + new_tokens].
X generate(Network& model, const Config& config, const Options& options, Batch batch, X attention_mask, const Generation& generation);

}  // namespace memest::hf
