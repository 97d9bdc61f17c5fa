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
  /// prepare_inputs_for_generation of the class: what it makes of position_ids.
  virtual X call_positions(X position_ids) const { return position_ids; }
  /// Which calls get token_type_ids: the first, or also the later ones for their token.
  virtual bool keeps_token_types() const { return false; }
  /// It has a create_masks_for_generate of its own.
  virtual bool makes_masks() const { return false; }
};

}  // namespace memest::hf
