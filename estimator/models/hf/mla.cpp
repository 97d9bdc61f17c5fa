#include "models/hf/mla.h"

#include "models/hf/rotate.h"

namespace memest::hf {

Config with_mla_head_dim(Config config) {
  ConfigValue width;
  width.value = config.size("qk_rope_head_dim");
  config.set("head_dim", std::move(width));
  return config;
}

namespace {

/// apply_rotary_pos_emb_interleave.
Pair apply_rotary_interleave(X q, X k, X cos, X sin) {
  const I half = cos.size(-1) / 2;
  cos = cos.slice(-1, std::nullopt, half).unsqueeze(1);
  sin = sin.slice(-1, std::nullopt, half).unsqueeze(1);
  X q1 = q.slice(-1, 0, std::nullopt, 2), q2 = q.slice(-1, 1, std::nullopt, 2);
  X k1 = k.slice(-1, 0, std::nullopt, 2), k2 = k.slice(-1, 1, std::nullopt, 2);
  auto rotated = [&](const X& first, const X& second) {
    std::vector<X> parts;
    X a = first.mul(cos);
    parts.push_back(std::move(a).sub(second.mul(sin)));
    X b = second.mul(cos);
    parts.push_back(std::move(b).add(first.mul(sin)));
    return cat(std::move(parts), -1);
  };
  X q_embed = rotated(q1, q2);
  X k_embed = rotated(k1, k2);
  return {q_embed, k_embed};
}

/// apply_rotary_emb of deepseek_v2.
Pair apply_rotary_complex(X xq, X xk, X freqs_cis) {
  auto paired = [](const X& x) {
    const Dims shape = x.sizes().slice(0, x.dim() - 1) + Dims{-1, 2};
    return aten("view_as_complex", {Tensor(x.to_float().reshape(shape))});
  };
  X xq_ = paired(xq), xk_ = paired(xk);
  freqs_cis = freqs_cis.unsqueeze(1);
  auto back = [](X product, DType type) { return aten("view_as_real", {Tensor(std::move(product))}).flatten(3).to(type); };
  X xq_out = back(xq_.mul(freqs_cis), xq.dtype());
  X xk_out = back(xk_.mul(freqs_cis), xk.dtype());
  return {xq_out, xk_out};
}

class LatentAttention final : public Mixer {
 public:
  LatentAttention(const DecoderConfig& c, I layer, const MlaForm& form)
      : Mixer(form.type),
        form_(form),
        options_(c.options),
        layer_(layer),
        heads_(c.heads),
        groups_(c.heads / c.kv_heads),
        rope_(c.file.size("qk_rope_head_dim")),
        nope_(c.file.size("qk_nope_head_dim")),
        value_(c.file.size("v_head_dim")),
        rank_(c.file.size("kv_lora_rank")),
        interleave_(c.file.boolean_or("rope_interleave", true)),
        dropout_(c.attention_dropout) {
    if (rope_ % 2 != 0) throw c.file.error("qk_rope_head_dim", "expected an even number, found " + std::to_string(rope_));
    const I q_rank = c.file.has("q_lora_rank") ? c.file.size("q_lora_rank") : 0;  // 0: no latent of the queries
    const I q_width = checked_mul(heads_, nope_ + rope_);
    if (q_rank > 0) {
      q_a_proj_ = &child<Linear>("q_a_proj", c.hidden, q_rank, c.attention_bias);
      q_a_layernorm_ = register_module("q_a_layernorm", make_norm(Norm::llama, q_rank, "RMSNorm"));
    }
    (q_rank > 0 ? q_b_proj_ : q_proj_) = &child<Linear>(q_rank > 0 ? "q_b_proj" : "q_proj", q_rank > 0 ? q_rank : c.hidden, q_width, false);
    kv_a_proj_with_mqa_ = &child<Linear>("kv_a_proj_with_mqa", c.hidden, rank_ + rope_, c.attention_bias);
    kv_a_layernorm_ = register_module("kv_a_layernorm", make_norm(Norm::llama, rank_, "RMSNorm"));
    kv_b_proj_ = &child<Linear>("kv_b_proj", rank_, checked_mul(heads_, nope_ + value_), false);
    o_proj_ = &child<Linear>("o_proj", checked_mul(heads_, value_), c.hidden, c.attention_bias);
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const I batch_size = hidden_states.size(0), seq_length = hidden_states.size(1);
    X q_states = q_proj_ ? (*q_proj_)(hidden_states) : (*q_b_proj_)((*q_a_layernorm_)((*q_a_proj_)(hidden_states)));
    q_states = q_states.view({batch_size, seq_length, -1, nope_ + rope_}).transpose(1, 2);
    auto [q_pass, q_rot] = two(q_states.split(Dims{nope_, rope_}, -1));
    X compressed_kv = (*kv_a_proj_with_mqa_)(hidden_states);
    auto [kv_nope, k_rot] = two(compressed_kv.split(Dims{rank_, rope_}, -1));
    X unnormed;  // deepseek_v2 keeps a name for it
    if (form_.complex_rotary || form_.query_scale) unnormed = kv_nope;
    kv_nope = (*kv_a_layernorm_)(kv_nope);
    kv_nope = kv_nope.view({batch_size, 1, seq_length, rank_});
    k_rot = k_rot.view({batch_size, 1, seq_length, rope_});
    const auto& [cos, sin] = call.position_embeddings;
    if (form_.complex_rotary)
      std::tie(q_rot, k_rot) = apply_rotary_complex(q_rot, k_rot, cos);
    else if (interleave_)
      std::tie(q_rot, k_rot) = apply_rotary_interleave(q_rot, k_rot, cos, sin);
    else
      std::tie(q_rot, k_rot) = apply_rotary_pos_emb(q_rot, k_rot, cos, sin);
    if (call.cache) std::tie(kv_nope, k_rot) = call.cache->update(kv_nope, k_rot, layer_);
    X query_states = cat({q_pass, q_rot}, -1);
    if (form_.query_scale) {
      X scaling = get_llama_4_attn_scale(call.position_ids).to(query_states.dtype());
      query_states = query_states.mul(std::move(scaling));
    }
    auto [key_states, value_states] = expand_kv(kv_nope, k_rot);
    auto [attn_output, attn_weights] =
        attention_interface(options_, query_states, key_states, value_states,
                            {.mask = call.mask, .groups = groups_, .dropout = training ? dropout_ : 0.0, .training = training});
    attn_output = attn_output.reshape({batch_size, seq_length, -1}).contiguous();
    attn_output = (*o_proj_)(attn_output);
    return {attn_output, attn_weights};
  }

