// Multi-head latent attention of deepseek_v2 and v3 (transformers 5.24): keys and values from one small latent, which is what is cached.
#pragma once
#include "models/hf/decoder.h"

namespace memest::hf {

struct MlaForm {
  std::string type = "DeepseekV3Attention";
  bool complex_rotary = false;  ///< deepseek_v2: the tables are complex, [1, seq, width / 2]
  bool query_scale = false;     ///< mistral4: times get_llama_4_attn_scale(position_ids)
  bool head_gate = false;       ///< bailing_hybrid: each head times the sigmoid of g_proj
};
/// The configuration as its class completes it: head_dim is qk_rope_head_dim, over which the rotary tables go.
Config with_mla_head_dim(Config config);
MixerPtr make_latent_attention(const DecoderConfig& c, I layer, const MlaForm& form);

}  // namespace memest::hf
