#include "models/diffusers/flux_parts.h"

namespace memest::diffusers {
namespace {

/// get_1d_rotary_pos_embed(dim, pos, use_real=True, repeat_interleave_real=True, freqs_dtype=torch.float64)
Pair rotary_pos_embed_1d(I dim, X pos) {
  X freqs = aten("arange", {I{0}, dim, I{2}}, {{"dtype", DType::float64}}).div(I{dim});
  freqs = aten("pow", {10000.0, Tensor(std::move(freqs))});
  freqs = aten("reciprocal", {Tensor(std::move(freqs))}).mul(1.0);
  freqs = std::move(freqs).div(1.0);
  freqs = aten("outer", {Tensor(pos), Tensor(freqs)});
  auto repeated = [&](const char* function) {
    X values = aten(function, {Tensor(freqs)});
    values = aten("repeat_interleave", {Tensor(std::move(values)), I{2}}, {{"dim", I{1}}});
    return std::move(values).to_float();
  };
  X freqs_cos = repeated("cos");
  X freqs_sin = repeated("sin");
  return {freqs_cos, freqs_sin};
}

/// apply_rotary_emb(x, freqs_cis, sequence_dim=1)
X apply_rotary_emb(X x, const Pair& freqs_cis) {
  const X cos = freqs_cis.first.unsqueeze(0).whole_slices(1).unsqueeze(2), sin = freqs_cis.second.unsqueeze(0).whole_slices(1).unsqueeze(2);
  const Dims shape = x.sizes().slice(0, x.dim() - 1);
  std::vector<X> parts = x.reshape(shape + Dims{-1, 2}).unbind(-1);
  X x_real = parts[0], x_imag = parts[1];
  X x_rotated = hf::stack({x_imag.neg(), x_real}, -1).flatten(3);
  X out = x.to_float().mul(cos).add(x_rotated.to_float().mul(sin)).to(x.dtype());
  return out;
}

/// A list lets go of its last member first.
void drop(std::vector<X>& list) {
  while (!list.empty()) list.pop_back();
}

}  // namespace

FluxAttention::FluxAttention(I dim, I head_dim, bool joint) : Base("FluxAttention"), head_dim_(head_dim) {
  norm_q = &child<RmsNorm>("norm_q", head_dim);
  norm_k = &child<RmsNorm>("norm_k", head_dim);
  to_q = &child<Linear>("to_q", dim, dim);
  to_k = &child<Linear>("to_k", dim, dim);
  to_v = &child<Linear>("to_v", dim, dim);
  if (!joint) return;
  to_out = ToOut(*this, dim, dim);
  norm_added_q = &child<RmsNorm>("norm_added_q", head_dim);
  norm_added_k = &child<RmsNorm>("norm_added_k", head_dim);
  add_q_proj = &child<Linear>("add_q_proj", dim, dim);
  add_k_proj = &child<Linear>("add_k_proj", dim, dim);
  add_v_proj = &child<Linear>("add_v_proj", dim, dim);
  to_add_out = &child<Linear>("to_add_out", dim, dim);
}
Pair FluxAttention::operator()(X hidden_states, X encoder_hidden_states, Pair image_rotary_emb) {
  Entered scope(*this);
  const X given = hidden_states, encoder_given = encoder_hidden_states;
  X query = (*to_q)(hidden_states), key = (*to_k)(hidden_states), value = (*to_v)(hidden_states);
  X encoder_query, encoder_key, encoder_value;
  if (to_add_out) {
    encoder_query = (*add_q_proj)(encoder_hidden_states);
    encoder_key = (*add_k_proj)(encoder_hidden_states);
    encoder_value = (*add_v_proj)(encoder_hidden_states);
  }
  query = heads(query);
  key = heads(key);
  value = heads(value);
  query = (*norm_q)(query);
  key = (*norm_k)(key);
  if (to_add_out) {
    encoder_query = heads(encoder_query);
    encoder_key = heads(encoder_key);
    encoder_value = heads(encoder_value);
    encoder_query = (*norm_added_q)(encoder_query);
    encoder_key = (*norm_added_k)(encoder_key);
    query = cat({encoder_query, query}, 1);
    key = cat({encoder_key, key}, 1);
    value = cat({encoder_value, value}, 1);
  }
  query = apply_rotary_emb(query, image_rotary_emb);
  key = apply_rotary_emb(key, image_rotary_emb);
  hidden_states = attend(query.permute({0, 2, 1, 3}), key.permute({0, 2, 1, 3}), value.permute({0, 2, 1, 3})).permute({0, 2, 1, 3});
  hidden_states = hidden_states.flatten(2, 3);
  hidden_states = hidden_states.to(query.dtype());
  if (to_add_out) {
    const I text = encoder_hidden_states.size(1);
    std::vector<X> both = hidden_states.split(Dims{text, hidden_states.size(1) - text}, 1);
    encoder_hidden_states = std::move(both[0]);
    hidden_states = std::move(both[1]);
    hidden_states = to_out(hidden_states.contiguous());
    encoder_hidden_states = (*to_add_out)(encoder_hidden_states.contiguous());
  }
  return leave(Pair(hidden_states, encoder_hidden_states), query, key, value, encoder_query, encoder_key, encoder_value);
}

Pair FluxPosEmbed::forward(const X& ids) {
  std::vector<X> cos_out, sin_out;
  X pos = ids.to_float();
  X cos, sin;
  for (std::size_t i = 0; i < axes_dim_.size(); ++i) {
    std::tie(cos, sin) = rotary_pos_embed_1d(axes_dim_[i], pos.whole_slices(1).select(1, I(i)));
    cos_out.push_back(cos);
    sin_out.push_back(sin);
  }
  X freqs_cos = cat(cos_out, -1), freqs_sin = cat(sin_out, -1);
  Pair result(std::move(freqs_cos), std::move(freqs_sin));
  drop(cos_out);
  drop(sin_out);
  return leave(std::move(result), pos, cos, sin);
}

std::vector<I> rotary_axes(const Config& c, I head_dim) {
  const std::vector<I> axes = c.integers("axes_dims_rope");
  I sum = 0;
  for (I dim : axes) {
    if (dim < 2 || dim % 2 != 0 || dim > head_dim)
      throw c.error("axes_dims_rope", "expected even numbers up to attention_head_dim, found " + std::to_string(dim));
    sum += dim;
  }
  if (sum != head_dim || axes.size() != 3)
    throw c.error("axes_dims_rope", "expected three numbers that add up to attention_head_dim " + std::to_string(head_dim) + ", found " +
                                        std::to_string(sum));
  return axes;
}

I block_count(const Config& c, const char* key) {
  const I count = c.integer(key);
  if (count < 0 || count > 10'000) throw c.error(key, "expected 0 to 10000, found " + std::to_string(count));
  return count;
}

X clipped(X x) { return x.dtype() == DType::float16 ? aten("clip", {Tensor(x), -65504.0, 65504.0}) : x; }

nn::SizeExpression packed_latents() { return nn::SizeExpression("(height//16)*(width//16)"); }

}  // namespace memest::diffusers
