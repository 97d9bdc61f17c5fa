// What differs between releases of transformers, as predicates: the one place that knows their numbers. memest follows 5.24; these are the
// differences of older releases that were found to change memory by more than a percent (docs/accuracy.md), each read in the wheels.
#pragma once
#include <compare>
#include <optional>
#include <string>
#include <string_view>

#include "device/torch_version.h"

namespace memest {

struct TransformersVersion {
  int major = 5, minor = 24;

  auto operator<=>(const TransformersVersion&) const = default;

  /// "5.24", "4.51.3"; nothing where the text is no version or memest does not model it (4.48 to 5.24).
  static std::optional<TransformersVersion> parse(std::string_view text);
  static constexpr TransformersVersion oldest() { return {4, 48}; }
  static constexpr TransformersVersion newest() { return {5, 24}; }
  /// What people had with a PyTorch: 4.51 up to 2.6, 4.55 with 2.7, 4.57 with 2.8 and 2.9 (the last before the next PyTorch came, by PyPI's
  /// dates), the newest with newer ones.
  static TransformersVersion beside(TorchVersion torch);
  std::string name() const { return std::to_string(major) + "." + std::to_string(minor); }

  bool at_least(int major_release, int minor_release) const { return *this >= TransformersVersion{major_release, minor_release}; }

  /// integrations/sdpa_attention.py: query, key and value are made contiguous before the kernel.
  bool sdpa_makes_contiguous() const { return !at_least(4, 56); }
  /// ... and grouped heads are left to it (enable_gqa) where there is no mask.
  bool sdpa_takes_grouped_heads() const { return at_least(4, 54); }
  /// cache_utils.py: a layer of a DynamicCache begins as an empty tensor that the first keys are concatenated to; before, it kept them.
  bool cache_starts_empty() const { return at_least(4, 56); }
  /// masking_utils.py: packed sequences are looked for in the values of position_ids.
  bool finds_packed_sequences() const { return at_least(4, 53); }
  /// models/t5: attention through the attention interface, with SDPA; before, scores that the bias is added to in place.
  bool t5_has_attention_interface() const { return at_least(5, 15); }
  /// models/t5: the head is tied to the embeddings whatever the file says.
  bool t5_always_ties() const { return at_least(5, 0); }
  /// models/t5: masks by masking_utils.py; before, made of ones.
  bool t5_makes_masks_of_ones() const { return !at_least(5, 0); }
  /// integrations/moe.py: experts in one tensor and products by groups; before, a loop over modules.
  bool has_experts_implementations() const { return at_least(5, 0); }
  /// Rotary embeddings register their frequencies a second time, as original_inv_freq; before, that name was the same tensor.
  bool rotary_registers_original() const { return at_least(5, 0); }
  /// models/opt: OPTSdpaAttention, with query, key and value as they come.
  bool opt_has_own_sdpa() const { return !at_least(4, 52); }
  /// models/gpt2: each attention registers its causal mask (and, before 5.0, the value that it masks with) as buffers.
  bool gpt2_registers_mask() const { return !at_least(5, 2); }
  bool gpt2_registers_mask_value() const { return !at_least(5, 0); }
  bool gpt_neo_registers_mask_value() const { return !at_least(5, 0); }
};

}  // namespace memest
