#include "models/hf/cache.h"

#include "models/hf/release.h"

#include <tuple>

namespace memest::hf {

void CacheLayer::categorize() const {
  if (runtime().grad_mode) return;  // autograd saves them: activations
  for (auto* x : {&keys, &values})
    if (*x) (*x)->storage->categorize(Category::kv_cache);
}

Pair CacheLayer::update(X key_states, X value_states) {
  if (max_cache_len) return window ? update_static_sliding(key_states, value_states) : update_static(key_states, value_states);
  if (fp8) return update_fp8(key_states, value_states);
  return update_dynamic(std::move(key_states), std::move(value_states));
}

Pair CacheLayer::update_dynamic(X key_states, X value_states) {
  if (!keys && !release().cache_starts_empty()) {
    seen += key_states.size(-2);
    keys = key_states;
    values = value_states;
    categorize();
    return {keys, values};
  }
  if (!keys) {  // lazy_initialization
    keys = empty({0}, key_states.dtype());
    values = empty({0}, value_states.dtype());
    if (window) window_tensor = empty({}, DType::int64);
  }
  seen += key_states.size(-2);
  if (!window || !release().cache_starts_empty()) {
    keys = cat({keys, key_states}, -2);
    values = cat({values, value_states}, -2);
    categorize();
    return {keys, values};
  }
  X full_keys = cat({keys, key_states}, -2);
  X full_values = cat({values, value_states}, -2);
  keys = full_keys.slice(2, -window + 1, std::nullopt);
  values = full_values.slice(2, -window + 1, std::nullopt);
  categorize();
  return {full_keys, full_values};
}

// ---- StaticLayer, StaticSlidingWindowLayer -------------------------------------------------------------------------------------

void CacheLayer::initialize_static(const X& key_states, const X& value_states) {
  auto kept = [this](const X& x) { return zeros({x.size(0), x.size(1), max_cache_len, x.size(-1)}, x.dtype()); };
  keys = kept(key_states);
  values = kept(value_states);
  cumulative_length = empty({}, DType::int64);
  categorize();
}

/// cache_position, and index_copy_ at it.
void CacheLayer::copy_in(const X& key_states, const X& value_states) {
  X cache_position = arange(key_states.size(-2)).add(cumulative_length);
  if (seen > max_cache_len) throw Error("the static cache holds " + std::to_string(max_cache_len) + " tokens");
  aten("index_copy_", {Tensor(keys), I{2}, Tensor(cache_position), Tensor(key_states)});
  aten("index_copy_", {Tensor(values), I{2}, Tensor(cache_position), Tensor(value_states)});
}

Pair CacheLayer::update_static(const X& key_states, const X& value_states) {
  if (!keys) initialize_static(key_states, value_states);
  seen += key_states.size(-2);
  copy_in(key_states, value_states);
  return {keys, values};
}

Pair CacheLayer::update_static_sliding(const X& key_states, const X& value_states) {
  if (!keys) initialize_static(key_states, value_states);
  const I kv_length = key_states.size(-2), current_length = seen;
  seen += kv_length;
  X full_key_states, full_value_states;
  if (current_length >= max_cache_len && kv_length == 1) {
    X new_keys = aten("roll", {Tensor(keys), list_of(Dims{-1}), list_of(Dims{-2})});
    X new_values = aten("roll", {Tensor(values), list_of(Dims{-1}), list_of(Dims{-2})});
    X index = empty({1}, DType::int64);
    auto overwrite = [&index](const X& into, const X& last) {
      aten("index_put_", {Tensor(into), make_list({None{}, None{}, Tensor(index)}), Tensor(last)});
    };
    overwrite(new_keys, key_states);
    overwrite(new_values, value_states);
    return leave(Pair{keys, values}, new_keys, new_values, index);  // copied back
  }
  if (current_length >= max_cache_len) {
    full_key_states = cat({keys.slice(2, 1, std::nullopt), key_states}, -2);
    full_value_states = cat({values.slice(2, 1, std::nullopt), value_states}, -2);
  } else if (current_length + kv_length <= max_cache_len) {
    copy_in(key_states, value_states);
    return {keys, values};
  } else if (current_length == 0) {
    full_key_states = key_states;
    full_value_states = value_states;
  } else {
    full_key_states = cat({keys.slice(2, std::nullopt, current_length), key_states}, -2);
    full_value_states = cat({values.slice(2, std::nullopt, current_length), value_states}, -2);
  }
  return {full_key_states, full_value_states};  // the last of them copied into keys and values
}

// ---- Fp8QuantizedLayer -----------------------------------------------------------------------------------------------------------
namespace {

X to_fp8(const X& states, const X& scale) { return states.to_float().div(scale).to(DType::float8_e4m3fn); }
/// _quantize without a scale.
Pair quantize(const X& states) {
  X scale = aten("abs", {Tensor(states)});
  scale = aten("amax", {Tensor(std::move(scale))});
  scale = std::move(scale).to_float();
  scale = std::move(scale).div(448.0);
  scale = aten("clamp", {Tensor(std::move(scale)), 1e-38});
  return {to_fp8(states, scale), scale};
}
X dequantize(const X& states, const X& scale, DType type) { return states.to_float().mul(scale).to(type); }

}  // namespace

Pair CacheLayer::update_fp8(const X& key_states, const X& value_states) {
  seen += key_states.size(-2);
  if (!keys) {
    std::tie(keys, key_scale) = quantize(key_states);
    std::tie(values, value_scale) = quantize(value_states);
    categorize();
    return {key_states, value_states};
  }
  const X quantized_keys = keys, quantized_values = values;
  X new_keys = to_fp8(key_states, key_scale);
  X new_values = to_fp8(value_states, value_scale);
  keys = cat({quantized_keys, new_keys}, -2);
  values = cat({quantized_values, new_values}, -2);
  categorize();
  X keys_to_return = dequantize(keys, key_scale, key_states.dtype());
  X values_to_return = dequantize(values, value_scale, value_states.dtype());
  return {keys_to_return, values_to_return};
}

std::pair<I, I> CacheLayer::mask_sizes(I query_length) const {
  if (max_cache_len && !window) return {max_cache_len, 0};
  if (max_cache_len) {
    const I kv_offset = std::max<I>(seen - max_cache_len + 1, 0);
    if (seen >= max_cache_len) return {max_cache_len + query_length - 1, kv_offset};
    return {std::max(seen + query_length, max_cache_len), kv_offset};
  }
  if (!window || !release().cache_starts_empty()) return {seen + query_length, 0};
  const I offset = std::max<I>(seen - window + 1, 0);
  return {seen >= window ? window - 1 + query_length : seen + query_length, offset};
}

Cache::Cache(const std::vector<I>& windows) {
  for (I w : windows) {
    layers_.emplace_back();
    layers_.back().window = w;
  }
}
CacheLayer& Cache::layer(I index) {
  while (I(layers_.size()) <= index) layers_.emplace_back();
  return layers_[std::size_t(index)];
}
I Cache::seen(I layer_index) const { return layer_index < I(layers_.size()) ? layers_[std::size_t(layer_index)].seen : 0; }
I Cache::first_layer(bool sliding) const {
  for (std::size_t i = 0; i < layers_.size(); ++i)
    if ((layers_[i].window != 0) == sliding && layers_[i].states.empty()) return I(i);
  return 0;
}
void Cache::make_static(I max_cache_len) {
  for (auto& layer : layers_) layer.max_cache_len = layer.window ? std::min(layer.window, max_cache_len) : max_cache_len;
}
void Cache::make_fp8() {
  for (auto& layer : layers_) {
    if (layer.window)
      throw Error("`QuantizedCache` is only supported for models with only full attention layers", "leave --cache-dtype out");
    layer.fp8 = true;
  }
}
void Cache::collect(Values& into) const {
  for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {  // CPython drops a list's items from its end
    for (auto* x : {&layer->keys, &layer->values, &layer->window_tensor, &layer->cumulative_length, &layer->key_scale, &layer->value_scale})
      if (*x) into.emplace_back(Tensor(*x));
    for (auto& x : layer->states)
      if (x) into.emplace_back(Tensor(x));
  }
}

}  // namespace memest::hf
