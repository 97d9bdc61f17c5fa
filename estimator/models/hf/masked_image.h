// What the classes PREFIXForMaskedImageModeling of vit, deit, swin and swinv2 share.
#pragma once
#include "models/hf/vision_parts.h"

namespace memest::hf {

/// The masked patches replaced: embeddings * (1 - mask) + mask_tokens * mask.
X mask_patches(const X& embeddings, const X& mask_token, const X& bool_masked_pos);

/// A class's input beside the pixels: bool_masked_pos, for each patch.
nn::InputSpec masked_positions(I patches);

/// The decoder, a convolution and nn.PixelShuffle, and the loss of the masked pixels.
class PixelDecoder final : public Unary {
 public:
  PixelDecoder(const Config& file, I features, I channels, I image, I patch);
  /// From the hidden states of the patches, [batch, features, length] in any strides.
  nn::Outcome reconstruct(const X& pixel_values, X sequence_output, X bool_masked_pos);

 protected:
  X forward(X input) override;

 private:
  Config file_;
  I channels_, image_, patch_, stride_;
  Convolution* conv_;
};

}  // namespace memest::hf
