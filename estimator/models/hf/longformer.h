// The attention of Longformer, which LED's encoder has as well.
#pragma once
#include "models/hf/decoder.h"

namespace memest::hf {

struct LongformerSizes {
  I hidden, heads, window;
  double dropout;
};
/// config.attention_window: one for all layers, or a list.
std::vector<I> attention_windows(const Config& file, I layers);
/// LongformerSelfAttention without global attention; the call's `mask` is attention_mask, [batch, length], its `position_ids` is
/// is_index_masked, and its `position_embeddings.first` is_index_global_attn, which a checkpointed layer holds.
MixerPtr make_longformer_self_attention(std::string type, const LongformerSizes& sizes);

/// What LongformerEncoder and LEDEncoder make of their mask, [batch, length].
struct WindowMasks {
  X is_index_masked, is_index_global_attn;
};
WindowMasks window_masks(const X& attention_mask);

}  // namespace memest::hf
