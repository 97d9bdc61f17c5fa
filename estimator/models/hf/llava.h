// LlavaModel and the models that are it with another projector (Mistral3), over towers of one image size or of any (Pixtral).
#pragma once
#include "models/hf/composite.h"

namespace memest::hf {

class LlavaProjector : public Base {
 public:
  using Base::Base;
  virtual X operator()(X image_features, const ImageSizes& sizes) = 0;
};

struct LlavaForm {
  std::string type = "LlavaModel";
  I merge = 1;              ///< spatial_merge_size: so many patches a side become one
  bool takes_rows = false;  ///< the projector gets [patches, width] of all images, packed
  bool anyres = false;      ///< an image is cut into tiles (llava_next); the rows of their features end in image_newline
  /// `in`: the width of the selected hidden states, joined.
  std::shared_ptr<LlavaProjector> (*make_projector)(const Config& config, I in, I hidden) = nullptr;
};

/// linear_2(act(linear_1(x))) of the projectors.
class LlavaProjection final {
 public:
  LlavaProjection(Base& owner, const Config& c, I in, I hidden);
  X operator()(X image_features);

 private:
  std::shared_ptr<Linear> linear_1, linear_2;
  std::shared_ptr<Activation> act;
};

/// LlavaMultiModalProjector and its copies.
std::shared_ptr<LlavaProjector> make_llava_projector(std::string type, const Config& config, I in, I hidden);
ImageTextModelPtr make_llava_model(const Config& config, const Options& options, const LlavaForm& form);

}  // namespace memest::hf
