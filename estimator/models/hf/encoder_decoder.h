// What generate() calls of an encoder-decoder: the encoder once, then the decoder for each token (transformers 5.24,
// generation/utils.py _prepare_text_encoder_decoder_kwargs_for_generation).
#pragma once
#include <memory>

#include "models/hf/cache.h"

namespace memest::hf {

using EncoderDecoderCachePtr = std::shared_ptr<EncoderDecoderCache>;

class EncoderDecoder {
 public:
  virtual ~EncoderDecoder() = default;
  /// get_encoder()(inputs, attention_mask): its last hidden state.
  virtual X encode(X inputs, X attention_mask) = 0;
  /// forward(decoder_input_ids, encoder_outputs, attention_mask, cache): the logits. `cache` may be none.
  virtual X decode(X decoder_input_ids, X encoder_hidden_states, X attention_mask, EncoderDecoderCachePtr cache) = 0;
  virtual I decoder_layers() const = 0;
};

/// A model whose generate() is WhisperGenerationMixin's (models/whisper/generation_whisper.py): a call of GenerationMixin's for each 30
/// seconds of sound, of which there is one segment here.
struct Transcribes {
  virtual ~Transcribes() = default;
};

/// EncoderDecoderCache.is_updated: a layer of the cross-attention that an earlier call has filled; null before.
inline const CacheLayer* updated_layer(Cache* cross_attention, I layer) {
  if (!cross_attention) return nullptr;
  const CacheLayer& filled = cross_attention->layer(layer);
  return filled.keys ? &filled : nullptr;
}

}  // namespace memest::hf
