#include "models/hf/attention.h"

#include "models/hf/release.h"

namespace memest::hf {

X repeat_kv(X hidden_states, I groups) {
  if (groups == 1) return hidden_states;
  const I batch = hidden_states.size(0), heads = hidden_states.size(1), length = hidden_states.size(2), width = hidden_states.size(3);
  hidden_states = hidden_states.whole_slices(2).unsqueeze(2).expand({batch, heads, groups, length, width});
  return std::move(hidden_states).reshape({batch, heads * groups, length, width});
}

namespace {

X position_bias_mask(const X& position_bias, const X& mask, bool causal, const X& query, const X& key) {
  X causal_mask, biased;
  if (!mask && causal) {
    X q = arange(query.size(2)).unsqueeze(1);
    X k = arange(key.size(2)).unsqueeze(0);
    causal_mask = aten("ge", {Tensor(q), Tensor(k)});
    q.reset(), k.reset();
    causal_mask = causal_mask.view({1, 1, query.size(2), key.size(2)});
    biased = where(causal_mask, position_bias, -1e30);
  } else if (!mask) {
    biased = position_bias;
  } else if (mask.dtype() == DType::boolean) {
    biased = where(mask, position_bias, -1e30);
  } else {
    biased = position_bias.add(mask);
  }
  return leave(biased.contiguous(), causal_mask, biased);
}

}  // namespace

Pair sdpa_attention_forward(X query, X key, X value, AttentionCall call) {
  if (call.softcap) throw Error("`sdpa` attention does not support `softcap`", "use --attn eager");
  const I q_length = query.size(2);
  bool enable_gqa = false;
  if (call.groups > 1) {
    if (release().sdpa_takes_grouped_heads() && !call.mask && key.size(-1) == value.size(-1) && key.size(-1) <= 256) {
      enable_gqa = true;
    } else if (q_length == 1 && !release().sdpa_makes_contiguous()) {
      auto pack = [&](X& x) {
        if (x && x.size(1) != 1) x = x.reshape({x.size(0), x.size(1) / call.groups, call.groups, x.size(3)});
      };
      pack(query), pack(call.mask), pack(call.position_bias);
    } else {
      key = repeat_kv(key, call.groups);
      value = repeat_kv(value, call.groups);
    }
  }
  bool causal = q_length > 1 && !call.mask && call.causal;
  if (causal && key.size(2) > q_length) {
    key = key.slice(2, 0, q_length);
    value = value.slice(2, 0, q_length);
    if (call.position_bias) call.position_bias = call.position_bias.slice(3, 0, q_length);
  }
  if (call.position_bias) {
    call.mask = position_bias_mask(call.position_bias, call.mask, causal, query, key);
    causal = false;
  }
  if (release().sdpa_makes_contiguous()) {
    query = query.contiguous();
    key = key.contiguous();
    value = value.contiguous();
  }
  X attn_output =
      aten("scaled_dot_product_attention", {Tensor(query), Tensor(key), Tensor(value), to_value(Tensor(call.mask)), call.dropout, causal},
           {{"enable_gqa", enable_gqa}});
  attn_output = attn_output.reshape({attn_output.size(0), -1, q_length, value.size(-1)});
  attn_output = attn_output.transpose(1, 2).contiguous();
  return {attn_output, {}};
}

Pair flash_attention_forward(const Options& options, X query, X key, X value, AttentionCall call) {
  *options.takes_flash = true;
  const I head_dim = query.size(-1), value_dim = value.size(-1);
  if (call.position_bias) throw Error("flash attention takes no position bias", "use --attn sdpa or eager");
  if (head_dim > 256) throw Error("flash attention takes heads of at most 256, found " + std::to_string(head_dim), "use --attn sdpa");
  auto pad = [](X& x, I width) {
    if (x.size(-1) != width) x = aten("constant_pad_nd", {Tensor(x), list_of(Dims{0, width - x.size(-1)}), I{0}});
  };
  pad(value, head_dim);
  if (query.dtype() == DType::float32) {
    const AutocastState& autocast = runtime().autocast;
    if (!autocast.enabled)
      throw Error("flash attention takes 16-bit tensors only", "use --precision bf16 or fp16, or --amp, or --attn sdpa");
    query = query.to(autocast.dtype);
    key = key.to(autocast.dtype);
    value = value.to(autocast.dtype);
  }
  const I width = (head_dim + 7) / 8 * 8;
  pad(query, width), pad(key, width), pad(value, width);
  const Value made = call_op("aten::_scaled_dot_product_flash_attention",
                             {Tensor(query), Tensor(key), Tensor(value), call.dropout, call.causal, false}, {});
  X out = std::get<Tensor>(std::get<std::shared_ptr<List>>(made)->items[0]);
  X attn_output = out.transpose(1, 2);
  if (attn_output.size(-1) != value_dim) attn_output = attn_output.slice(-1, std::nullopt, value_dim);
  return {attn_output, {}};
}

Pair eager_attention_forward(X query, X key, X value, AttentionCall call) {
  X key_states = repeat_kv(key, call.groups);
  X value_states = repeat_kv(value, call.groups);
  X attn_weights = query.matmul(key_states.transpose(2, 3)).mul(1.0);
  if (call.softcap) {
    attn_weights = attn_weights.div(*call.softcap);
    attn_weights = attn_weights.tanh();
    attn_weights = attn_weights.mul(*call.softcap);
  }
  if (call.mask) attn_weights = attn_weights.add(call.mask);
  attn_weights = attn_weights.softmax(-1, DType::float32).to(query.dtype());
  attn_weights = ops::dropout(attn_weights, call.dropout, call.training);
  X attn_output = attn_weights.matmul(value_states);
  attn_output = attn_output.transpose(1, 2).contiguous();
  key_states.reset();
  value_states.reset();
  return {attn_output, attn_weights};
}

X rotate_half(X x) {
  const I half = x.size(-1) / 2;
  X x1 = x.slice(-1, std::nullopt, half);
  X x2 = x.slice(-1, half, std::nullopt);
  return cat({x2.neg(), x1}, -1);
}

Pair apply_rotary_pos_emb(X q, X k, X cos, X sin, I unsqueeze_dim) {
  cos = cos.unsqueeze(unsqueeze_dim);
  sin = sin.unsqueeze(unsqueeze_dim);
  X q_embed = q.mul(cos).add(rotate_half(q).mul(sin));
  X k_embed = k.mul(cos).add(rotate_half(k).mul(sin));
  return {q_embed, k_embed};
}

}  // namespace memest::hf
