// Kimi delta attention (models/bailing_hybrid, transformers 5.24): the delta rule with a decay of its own for each key channel.
#pragma once
#include "models/hf/linear_attention.h"

namespace memest::hf {

/// chunk_kimi_delta_attention: core_attn_out, last_recurrent_state.
Pair chunk_kimi_delta_attention(const DeltaRule& call);
/// recurrent_kimi_delta_attention.
Pair recurrent_kimi_delta_attention(const DeltaRule& call);

}  // namespace memest::hf