 private:
  static Pair two(std::vector<X> parts) { return {std::move(parts[0]), std::move(parts[1])}; }

  Pair expand_kv(X kv_nope, X k_rot) {
    const I batch_size = kv_nope.size(0), seq_length = kv_nope.size(2);
    kv_nope = (*kv_b_proj_)(kv_nope).view({batch_size, seq_length, -1, nope_ + value_}).transpose(1, 2);
    auto [k_nope, value_states] = two(kv_nope.split(Dims{nope_, value_}, -1));
    k_rot = k_rot.expand({-1, k_nope.size(1), -1, -1});
    X key_states = aten("new_empty", {Tensor(kv_nope), list_of(kv_nope.sizes().slice(0, kv_nope.dim() - 1) + Dims{nope_ + rope_})});
    ops::copy_(key_states.slice(-1, std::nullopt, nope_), k_nope, false);
    ops::copy_(key_states.slice(-1, nope_, std::nullopt), k_rot, false);
    return {key_states, value_states};
  }

  MlaForm form_;
  const Options options_;
  I layer_, heads_, groups_, rope_, nope_, value_, rank_;
  bool interleave_;
  double dropout_;
  Linear *q_proj_ = nullptr, *q_a_proj_ = nullptr, *q_b_proj_ = nullptr, *kv_a_proj_with_mqa_, *kv_b_proj_, *o_proj_;
  UnaryPtr q_a_layernorm_, kv_a_layernorm_;
};

}  // namespace

MixerPtr make_latent_attention(const DecoderConfig& c, I layer, const MlaForm& form) {
  return std::make_shared<LatentAttention>(c, layer, form);
}

}  // namespace memest::hf
