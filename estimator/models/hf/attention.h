// The attention functions that families share: sdpa_attention_forward (integrations/sdpa_attention.py) and the eager one of llama.
#pragma once
#include "models/hf/options.h"

namespace memest::hf {

struct AttentionCall {
  X mask = {};
  I groups = 1;        ///< num_key_value_groups
  double dropout = 0;  ///< 0 where the module is not training
  bool training = true;
  bool causal = true;  ///< the module's is_causal
  std::optional<double> softcap = {};
  X position_bias = {};
};

/// [batch, heads, length, width] each; the result is [batch, length, heads, width], and the weights where the function makes them.
Pair sdpa_attention_forward(X query, X key, X value, AttentionCall call);
/// integrations/flash_attention.py flash_attention_forward, without padding; the kernels of flash-attn 2 allocate what PyTorch's copy of
/// them does (csrc/flash_attn/flash_api.cpp mha_fwd, mha_bwd). Grouped heads stay grouped. Throws Error for float32 outside autocast.
Pair flash_attention_forward(const Options& options, X query, X key, X value, AttentionCall call);
/// models/llama/modeling_llama.py eager_attention_forward.
Pair eager_attention_forward(X query, X key, X value, AttentionCall call);
/// ALL_ATTENTION_FUNCTIONS.get_interface(config._attn_implementation, eager_attention_forward)
inline Pair attention_interface(const Options& options, X query, X key, X value, AttentionCall call) {
  if (options.attention == Attention::flash)
    return flash_attention_forward(options, std::move(query), std::move(key), std::move(value), std::move(call));
  return options.attention == Attention::sdpa
             ? sdpa_attention_forward(std::move(query), std::move(key), std::move(value), std::move(call))
             : eager_attention_forward(std::move(query), std::move(key), std::move(value), std::move(call));
}
X repeat_kv(X hidden_states, I groups);

/// rotate_half of llama: the halves exchanged, the second negated.
X rotate_half(X x);
/// apply_rotary_pos_emb of llama.
Pair apply_rotary_pos_emb(X q, X k, X cos, X sin, I unsqueeze_dim = 1);

}  // namespace memest::hf
