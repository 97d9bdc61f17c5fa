// What layers without softmax attention share (transformers 5.24): the causal convolution before a recurrence, the states that a cache
// keeps of both, and the gated delta rule. All as PyTorch runs them where the packages with fused kernels (causal_conv1d, mamba_ssm,
// flash-linear-attention) are not installed.
#pragma once
#include <string>

#include "models/hf/cache.h"
#include "models/hf/module.h"

namespace memest::hf {

/// Says that a model's recurrences run in PyTorch's own ops, and which package would take less.
void note_torch_recurrence(const std::string& packages);

// ---- cache_utils.py: LinearAttentionLayer. The states of a layer are its convolution's, then its recurrence's.
enum State : std::size_t { kConvState, kRecurrentState };
/// cache.get_conv_state, cache.get_recurrent_state: undefined without a cache, and before the first call.
X cached_state(Cache* cache, I layer, State state);
/// update_conv_state: keeps the last `kernel_size` columns, and returns all.
X update_conv_state(Cache& cache, I layer, X conv_states, I kernel_size);
/// update_recurrent_state.
X update_recurrent_state(Cache& cache, I layer, X recurrent_states);

// ---- the functions that each modeling_*.py has
/// apply_mask_to_padding_states, with a mask.
X apply_mask_to_padding_states(X hidden_states, X attention_mask);
/// causal_conv1d_fn, without `activation` where it is null. `weight`: of the convolution, [channels, 1, kernel].
X causal_conv1d_fn(X hidden_states, X weight, T bias, Activation* activation);
/// causal_conv1d_update.
X causal_conv1d_update(X hidden_states, X conv_state, X weight, T bias, Activation* activation);
/// x[..., :, index] = value: a copy into the view, of a value that broadcasts (torch/csrc/autograd/python_variable_indexing.cpp).
void set_item(X view, X value);

struct DeltaRule {
  X query, key, value, g, beta;
  X initial_state = {};
  bool output_final_state = false;
  bool use_qk_l2norm_in_kernel = true;
};
/// torch_chunk_gated_delta_rule: core_attn_out, last_recurrent_state.
Pair torch_chunk_gated_delta_rule(const DeltaRule& call);
/// torch_recurrent_gated_delta_rule.
Pair torch_recurrent_gated_delta_rule(const DeltaRule& call);

}  // namespace memest::hf
