// What generate() knows of a model of images and text (transformers 5.24,
// GenerationMixin._prepare_multimodal_encoder_kwargs_for_generation).
#pragma once
#include "models/hf/family.h"

namespace memest::hf {

class EncodesImages {
 public:
  virtual ~EncodesImages() = default;
  /// mm_encoder_outputs from the batch's images, if it has any: before the first call of step(), which then takes them.
  virtual void encode_images(const Batch& batch) = 0;
  virtual void forget_images() = 0;  ///< generate() returns
  /// _prepare_position_ids_for_generation of the class, from those of the text.
  virtual X generation_positions(const Batch&, X text_positions, const X& /*attention_mask*/) { return text_positions; }
  /// prepare_inputs_for_generation of the class: what it makes of position_ids.
  virtual X call_positions(X position_ids) const { return position_ids; }
  /// The token types of the text: which calls get them, and how they grow by a token.
  enum class TokenTypes {
    prompt,   ///< token_type_ids, with the first call; the last one again
    suffix,   ///< token_type_ids, each call those of its tokens; new_ones
    modality  ///< mm_token_type_ids, each call those of its tokens; new_zeros
  };
  virtual TokenTypes token_types() const { return TokenTypes::prompt; }
  /// It has a create_masks_for_generate of its own.
  virtual bool makes_masks() const { return false; }
};

}  // namespace memest::hf
