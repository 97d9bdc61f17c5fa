#include "models/hf/masks.h"

#include <functional>

namespace memest::hf {
namespace {

/// mask_function(batch_idx, head_idx, q_idx, kv_idx)
using MaskFunction = std::function<X(const X&, const X&, const X&, const X&)>;

X compare(const char* op, X a, X b) { return aten(op, {Tensor(std::move(a)), Tensor(std::move(b))}); }

X causal(const X&, const X&, const X& q_idx, const X& kv_idx) { return compare("le", kv_idx, q_idx); }
X bidirectional(const X&, const X&, const X& q_idx, const X&) { return aten("ge", {Tensor(q_idx), I{0}}); }
MaskFunction sliding_window_overlay(I window) {
  return [window](const X&, const X&, const X& q_idx, const X& kv_idx) { return compare("gt", kv_idx, q_idx.sub(window)); };
}
MaskFunction bidirectional_overlay(I window) {
  return [window](const X&, const X&, const X& q_idx, const X& kv_idx) {
    X distance = q_idx.sub(kv_idx);
    distance = aten("abs", {Tensor(std::move(distance))});
    return aten("le", {Tensor(std::move(distance)), window});
  };
}
/// The sizes of q_idx.new_ones(()): under vmap (indices of [length, 1]) a scalar is one for each query.
Dims scalar_like(const X& q_idx) { return q_idx.dim() == 2 ? q_idx.sizes() : Dims{}; }
MaskFunction and_masks(MaskFunction first, MaskFunction second) {
  return [first, second](const X& b, const X& h, const X& q, const X& kv) {
    X result = aten("new_ones", {Tensor(q), list_of(scalar_like(q))}, {{"dtype", DType::boolean}});
    for (auto* mask : {&first, &second}) {
      X part = (*mask)(b, h, q, kv);
      X both = aten("bitwise_and", {Tensor(result), Tensor(std::move(part))});
      result = std::move(both);
    }
    return result;
  };
}
MaskFunction or_masks(MaskFunction first, MaskFunction second) {
  return [first, second](const X& b, const X& h, const X& q, const X& kv) {
    X result = aten("new_zeros", {Tensor(q), list_of(scalar_like(q))}, {{"dtype", DType::boolean}});
    for (auto* mask : {&first, &second}) {
      X part = (*mask)(b, h, q, kv);
      X either = aten("bitwise_or", {Tensor(result), Tensor(std::move(part))});
      result = std::move(either);
    }
    return result;
  };
}
X at(const X& table, const X& batch_idx, const X& idx) {
  return aten("index", {Tensor(table), make_list({Tensor(batch_idx), Tensor(idx)})});
}
/// remap_positions_for_packed_sequence
MaskFunction remapped(MaskFunction mask, X position_ids) {
  return [mask, position_ids](const X& b, const X& h, const X& q, const X& kv) {
    X queries = at(position_ids, b, q);
    X keys = at(position_ids, b, kv);
    return leave(mask(b, h, queries, keys), queries, keys);
  };
}
MaskFunction packed_sequences(X mask) {
  return [mask](const X& b, const X&, const X& q, const X& kv) {
    X queries = at(mask, b, q);
    X keys = at(mask, b, kv);
    X same = compare("eq", queries, keys);
    return leave(same, queries, keys);
  };
}
MaskFunction blockwise_overlay(X block_sequence_ids) {
  return [block_sequence_ids](const X& b, const X&, const X& q, const X& kv) {
    X q_group = at(block_sequence_ids, b, q);
    X kv_group = at(block_sequence_ids, b, kv);
    X same = compare("eq", q_group, kv_group);
    X some = aten("ge", {Tensor(q_group), I{0}});
    X both = aten("bitwise_and", {Tensor(same), Tensor(some)});
    same.reset();
    some.reset();
    return leave(std::move(both), q_group, kv_group);
  };
}
MaskFunction chunked_overlay(I chunk, X left_padding) {
  return [chunk, left_padding](const X& b, const X&, const X& q, const X& kv) {
    auto block = [&](const X& idx) {
      return aten("floor_divide", {Tensor(idx.sub(aten("index", {Tensor(left_padding), make_list({Tensor(b)})}))), chunk});
    };
    X keys = block(kv);
    X queries = block(q);
    return compare("eq", std::move(keys), std::move(queries));
  };
}

/// find_packed_sequence_indices: undefined where the values show one sequence a sample.
X find_packed_sequence_indices(const Options& options, const X& position_ids) {
  X first_dummy_value = position_ids.slice(1, std::nullopt, 1).sub(1);
  // torch.diff(position_ids, prepend=first_dummy_value, dim=-1)
  X position_diff;
  {
    X joined = cat({first_dummy_value, position_ids}, -1);
    const I length = joined.size(-1);
    position_diff = joined.slice(-1, 1, length).sub(joined.slice(-1, 0, length - 1));
  }
  X packed_sequence_mask = aten("cumsum", {Tensor(aten("ne", {Tensor(position_diff), I{1}})), I{-1}});
  {
    X none = aten("eq", {Tensor(packed_sequence_mask.select(1, -1)), I{0}});
    X all = aten("all", {Tensor(std::move(none))});
  }
  if (!options.packed) return leave(X(), first_dummy_value, position_diff, packed_sequence_mask);
  return leave(std::move(packed_sequence_mask), first_dummy_value, position_diff);
}

struct Sizes {
  I batch, q_length, kv_length, q_offset, kv_offset;
  X packed, padding;
  X q_offset_tensor;  ///< of a filled StaticLayer
};
Sizes preprocess(const MaskArguments& a, I layer) {
  Sizes s{a.inputs_embeds.size(0), a.inputs_embeds.size(1), a.inputs_embeds.size(1), 0, 0, {}, {}, {}};
  if (a.attention_mask) {
    s.padding = a.attention_mask.to(DType::boolean);
    s.kv_length = s.padding.size(-1);
  }
  if (a.cache) {
    s.q_offset = a.cache->seen(layer);
    if (layer < I(a.cache->layers().size())) {
      s.q_offset_tensor = a.cache->layers()[std::size_t(layer)].query_offset();
      std::tie(s.kv_length, s.kv_offset) = a.cache->layers()[std::size_t(layer)].mask_sizes(s.q_length);
    } else {
      s.kv_length = s.q_length;
    }
  } else if (a.position_ids && !a.attention_mask) {
    X position_ids = a.position_ids;
    if (position_ids.size(0) != s.batch) position_ids = position_ids.expand({s.batch, -1});
    s.packed = find_packed_sequence_indices(a.options, position_ids);
  }
  return s;
}

MaskFunction padding_function(X padding_mask) {
  return [padding_mask](const X& b, const X&, const X&, const X& kv) { return at(padding_mask, b, kv); };
}
/// _ignore_causal_mask_sdpa without a local size.
bool ignores_causal_mask(const Options& options, const Sizes& s) {
  auto fast_all = [&](const X& mask) {
    X equal = aten("eq", {Tensor(aten("sum", {Tensor(mask)})), mask.numel()});
    return !options.padded;
  };
  if ((s.q_length == 1 || s.kv_length == s.q_length) && (!s.padding || fast_all(s.padding))) return true;
  return s.q_offset == 0 && (!s.padding || (fast_all(s.padding.slice(1, std::nullopt, s.q_length)) &&
                                            fast_all(aten("bitwise_not", {Tensor(s.padding.slice(1, s.q_length, std::nullopt))}))));
}

/// _ignore_bidirectional_mask_sdpa
bool ignores_bidirectional_mask(const Options& options, const Sizes& s, bool local) {
  if (s.padding) aten("all", {Tensor(s.padding)});
  return (!s.padding || !options.padded) && !local;
}

/// sdpa_mask, and eager_mask on top of it.
X make_mask(const MaskArguments& a, const Sizes& s, MaskFunction function, bool skip_causal, bool skip_bidirectional,
            std::optional<I> local_size, bool vmap = false) {
  if (a.options.attention == Attention::flash) return {};
  const bool eager = a.options.attention == Attention::eager;
  const bool local = local_size && s.kv_length >= *local_size;
  if (skip_causal && !eager && !local && ignores_causal_mask(a.options, s)) return {};
  if (skip_bidirectional && ignores_bidirectional_mask(a.options, s, local)) return {};
  if (s.padding) function = and_masks(std::move(function), padding_function(s.padding));
  X mask;
  {
    X batch_arange = arange(s.batch);
    X head_arange = arange(1);
    X q_arange = s.q_offset_tensor ? arange(s.q_length).add(s.q_offset_tensor) : arange(s.q_length).add(s.q_offset);
    X kv_arange = arange(s.kv_length).add(s.kv_offset);
    if (vmap) {  // _vmap_expansion_sdpa: an index has the dimensions of the maps around it, and a result is expanded over the others
      mask = function(batch_arange.unsqueeze(1).unsqueeze(2), head_arange, q_arange.unsqueeze(1), kv_arange);
      if (mask.dim() == 3) mask = mask.unsqueeze(1);
    } else {
      mask = function(batch_arange.unsqueeze(1).unsqueeze(2).unsqueeze(3), head_arange.unsqueeze(0).unsqueeze(2).unsqueeze(3),
                      q_arange.unsqueeze(0).unsqueeze(0).unsqueeze(3), kv_arange.unsqueeze(0).unsqueeze(0).unsqueeze(0));
    }
    mask = mask.expand({s.batch, 1, s.q_length, s.kv_length});
    mask = leave(std::move(mask), batch_arange, head_arange, q_arange, kv_arange);
  }
  if (!eager) return mask;
  X zero = zeros({}, a.inputs_embeds.dtype());
  return where(mask, std::move(zero), -1e30);
}

X causal_mask(const MaskArguments& a, MaskFunction function, I layer, std::optional<I> local_size, bool vmap = false) {
  const Sizes s = preprocess(a, layer);
  bool skip = a.allow_skip && !vmap && !(a.cache && a.cache->is_compileable() && s.q_length == 1);
  if (s.packed) {
    function = remapped(std::move(function), a.position_ids.expand({s.batch, -1}));
    skip = false;
  }
  if (a.block_sequence_ids) {
    function = or_masks(std::move(function), blockwise_overlay(a.block_sequence_ids));
    skip = false;
  }
  if (s.packed) function = and_masks(std::move(function), packed_sequences(s.packed));
  return make_mask(a, s, std::move(function), skip, false, local_size, vmap);
}

/// The mask of that kind that generate() made for the call. A mapping of several kinds is taken as it is, and so is the lack of a kind;
/// where generate()'s only mask is none, the model looks whether it needs one.
std::optional<X> prepared_mask(const MaskArguments& a, std::optional<X> Cache::Masks::*kind) {
  if (!a.cache) return {};
  const Cache::Masks& masks = a.cache->prepared;
  if (!masks.full && !masks.sliding) return {};
  if (!(masks.*kind)) return X();
  const bool mapping = masks.full && masks.sliding;
  if (!mapping && !*(masks.*kind)) return {};
  return masks.*kind;
}

}  // namespace

X create_causal_mask(const MaskArguments& a) {
  if (auto mask = prepared_mask(a, &Cache::Masks::full)) return *mask;
  return causal_mask(a, causal, a.layer >= 0 ? a.layer : a.cache ? a.cache->first_layer(false) : 0, {});
}
X create_sliding_window_causal_mask(const MaskArguments& a, I window) {
  if (auto mask = prepared_mask(a, &Cache::Masks::sliding)) return *mask;
  return causal_mask(a, and_masks(sliding_window_overlay(window), causal),
                     a.layer >= 0 ? a.layer
                     : a.cache    ? a.cache->first_layer(true)
                                  : 0,
                     window);
}
X create_sliding_window_block_mask(const MaskArguments& a, I window) {
  MaskArguments own = a;
  own.block_sequence_ids.reset();
  return causal_mask(own, and_masks(or_masks(causal, blockwise_overlay(a.block_sequence_ids)), sliding_window_overlay(window)),
                     a.cache ? a.cache->first_layer(true) : 0, {}, true);
}
X create_chunked_causal_mask(const MaskArguments& a, I chunk) {
  if (auto mask = prepared_mask(a, &Cache::Masks::sliding)) return *mask;
  X left_padding = zeros({a.inputs_embeds.size(0)}, DType::int64);
  return causal_mask(a, and_masks(chunked_overlay(chunk, left_padding), causal),
                     a.layer >= 0 ? a.layer
                     : a.cache    ? a.cache->first_layer(true)
                                  : 0,
                     chunk);
}
X create_bidirectional_mask(const MaskArguments& a) {
  const Sizes s = preprocess({a.options, a.inputs_embeds, a.cache, {}, a.layer, a.allow_skip, a.attention_mask}, 0);
  return make_mask(a, s, bidirectional, false, a.allow_skip, {});
}
X create_bidirectional_sliding_window_mask(const MaskArguments& a, I window) {
  const Sizes s = preprocess({a.options, a.inputs_embeds, a.cache, {}, a.layer, a.allow_skip, a.attention_mask}, 0);
  return make_mask(a, s, and_masks(bidirectional_overlay(window), bidirectional), false, a.allow_skip, window);
}

}  // namespace memest::hf
