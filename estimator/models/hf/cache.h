// transformers/cache_utils.py 5.24: DynamicCache, StaticCache, the fp8 QuantizedCache and EncoderDecoderCache, as they are filled by a
// forward.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "models/hf/python.h"

namespace memest::hf {

struct CacheLayer {
  X keys, values;
  X window_tensor;  ///< of a sliding layer: its window as a tensor, moved to the device at first use
  I window = 0;     ///< 0: keeps all
  I seen = 0;
  std::vector<X> states;  ///< of convolution and recurrent layers
  I max_cache_len = 0;    ///< of StaticLayer and StaticSlidingWindowLayer, which keep so many tokens from the first on; 0: grows
  X cumulative_length;    ///< of these: tokens seen, as a tensor on the device
  bool fp8 = false;       ///< Fp8QuantizedLayer: keys and values are float8, with one scale each
  X key_scale, value_scale;

  /// The layer's update: the full states, for the attention.
  Pair update(X key_states, X value_states);
  /// get_mask_sizes: length and offset of the keys.
  std::pair<I, I> mask_sizes(I query_length) const;
  /// get_query_offset as StaticLayer has it once it is filled: a tensor. Undefined where it is the number `seen`.
  X query_offset() const { return max_cache_len && !window ? cumulative_length : X(); }
  /// Without gradients, keys and values count as the cache.
  void categorize() const;

 private:
  Pair update_dynamic(X key_states, X value_states);
  Pair update_static(const X& key_states, const X& value_states);
  Pair update_static_sliding(const X& key_states, const X& value_states);
  Pair update_fp8(const X& key_states, const X& value_states);
  void initialize_static(const X& key_states, const X& value_states);
  void copy_in(const X& key_states, const X& value_states);
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

  /// StaticCache(config, max_cache_len) in the place of DynamicCache(config).
  void make_static(I max_cache_len);
  /// QuantizedCache("fp8", config). Throws Error where a layer has a window.
  void make_fp8();
  bool is_compileable() const { return !layers_.empty() && layers_[0].max_cache_len > 0; }
  /// The masks that generate() made for a call with a compileable cache; a mask may be none.
  struct Masks {
    std::optional<X> full, sliding;
  };
  Masks prepared;

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
