// transformers/cache_utils.py: DynamicCache and EncoderDecoderCache, as they are filled by a forward.
#pragma once
#include <memory>
#include <vector>

#include "models/hf/python.h"

namespace memest::hf {

struct CacheLayer {
  X keys, values;
  X window_tensor;  ///< of a sliding layer: its window as a tensor, moved to the device at first use
  I window = 0;     ///< 0: keeps all
  I seen = 0;
  std::vector<X> states;  ///< of convolution and recurrent layers

  /// DynamicLayer.update, DynamicSlidingWindowLayer.update: the full states, for the attention.
  Pair update(X key_states, X value_states);
  /// get_mask_sizes: length and offset of the keys.
  std::pair<I, I> mask_sizes(I query_length) const;
  /// Without gradients, keys and values count as the cache.
  void categorize() const;
};

class Cache {
 public:
  Cache() = default;
  /// One layer for each window; 0 is full attention.
  explicit Cache(const std::vector<I>& windows);
  CacheLayer& layer(I index);
  Pair update(X key_states, X value_states, I layer_index) {
    return layer(layer_index).update(std::move(key_states), std::move(value_states));
  }
  I seen(I layer_index = 0) const;
  /// The first layer with (or without) a window; 0 where there is none such.
  I first_layer(bool sliding) const;
  const std::vector<CacheLayer>& layers() const { return layers_; }
  void collect(Values& into) const;

 private:
  std::vector<CacheLayer> layers_;
};
using CachePtr = std::shared_ptr<Cache>;

/// EncoderDecoderCache: a decoder's own states, and those of the encoder that it attends to.
struct EncoderDecoderCache {
  Cache self_attention, cross_attention;
  void collect(Values& into) const {
    self_attention.collect(into);
    cross_attention.collect(into);
  }
};

}  // namespace memest::hf
