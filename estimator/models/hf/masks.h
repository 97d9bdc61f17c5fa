// transformers/masking_utils.py 5.24: attention masks where the caller gave none.
#pragma once
#include "models/hf/cache.h"
#include "models/hf/options.h"

namespace memest::hf {

struct MaskArguments {
  const Options& options;
  const X& inputs_embeds;  ///< batch, length and type
  const Cache* cache = nullptr;
  X position_ids = {};        ///< undefined: no look for packed sequences
  I layer = -1;               ///< the cache's layer; -1: the first of the kind
  bool allow_skip = true;     ///< may return none and rely on is_causal
  X attention_mask = {};      ///< [batch, keys], of any type
  X block_sequence_ids = {};  ///< [batch, length]: tokens of one block see each other, -1 is none
};
/// create_causal_mask. Undefined where the attention needs none.
X create_causal_mask(const MaskArguments& a);
/// create_sliding_window_causal_mask.
X create_sliding_window_causal_mask(const MaskArguments& a, I window);
/// create_causal_mask with blockwise_overlay as its or_mask_function and sliding_window_overlay as its and_mask_function: through vmap.
X create_sliding_window_block_mask(const MaskArguments& a, I window);
/// create_chunked_causal_mask.
X create_chunked_causal_mask(const MaskArguments& a, I chunk);
/// create_bidirectional_mask: without padding none is ever made.
inline X create_bidirectional_mask() { return {}; }
/// The same with the attention_mask given.
X create_bidirectional_mask(const MaskArguments& a);
/// create_bidirectional_sliding_window_mask.
X create_bidirectional_sliding_window_mask(const MaskArguments& a, I window);

}  // namespace memest::hf
