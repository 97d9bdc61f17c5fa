// What encoders with rotary positions share (nomic_bert, gte, jina_embeddings_v3, eurobert): an attention over the whole sequence.
#pragma once
#include "models/hf/encoder.h"

namespace memest::hf {

struct RotaryAttentionForm {
  std::string type;
  I hidden, heads, kv_heads, head_dim;
  bool bias = false;
  double dropout = 0;
  Pair (*eager)(X query, X key, X value, AttentionCall call) = bert_eager_attention_forward;
};
/// q_proj, k_proj, v_proj, o_proj; rotates the first two; is_causal is false.
MixerPtr make_rotary_attention(const Options& options, RotaryAttentionForm form);
/// config.classifier_pooling of modernbert and ultrabert: "cls", or "mean" over a mask of ones.
UnaryPtr make_pooling(const Config& file);

}  // namespace memest::hf
