// Rotary position embeddings: the tables cos and sin, and the buffers of frequencies.
#pragma once
#include <string>
#include <vector>

#include "models/hf/module.h"

namespace memest::hf {

class RotaryEmbedding final : public Base {
 public:
  /// torch.cat((freqs, freqs)), repeat_interleave(freqs, 2), freqs; torch.polar(1, freqs), one complex table (the first of the pair).
  enum class Table { doubled, interleaved, plain, complex };
  struct Form {
    Table table = Table::doubled;
    bool cast = true;  ///< cos and sin are cast to the type of x
    /// Layer types with frequencies of their own (their buffers are NAME_inv_freq) and the width of each.
    std::vector<std::pair<std::string, I>> layer_types = {};
  };
  /// `width`: of a head's rotated part; `config` gives rope_parameters (or rope_scaling).
  RotaryEmbedding(std::string type, const Config& config, I width, Form form);
  RotaryEmbedding(std::string type, const Config& config, I width) : RotaryEmbedding(std::move(type), config, width, Form()) {}
  Pair operator()(X x, X position_ids, const std::string& layer_type = {});

 private:
  std::size_t index(const std::string& layer_type) const;
  Form form_;
  std::vector<std::string> kinds_;  ///< rope_type of each
  std::vector<X> long_inv_freq_;
};

/// config.rope_parameters (v5) or rope_scaling (v4): the rope_type; "default" where neither names one.
std::string rope_type(const Config& config, const std::string& layer_type = {});
/// int(head_dim * partial_rotary_factor), from rope_parameters or the configuration itself.
I rotary_width(const Config& config, I head_dim, double default_factor = 1.0);

}  // namespace memest::hf
