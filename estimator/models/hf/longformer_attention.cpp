#include <cmath>

#include "models/hf/longformer.h"

namespace memest::hf {
namespace {

X einsum(const char* equation, const X& a, const X& b) {
  return aten("einsum", {std::string(equation), make_list({Tensor(a), Tensor(b)})});
}
X padded(const X& x, const Dims& widths, I value = 0) { return aten("constant_pad_nd", {Tensor(x), list_of(widths), value}); }
X overlapping(const X& x, const Dims& size, const Dims& stride) { return aten("as_strided", {Tensor(x), list_of(size), list_of(stride)}); }
/// target[...] = value
void assign(const X& target, X value) { ops::copy_(target, std::move(value), false); }

/// _chunk: chunks of two windows, each begins in the middle of the one before.
X chunk(const X& hidden_states, I window_overlap) {
  X chunks =
      hidden_states.view({hidden_states.size(0), hidden_states.size(1) / (window_overlap * 2), window_overlap * 2, hidden_states.size(2)});
  const Dims stride = chunks.strides();
  return overlapping(chunks, {chunks.size(0), chunks.size(1) * 2 - 1, chunks.size(2), chunks.size(3)},
                     {stride[0], stride[1] / 2, stride[2], stride[3]});
}

/// _mask_invalid_locations, in place.
void mask_invalid_locations(const X& input_tensor, I affected_seq_len) {
  const I wide = affected_seq_len + 1;
  X beginning_mask_2d = aten("new_ones", {Tensor(input_tensor), list_of(Dims{affected_seq_len, wide})});
  X triangle = aten("tril", {Tensor(std::move(beginning_mask_2d))});
  beginning_mask_2d = aten("flip", {Tensor(std::move(triangle)), list_of(Dims{0})});
  X beginning_mask = beginning_mask_2d.unsqueeze(0).whole_slices(1).unsqueeze(2);
  X ending_mask = aten("flip", {Tensor(beginning_mask), list_of(Dims{1, 3})});
  const auto mask = [](const X& target, const X& where_masked) {
    X lowest = aten("full_like", {Tensor(target), -1e30});
    X condition = where_masked.to(DType::boolean);
    assign(target, where(std::move(condition), std::move(lowest), target));
  };
  X beginning_input = input_tensor.whole_slices(1).slice(1, std::nullopt, affected_seq_len).slice(3, std::nullopt, wide);
  beginning_mask = beginning_mask.expand(beginning_input.sizes());
  mask(beginning_input, beginning_mask);
  X ending_input = input_tensor.whole_slices(1).slice(1, -affected_seq_len, std::nullopt).slice(3, -wide, std::nullopt);
  ending_mask = ending_mask.expand(ending_input.sizes());
  mask(ending_input, ending_mask);
  leave(0, beginning_mask_2d, beginning_mask, ending_mask, beginning_input, ending_input);
}

/// _sliding_chunks_query_key_matmul: [batch, length, heads, 2 * window_overlap + 1].
X sliding_chunks_query_key_matmul(X query, X key, I window_overlap) {
  const I batch_size = query.size(0), seq_len = query.size(1), num_heads = query.size(2), head_dim = query.size(3), w = window_overlap;
  const I chunks_count = seq_len / w - 1;
  query = query.transpose(1, 2).reshape({batch_size * num_heads, seq_len, head_dim});
  key = key.transpose(1, 2).reshape({batch_size * num_heads, seq_len, head_dim});
  query = chunk(query, w);
  key = chunk(key, w);
  X chunked = einsum("bcxd,bcyd->bcxy", query, key);
  chunked = padded(chunked, {0, 0, 0, 1});  // _pad_and_transpose_last_two_dims
  chunked = chunked.view({chunked.size(0), chunked.size(1), chunked.size(3), chunked.size(2)});
  X scores = aten("new_zeros", {Tensor(chunked), list_of(Dims{batch_size * num_heads, chunks_count + 1, w, w * 2 + 1})});
  assign(scores.slice(1, std::nullopt, -1).slice(3, w, std::nullopt), chunked.slice(2, std::nullopt, w).slice(3, std::nullopt, w + 1));
  assign(scores.select(1, -1).slice(2, w, std::nullopt), chunked.select(1, -1).slice(1, w, std::nullopt).slice(2, std::nullopt, w + 1));
  assign(scores.slice(1, 1, std::nullopt).slice(3, std::nullopt, w), chunked.slice(2, -(w + 1), -1).slice(3, w + 1, std::nullopt));
  assign(scores.select(1, 0).slice(1, 1, w).slice(2, 1, w),
         chunked.select(1, 0).slice(1, std::nullopt, w - 1).slice(2, 1 - w, std::nullopt));
  scores = scores.view({batch_size, num_heads, seq_len, 2 * w + 1}).transpose(2, 1);
  mask_invalid_locations(scores, w);
  return leave(scores, query, key, chunked);
}

/// _pad_and_diagonalize.
X pad_and_diagonalize(X chunked) {
  const I total_num_heads = chunked.size(0), num_chunks = chunked.size(1), window_overlap = chunked.size(2), hidden_dim = chunked.size(3);
  chunked = padded(chunked, {0, window_overlap + 1});
  chunked = chunked.view({total_num_heads, num_chunks, -1});
  chunked = chunked.slice(2, std::nullopt, -window_overlap);
  chunked = chunked.view({total_num_heads, num_chunks, window_overlap, window_overlap + hidden_dim});
  chunked = chunked.slice(3, std::nullopt, -1);
  return chunked;
}

/// _sliding_chunks_matmul_attn_probs_value.
X sliding_chunks_matmul_attn_probs_value(const X& attn_probs, X value, I window_overlap) {
  const I batch_size = value.size(0), seq_len = value.size(1), num_heads = value.size(2), head_dim = value.size(3), w = window_overlap;
  const I chunks_count = seq_len / w - 1;
  X chunked_attn_probs = attn_probs.transpose(1, 2).reshape({batch_size * num_heads, seq_len / w, w, 2 * w + 1});
  value = value.transpose(1, 2).reshape({batch_size * num_heads, seq_len, head_dim});
  X padded_value = padded(value, {0, 0, w, w}, -1);
  const Dims stride = padded_value.strides();
  X chunked_value = overlapping(padded_value, {batch_size * num_heads, chunks_count + 1, 3 * w, head_dim},
                                {stride[0], w * stride[1], stride[1], stride[2]});
  chunked_attn_probs = pad_and_diagonalize(chunked_attn_probs);
  X context = einsum("bcwd,bcdh->bcwh", chunked_attn_probs, chunked_value);
  X result = context.view({batch_size, num_heads, seq_len, head_dim}).transpose(1, 2);
  return leave(result, value, chunked_attn_probs, padded_value, chunked_value, context);
}

class LongformerSelfAttention final : public Mixer {
 public:
  LongformerSelfAttention(std::string type, const LongformerSizes& s)
      : Mixer(std::move(type)), sizes_(s), window_(s.window / 2), head_dim_(s.hidden / s.heads) {
    for (auto& [name, layer] : {std::pair{"query", &query}, {"key", &key}, {"value", &value}})
      *layer = &child<Linear>(name, s.hidden, s.hidden);
    for (const char* name : {"query_global", "key_global", "value_global"}) child<Linear>(name, s.hidden, s.hidden);
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const X &attention_mask = call.mask, &is_index_masked = call.position_ids;
    hidden_states = hidden_states.transpose(0, 1);
    X query_vectors = (*query)(hidden_states);
    X key_vectors = (*key)(hidden_states);
    X value_vectors = (*value)(hidden_states);
    const I seq_len = hidden_states.size(0), batch_size = hidden_states.size(1), embed_dim = hidden_states.size(2);
    const auto heads = [&](const X& x) { return x.view({seq_len, batch_size, sizes_.heads, head_dim_}).transpose(0, 1); };
    query_vectors = ops::div_(query_vectors, wrapped_number(DType::float32));
    query_vectors = heads(query_vectors);
    key_vectors = heads(key_vectors);
    X attn_scores = sliding_chunks_query_key_matmul(query_vectors, key_vectors, window_);
    X removed = X(aten("ne", {Tensor(attention_mask), I{0}})).unsqueeze(2).unsqueeze(3);
    X float_mask = aten("masked_fill", {Tensor(removed.to(query_vectors.dtype())), Tensor(removed), -1e30});
    X all = aten("new_ones", {Tensor(float_mask), list_of(float_mask.sizes())});
    X diagonal_mask = sliding_chunks_query_key_matmul(std::move(all), float_mask, window_);
    attn_scores = attn_scores.add_(diagonal_mask);
    X attn_probs = attn_scores.softmax(-1, DType::float32);
    attn_probs = aten("masked_fill", {Tensor(attn_probs), Tensor(is_index_masked.whole_slices(2).unsqueeze(2).unsqueeze(3)), 0.0});
    attn_probs = attn_probs.to(attn_scores.dtype());
    attn_scores.reset();
    attn_probs = ops::dropout(attn_probs, sizes_.dropout, training);
    value_vectors = heads(value_vectors);
    X attn_output = sliding_chunks_matmul_attn_probs_value(attn_probs, value_vectors, window_);
    attn_output = attn_output.transpose(0, 1).reshape({seq_len, batch_size, embed_dim}).contiguous();
    X output = attn_output.transpose(0, 1);
    return leave(Pair{output, {}}, hidden_states, query_vectors, key_vectors, value_vectors, removed, float_mask, diagonal_mask, attn_probs,
                 attn_output);
  }

