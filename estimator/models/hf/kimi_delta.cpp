#include "models/hf/kimi_delta.h"

namespace memest::hf {
namespace {

X l2norm(X x) {
  X inv_norm = x.mul(x).sum(-1, true).add(1e-6).sqrt();
  return x.div(inv_norm);
}
X pad(const X& x, const Dims& sides) { return aten("constant_pad_nd", {Tensor(x), list_of(sides), I{0}}); }
X upper_triangle(I size, I diagonal) { return aten("triu", {Tensor(ones({size, size}, DType::boolean)), diagonal}); }
X masked_fill(X x, const X& mask) { return aten("masked_fill", {Tensor(std::move(x)), Tensor(mask), 0.0}); }
X at(const X& x, I i) { return x.whole_slices(2).select(2, i); }
/// x[..., i, :i]
X row_before(const X& x, I i) { return x.select(-2, i).slice(-1, std::nullopt, i); }

}  // namespace

Pair chunk_kimi_delta_attention(const DeltaRule& call) {
  constexpr I kChunk = 64;
  const DType initial_dtype = call.query.dtype();
  const I batch_size = call.key.size(0), sequence_length = call.key.size(1), num_heads = call.key.size(2);
  const I k_head_dim = call.key.size(3), v_head_dim = call.value.size(3);
  X query, key, value, beta, g;
  {
    std::vector<X> converted;
    for (const X* x : {&call.query, &call.key, &call.value, &call.beta, &call.g})
      converted.push_back(x->transpose(1, 2).contiguous().to_float());
    query = converted[0], key = converted[1], value = converted[2], beta = converted[3], g = converted[4];
  }
  query = l2norm(query);
  key = l2norm(key);
  const I pad_size = (kChunk - sequence_length % kChunk) % kChunk;
  const Dims rows{0, 0, 0, pad_size};
  query = pad(query, rows).mul(1.0);
  key = pad(key, rows);
  value = pad(value, rows);
  g = pad(g, rows);
  beta = pad(beta, {0, pad_size});
  X v_beta = value.mul(beta.unsqueeze(-1));
  X k_beta = key.mul(beta.unsqueeze(-1));
  for (X* x : {&query, &key, &value, &g, &k_beta, &v_beta}) *x = x->reshape({batch_size, num_heads, -1, kChunk, x->size(-1)});
  beta = beta.reshape({batch_size, num_heads, -1, kChunk});
  // Intra chunk
  g = aten("cumsum", {Tensor(g), I{-2}});
  X mask = upper_triangle(kChunk, 0);
  X strict_mask = upper_triangle(kChunk, 1);
  X decay_mask = g.unsqueeze(-2).sub(g.unsqueeze(-3));
  decay_mask = aten("masked_fill", {Tensor(std::move(decay_mask)), Tensor(strict_mask.unsqueeze(-1)), -1e30}).exp().to_float();
  X attn = masked_fill(k_beta.unsqueeze(-2).mul(key.unsqueeze(-3)).mul(decay_mask).sum(-1), mask).neg();
  X row, sub;
  for (I i = 1; i < kChunk; ++i) {
    row = row_before(attn, i).clone();
    sub = attn.slice(-2, std::nullopt, i).slice(-1, std::nullopt, i).clone();
    X changed = row.add(row.unsqueeze(-1).mul(sub).sum(-2));
    set_item(row_before(attn, i), std::move(changed));
  }
  attn = attn.add(aten("eye", {kChunk}, {{"dtype", attn.dtype()}}));
  value = attn.matmul(v_beta);
  X k_cumdecay = attn.matmul(k_beta.mul(g.exp()));
  X last_recurrent_state =
      call.initial_state ? call.initial_state.to(value.dtype()) : zeros({batch_size, num_heads, k_head_dim, v_head_dim}, value.dtype());
  X core_attn_out = aten("zeros_like", {Tensor(value)});
  mask = upper_triangle(kChunk, 1);
  const I chunks = (sequence_length + pad_size) / kChunk;
  X q_i, k_i, v_i, g_i, attn_inter, attn_intra, v_prime, v_new;
  for (I i = 0; i < chunks; ++i) {
    q_i = at(query, i), k_i = at(key, i), v_i = at(value, i), g_i = at(g, i);
    attn_inter = q_i.mul(g_i.exp()).matmul(last_recurrent_state);
    attn_intra = masked_fill(q_i.unsqueeze(-2).mul(k_i.unsqueeze(-3)).mul(at(decay_mask, i)).sum(-1), mask);
    v_prime = at(k_cumdecay, i).matmul(last_recurrent_state);
    v_new = v_i.sub(v_prime);
    X output = attn_inter.add(attn_intra.matmul(v_new));
    set_item(at(core_attn_out, i), std::move(output));
    X decayed = last_recurrent_state.mul(at(g_i, -1).exp().unsqueeze(-1));
    X update = k_i.mul(g_i.whole_slices(2).slice(2, -1, std::nullopt).sub(g_i).exp()).transpose(-1, -2).matmul(v_new);
    last_recurrent_state = std::move(decayed).add(std::move(update));
  }
  if (!call.output_final_state) last_recurrent_state.reset();
  core_attn_out = core_attn_out.reshape({batch_size, num_heads, -1, v_head_dim});
  core_attn_out = core_attn_out.whole_slices(2).slice(2, std::nullopt, sequence_length);
  core_attn_out = core_attn_out.transpose(1, 2).contiguous().to(initial_dtype);
  return {core_attn_out, last_recurrent_state};
}

Pair recurrent_kimi_delta_attention(const DeltaRule& call) {
  const DType initial_dtype = call.query.dtype();
  const I batch_size = call.key.size(0), sequence_length = call.key.size(1), num_heads = call.key.size(2);
  const I k_head_dim = call.key.size(3), v_head_dim = call.value.size(3);
  X query = call.query.to_float(), key = call.key.to_float(), value = call.value.to_float();
  X g = call.g.to_float(), beta = call.beta.to_float();
  query = l2norm(query);
  key = l2norm(key);
  query = query.mul(1.0);
  X core_attn_out = zeros({batch_size, sequence_length, num_heads, v_head_dim}, value.dtype());
  X last_recurrent_state =
      call.initial_state ? call.initial_state.to(value.dtype()) : zeros({batch_size, num_heads, k_head_dim, v_head_dim}, value.dtype());
  auto token = [](const X& x, I i) { return x.whole_slices(1).select(1, i); };
  X g_i, kv_mem, delta;
  for (I i = 0; i < sequence_length; ++i) {
    X q_i = token(query, i), k_i = token(key, i), v_i = token(value, i);
    g_i = token(g, i).unsqueeze(-1).exp();
    X b_i = token(beta, i).unsqueeze(-1);
    last_recurrent_state = last_recurrent_state.mul(g_i);
    kv_mem = last_recurrent_state.mul(k_i.unsqueeze(-1)).sum(-2);
    delta = v_i.sub(kv_mem).mul(b_i);
    last_recurrent_state = last_recurrent_state.add(k_i.unsqueeze(-1).mul(delta.unsqueeze(-2)));
    set_item(token(core_attn_out, i), last_recurrent_state.mul(q_i.unsqueeze(-1)).sum(-2));
  }
  if (!call.output_final_state) last_recurrent_state.reset();
  return {core_attn_out.to(initial_dtype), last_recurrent_state};
}

}  // namespace memest::hf
