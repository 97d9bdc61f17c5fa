#include "models/hf/cache.h"

namespace memest::hf {

void CacheLayer::categorize() const {
  if (runtime().grad_mode) return;  // autograd saves them: activations
  for (auto* x : {&keys, &values})
    if (*x) (*x)->storage->categorize(Category::kv_cache);
}

Pair CacheLayer::update(X key_states, X value_states) {
  if (!keys) {  // lazy_initialization
    keys = empty({0}, key_states.dtype());
    values = empty({0}, value_states.dtype());
    if (window) window_tensor = empty({}, DType::int64);
  }
  seen += key_states.size(-2);
  if (!window) {
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

std::pair<I, I> CacheLayer::mask_sizes(I query_length) const {
  if (!window) return {seen + query_length, 0};
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
void Cache::collect(Values& into) const {
  for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {  // CPython drops a list's items from its end
    for (auto* x : {&layer->keys, &layer->values, &layer->window_tensor})
      if (*x) into.emplace_back(Tensor(*x));
    for (auto& x : layer->states)
      if (x) into.emplace_back(Tensor(x));
  }
}

}  // namespace memest::hf
