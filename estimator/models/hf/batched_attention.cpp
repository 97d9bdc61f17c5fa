#include "models/hf/batched_attention.h"

#include "models/hf/encoder_decoder.h"

namespace memest::hf {

BatchedAttention::BatchedAttention(std::string type, const Seq2SeqConfig& c, I heads, I layer)
    : CrossMixer(std::move(type)),
      layer_(layer),
      heads_(heads),
      head_dim_(c.hidden / heads),
      dropout_(c.attention_dropout),
      k_proj(child<Linear>("k_proj", c.hidden, c.hidden)),
      v_proj(child<Linear>("v_proj", c.hidden, c.hidden)),
      q_proj(child<Linear>("q_proj", c.hidden, c.hidden)),
      out_proj(child<Linear>("out_proj", c.hidden, c.hidden)) {}

Pair BatchedAttention::forward(const X& hidden_states, const X& key_value_states, X attention_mask, Cache* cache) {
  const I bsz = hidden_states.size(0), tgt_len = hidden_states.size(1);
  X query_states = q_proj(hidden_states).mul(1.0);
  const X& current_states = key_value_states ? key_value_states : hidden_states;
  X key_states, value_states;
  if (const CacheLayer* updated = updated_layer(key_value_states ? cache : nullptr, layer_)) {
    key_states = updated->keys;
    value_states = updated->values;
  } else {
    key_states = k_proj(current_states);
    value_states = v_proj(current_states);
    key_states = key_states.view({bsz, -1, heads_, head_dim_}).transpose(1, 2);
    value_states = value_states.view({bsz, -1, heads_, head_dim_}).transpose(1, 2);
    if (cache) std::tie(key_states, value_states) = cache->update(key_states, value_states, layer_);
  }
  const Dims proj_shape{bsz * heads_, -1, head_dim_};
  query_states = query_states.view({bsz, tgt_len, heads_, head_dim_}).transpose(1, 2);
  query_states = query_states.reshape(proj_shape);
  key_states = key_states.reshape(proj_shape);
  value_states = value_states.reshape(proj_shape);
  const I src_len = key_states.size(1);
  X attn_weights = query_states.bmm(key_states.transpose(1, 2));
  if (attention_mask) {
    attn_weights = attn_weights.view({bsz, heads_, tgt_len, src_len}).add(attention_mask);
    attn_weights = attn_weights.view({bsz * heads_, tgt_len, src_len});
  }
  attn_weights = attn_weights.softmax(-1);
  X attn_probs = ops::dropout(attn_weights, dropout_, training);
  X attn_output = attn_probs.bmm(value_states);
  attn_output = attn_output.view({bsz, heads_, tgt_len, head_dim_});
  attn_output = attn_output.transpose(1, 2);
  attn_output = attn_output.reshape({bsz, tgt_len, heads_ * head_dim_});
  attn_output = out_proj(attn_output);
  return leave(Pair{attn_output, {}}, attention_mask, query_states, key_states, value_states, attn_weights, attn_probs, attn_output);
}

}  // namespace memest::hf
