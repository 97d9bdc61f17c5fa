#include "models/hf/masked_image.h"

#include <cmath>

namespace memest::hf {

X mask_patches(const X& embeddings, const X& mask_token, const X& bool_masked_pos) {
  X mask_tokens = mask_token.expand({embeddings.size(0), embeddings.size(1), -1});
  X mask = bool_masked_pos.unsqueeze(-1).to(mask_tokens.dtype());
  X kept = embeddings.mul(X(aten("rsub", {Tensor(mask), 1.0})));
  return leave(std::move(kept).add(mask_tokens.mul(mask)), mask_tokens, mask);
}

nn::InputSpec masked_positions(I patches) {
  return {"bool_masked_pos", {nn::SizeExpression("batch"), nn::SizeExpression(std::to_string(patches))}, DType::boolean};
}

PixelDecoder::PixelDecoder(const Config& file, I features, I channels, I image, I patch)
    : Unary("Sequential"), file_(file), channels_(channels), image_(image), patch_(patch), stride_(file.size("encoder_stride")) {
  conv_ =
      &child<Convolution>("0", ConvolutionForm{.in = features, .out = checked_mul(checked_mul(stride_, stride_), channels), .kernel = 1});
}
X PixelDecoder::forward(X input) {
  input = (*conv_)(input);
  return aten("pixel_shuffle", {Tensor(input), stride_});
}

nn::Outcome PixelDecoder::reconstruct(const X& pixel_values, X sequence_output, X bool_masked_pos) {
  const I side = I(std::floor(std::sqrt(double(sequence_output.size(2)))));
  if (side * stride_ != pixel_values.size(2) && bool_masked_pos)
    throw file_.error("encoder_stride", "the decoder makes images of " + std::to_string(side * stride_) + " pixels from those of " +
                                            std::to_string(pixel_values.size(2)));
  sequence_output = sequence_output.reshape({sequence_output.size(0), sequence_output.size(1), side, side});
  X reconstructed_pixel_values = (*this)(sequence_output);
  X masked_im_loss, mask, reconstruction_loss;
  if (bool_masked_pos) {
    const I size = image_ / patch_;
    bool_masked_pos = bool_masked_pos.reshape({-1, size, size});
    mask = aten("repeat_interleave", {Tensor(bool_masked_pos), patch_, I{1}});
    mask = X(aten("repeat_interleave", {Tensor(std::move(mask)), patch_, I{2}})).unsqueeze(1).contiguous();
    reconstruction_loss = aten("l1_loss", {Tensor(pixel_values), Tensor(reconstructed_pixel_values), I{0}});
    X sum = aten("sum", {Tensor(reconstruction_loss.mul(mask))});
    masked_im_loss = std::move(sum).div(X(aten("sum", {Tensor(mask)})).add(1e-5)).div(Scalar(channels_));
  }
  Value output = model_output({masked_im_loss, reconstructed_pixel_values});
  return leave(nn::Outcome{std::move(output), masked_im_loss}, bool_masked_pos, sequence_output, mask, reconstruction_loss);
}

}  // namespace memest::hf
