#include "models/hf/rotary_encoder.h"

namespace memest::hf {
namespace {

class RotaryAttention final : public Mixer {
 public:
  RotaryAttention(const Options& options, const RotaryAttentionForm& form)
      : Mixer(form.type),
        attend_(options.attention == Attention::eager ? form.eager : sdpa_attention_forward),
        head_dim_(form.head_dim),
        groups_(form.heads / form.kv_heads),
        dropout_(form.dropout),
        q_proj(child<Linear>("q_proj", form.hidden, form.heads * form.head_dim, form.bias)),
        k_proj(child<Linear>("k_proj", form.hidden, form.kv_heads * form.head_dim, form.bias)),
        v_proj(child<Linear>("v_proj", form.hidden, form.kv_heads * form.head_dim, form.bias)),
        o_proj(child<Linear>("o_proj", form.heads * form.head_dim, form.hidden, form.bias)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1);
    const Dims hidden_shape = input_shape + Dims{-1, head_dim_};
    X query_states = q_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_states = k_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_states = v_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    std::tie(query_states, key_states) =
        apply_rotary_pos_emb(query_states, key_states, call.position_embeddings.first, call.position_embeddings.second);
    auto [attn_output, attn_weights] =
        attend_(query_states, key_states, value_states,
                {.mask = call.mask, .groups = groups_, .dropout = training ? dropout_ : 0.0, .training = training, .causal = false});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = o_proj(attn_output);
    return leave(Pair(attn_output, attn_weights), query_states, key_states, value_states);
  }

 private:
  Pair (*attend_)(X, X, X, AttentionCall);
  I head_dim_, groups_;
  double dropout_;
  Linear &q_proj, &k_proj, &v_proj, &o_proj;
};

class MaskedMean final : public Unary {
 public:
  MaskedMean() : Unary("MaskedMean") {}

 protected:
  X forward(X last_hidden_state) override {
    X attention_mask = ones({last_hidden_state.size(0), last_hidden_state.size(1)}, DType::boolean);
    X sum = last_hidden_state.mul(attention_mask.unsqueeze(-1)).sum(1);
    return sum.div(attention_mask.sum(1, true));
  }
};

}  // namespace

UnaryPtr make_pooling(const Config& file) {
  const std::string kind = file.text_or("classifier_pooling", "cls");
  if (kind == "cls") return make_first_token();
  if (kind == "mean") return std::make_shared<MaskedMean>();
  throw file.error("classifier_pooling", "expected cls or mean, found '" + kind.substr(0, 40) + "'");
}
MixerPtr make_rotary_attention(const Options& options, RotaryAttentionForm form) {
  return std::make_shared<RotaryAttention>(options, form);
}

}  // namespace memest::hf