 private:
  LongformerSizes sizes_;
  I window_, head_dim_;
  Linear *query, *key, *value;
};

}  // namespace

std::vector<I> attention_windows(const Config& file, I layers) {
  std::vector<I> windows;
  const ConfigValue* given = file.find("attention_window");
  if (given && given->list())
    windows = file.integers("attention_window");
  else
    windows.assign(std::size_t(layers), file.integer("attention_window"));
  if (I(windows.size()) != layers)
    throw file.error("attention_window",
                     "expected an entry for each of the " + std::to_string(layers) + " layers, found " + std::to_string(windows.size()));
  for (I w : windows)
    if (w < 2 || w % 2 != 0 || w > (I{1} << 20))
      throw file.error("attention_window", "expected an even number from 2 to 1048576, found " + std::to_string(w));
  return windows;
}

MixerPtr make_longformer_self_attention(std::string type, const LongformerSizes& sizes) {
  return std::make_shared<LongformerSelfAttention>(std::move(type), sizes);
}

WindowMasks window_masks(const X& attention_mask) {
  WindowMasks masks;
  masks.is_index_masked = aten("lt", {Tensor(attention_mask), I{0}});
  masks.is_index_global_attn = aten("gt", {Tensor(attention_mask), I{0}});
  aten("any", {Tensor(masks.is_index_global_attn.flatten(0))});
  return masks;
}

}  // namespace memest::hf
