#include "models/hf/linear_attention.h"

namespace memest::hf {

void note_torch_recurrence(const std::string& packages) {
  runtime().diagnostics.add({Diagnostic::Severity::note, "torch-recurrence",
                             "the recurrences run in PyTorch's own ops, as transformers does without " + packages +
                                 "; the fused kernels of these take less memory",
                             "", ""});
}

// ---- the cache -------------------------------------------------------------------------------------------------------------

namespace {

X& state_of(CacheLayer& layer, State state) {
  if (layer.states.size() <= state) layer.states.resize(state + 1);
  return layer.states[state];
}
void count_as_cache(const X& state) {
  if (!runtime().grad_mode) state->storage->categorize(Category::kv_cache);
}

}  // namespace

X cached_state(Cache* cache, I layer, State state) {
  if (!cache) return {};
  const CacheLayer& cached = cache->layer(layer);
  return cached.states.size() > state ? cached.states[state] : X();
}
X update_conv_state(Cache& cache, I layer, X conv_states, I kernel_size) {
  X& kept = state_of(cache.layer(layer), kConvState);
  X full_conv_states = conv_states;
  if (!kept) {  // lazy_initialization
    Dims sizes = conv_states.sizes();
    sizes[-1] = kernel_size;
    kept = zeros(sizes, conv_states.dtype());
    count_as_cache(kept);
    if (const I padding_length = kernel_size - conv_states.size(-1); padding_length > 0)
      full_conv_states = aten("constant_pad_nd", {Tensor(conv_states), list_of(Dims{padding_length, 0}), I{0}});
  } else {
    full_conv_states = cat({kept, conv_states}, -1);
  }
  ops::copy_(kept, full_conv_states.slice(-1, -kernel_size, std::nullopt), false);
  return full_conv_states;
}
X update_recurrent_state(Cache& cache, I layer, X recurrent_states) {
  X& kept = state_of(cache.layer(layer), kRecurrentState);
  if (!kept) {
    kept = aten("zeros_like", {Tensor(recurrent_states)});
    count_as_cache(kept);
  }
  ops::copy_(kept, recurrent_states, false);
  return kept;
}

// ---- the convolution -------------------------------------------------------------------------------------------------------

X apply_mask_to_padding_states(X hidden_states, X attention_mask) {
  const DType dtype = hidden_states.dtype();
  return hidden_states.mul(attention_mask.whole_slices(2).unsqueeze(2)).to(dtype);
}

X causal_conv1d_fn(X hidden_states, X weight, T bias, Activation* activation) {
  const I hidden_size = hidden_states.size(1), seq_len = hidden_states.size(2);
  weight = weight.squeeze(1);
  const I padding = weight.size(-1) - 1;
  X out = ops::conv1d(hidden_states.to(weight.dtype()), weight.unsqueeze(1), bias, Dims{1}, Dims{padding}, Dims{1}, hidden_size);
  out = std::move(out).whole_slices(2).slice(2, std::nullopt, seq_len);
  if (activation) out = (*activation)(out);
  return out.to(hidden_states.dtype());
}
X causal_conv1d_update(X hidden_states, X conv_state, X weight, T bias, Activation* activation) {
  const I hidden_size = hidden_states.size(1), seq_len = hidden_states.size(2), state_len = conv_state.size(-1);
  weight = weight.squeeze(1);
  X hidden_states_new = cat({conv_state, hidden_states}, -1).to(weight.dtype());
  ops::copy_(conv_state, hidden_states_new.slice(2, -state_len, std::nullopt), false);
  X out = ops::conv1d(hidden_states_new, weight.unsqueeze(1), bias, Dims{1}, Dims{0}, Dims{1}, hidden_size);
  out = std::move(out).slice(2, -seq_len, std::nullopt);
  if (activation) out = (*activation)(out);
  out = out.to(hidden_states.dtype());
  return leave(std::move(out), hidden_states_new);
}

void set_item(X view, X value) {
  // copy_to: leading dimensions of one fall away, and expand brings them back
  int leading = 0;
  while (leading < value.dim() && value.sizes()[leading] == 1) ++leading;
  if (leading > 0) value = value.view(value.sizes().slice(leading, value.dim()));
  if (!(value.sizes() == view.sizes())) value = value.expand(view.sizes());
  ops::copy_(view, value, false);
}

// ---- the gated delta rule --------------------------------------------------------------------------------------------------

namespace {

X l2norm(X x) {
  X inv_norm = x.mul(x).sum(-1, true).add(1e-6).rsqrt();
  return x.mul(inv_norm);
}
X to_fp32(const X& x) { return ops::to_dtype(x.transpose(1, 2), DType::float32, false, false, MemoryFormat::contiguous); }
X pad(const X& x, const Dims& sides) { return aten("constant_pad_nd", {Tensor(x), list_of(sides), I{0}}); }
X solve_triangular(const X& A, const X& B) {
  return aten("linalg_solve_triangular", {Tensor(A), Tensor(B)}, {{"upper", false}, {"left", true}, {"unitriangular", true}});
}
X at(const X& x, I i) { return x.whole_slices(2).select(2, i); }

/// The statements that both forms begin with: heads repeated, all in fp32 as [batch, heads, length, ...], normalised.
void prepare(DeltaRule& f) {
  const I num_k_heads = f.key.size(2), num_v_heads = f.value.size(2);
  if (num_k_heads != num_v_heads) {
    const I times = num_v_heads / num_k_heads;
    f.query = aten("repeat_interleave", {Tensor(f.query), times, I{2}});
    f.key = aten("repeat_interleave", {Tensor(f.key), times, I{2}});
  }
  X query = to_fp32(f.query), key = to_fp32(f.key), value = to_fp32(f.value), beta = to_fp32(f.beta), decay = to_fp32(f.g);
  f.query = query, f.key = key, f.value = value, f.beta = beta, f.g = decay;
  query.reset(), key.reset();
  if (f.use_qk_l2norm_in_kernel) {
    f.query = l2norm(f.query);
    f.key = l2norm(f.key);
  }
}

}  // namespace

Pair torch_chunk_gated_delta_rule(const DeltaRule& call) {
  constexpr I kChunk = 64;
  DeltaRule f = call;
  const DType initial_dtype = f.query.dtype();
  const I batch_size = f.key.size(0), sequence_length = f.key.size(1), k_head_dim = f.key.size(3);
  const I num_v_heads = f.value.size(2), v_head_dim = f.value.size(3);
  prepare(f);
  X &query = f.query, &key = f.key, &value = f.value, &beta = f.beta, &decay = f.g;
  query = query.mul(1.0);
  const I pad_size = (kChunk - sequence_length % kChunk) % kChunk;
  {
    const Dims rows{0, 0, 0, pad_size}, last{0, pad_size};
    X padded_query = pad(query, rows), padded_key = pad(key, rows), padded_value = pad(value, rows);
    query = padded_query, key = padded_key, value = padded_value;
    X padded_beta = pad(beta, last), padded_decay = pad(decay, last);
    beta = padded_beta, decay = padded_decay;
  }
  const I num_chunks = (sequence_length + pad_size) / kChunk;

  X v_beta = value.mul(beta.unsqueeze(-1));
  X k_beta = key.mul(beta.unsqueeze(-1));
  for (X* x : {&query, &key, &k_beta, &v_beta}) *x = x->reshape({x->size(0), x->size(1), -1, kChunk, x->size(-1)});
  decay = decay.reshape({decay.size(0), decay.size(1), -1, kChunk});
  X strictly_upper_mask = aten("triu", {Tensor(ones({kChunk, kChunk}, DType::boolean)), I{1}});
  X cum_decay = aten("cumsum", {Tensor(decay), I{3}});

  X pairwise_decay = cum_decay.unsqueeze(4).sub(cum_decay.unsqueeze(3));
  pairwise_decay = aten("masked_fill", {Tensor(pairwise_decay), Tensor(strictly_upper_mask), -1e30});
  pairwise_decay = pairwise_decay.exp();
  X ut_system = k_beta.matmul(key.transpose(-1, -2)).mul(pairwise_decay);
  X intra_chunk_attn = query.matmul(key.transpose(-1, -2)).mul(pairwise_decay);
  X decayed_k_beta = k_beta.mul(cum_decay.exp().unsqueeze(-1));
  X new_values = solve_triangular(ut_system, v_beta);
  X k_cumdecay = solve_triangular(ut_system, decayed_k_beta);

  X last_recurrent_state = call.initial_state ? f.initial_state.to(new_values.dtype())
                                              : zeros({batch_size, num_v_heads, k_head_dim, v_head_dim}, new_values.dtype());
  X core_attn_out = aten("zeros_like", {Tensor(new_values)});

  query = query.mul(cum_decay.exp().unsqueeze(-1));
  key = key.mul(cum_decay.slice(-1, -1, std::nullopt).sub(cum_decay).exp().unsqueeze(-1));
  X chunk_decay = cum_decay.select(-1, -1).exp().unsqueeze(-1).unsqueeze(-1);

  X v_new, inter_chunk_attn;
  for (I i = 0; i < num_chunks; ++i) {
    v_new = at(new_values, i).sub(at(k_cumdecay, i).matmul(last_recurrent_state));
    inter_chunk_attn = at(query, i).matmul(last_recurrent_state);
    X output = inter_chunk_attn.add(at(intra_chunk_attn, i).matmul(v_new));
    set_item(at(core_attn_out, i), std::move(output));
    X decayed = last_recurrent_state.mul(at(chunk_decay, i));
    last_recurrent_state = std::move(decayed).add(at(key, i).transpose(-1, -2).matmul(v_new));
  }
  if (!f.output_final_state) last_recurrent_state.reset();
  core_attn_out = core_attn_out.reshape({batch_size, num_v_heads, -1, v_head_dim});
  core_attn_out = core_attn_out.whole_slices(2).slice(2, std::nullopt, sequence_length);
  core_attn_out = ops::to_dtype(core_attn_out.transpose(1, 2), initial_dtype, false, false, MemoryFormat::contiguous);
  return {core_attn_out, last_recurrent_state};
}

Pair torch_recurrent_gated_delta_rule(const DeltaRule& call) {
  DeltaRule f = call;
  const DType initial_dtype = f.query.dtype();
  const I batch_size = f.key.size(0), sequence_length = f.key.size(1), k_head_dim = f.key.size(3);
  const I num_v_heads = f.value.size(2), v_head_dim = f.value.size(3);
  prepare(f);
  X &query = f.query, &key = f.key, &value = f.value, &beta = f.beta, &decay = f.g;
  query = query.div(1.0);
  X last_recurrent_state =
      call.initial_state ? f.initial_state.to(value.dtype()) : zeros({batch_size, num_v_heads, k_head_dim, v_head_dim}, value.dtype());
  X core_attn_out = aten("zeros_like", {Tensor(value)});
  X decay_t, kv_mem, delta;
  for (I i = 0; i < sequence_length; ++i) {
    X q_t = at(query, i), k_t = at(key, i), v_t = at(value, i);
    decay_t = at(decay, i).exp().unsqueeze(-1).unsqueeze(-1);
    last_recurrent_state = last_recurrent_state.mul(decay_t);
    X beta_t = at(beta, i).unsqueeze(-1);
    kv_mem = last_recurrent_state.mul(k_t.unsqueeze(-1)).sum(-2);
    delta = v_t.sub(kv_mem).mul(beta_t);
    last_recurrent_state = last_recurrent_state.add(k_t.unsqueeze(-1).mul(delta.unsqueeze(-2)));
    set_item(at(core_attn_out, i), last_recurrent_state.mul(q_t.unsqueeze(-1)).sum(-2));
  }
  if (!f.output_final_state) last_recurrent_state.reset();
  core_attn_out = core_attn_out.transpose(1, 2).contiguous().to(initial_dtype);
  return {core_attn_out, last_recurrent_state};
}

}  // namespace memest::hf
