// What CLIP and SigLIP share (models/clip/modeling_clip.py, models/siglip/modeling_siglip.py): attention, layers and encoder, the
// embeddings of text and the heads over the vision model.
#pragma once
#include "models/hf/composite.h"

namespace memest::hf {

/// The fields that their text and vision configurations have in common.
struct ClipConfig {
  ClipConfig(const Config& file, const Options& options);
  Config file;
  Options options;
  I hidden, intermediate, layers, heads;
  std::string act;
  double attention_dropout;
};
struct ClipVisionConfig : ClipConfig {
  ClipVisionConfig(const Config& file, const Options& options);
  I channels, image, patch;
  I patches() const { return (image / patch) * (image / patch); }
};

/// nn.Conv2d of the patches: the input embeddings of a vision model.
class PatchConvolution final : public Module<PatchConvolution>, public nn::InputEmbedding {
 public:
  PatchConvolution(I channels, I width, I patch, bool bias) : Module("Conv2d"), patch_(patch) {
    new_parameter("weight", {width, channels, patch, patch});
    new_parameter("bias", {width}, bias);
  }
  X forward(const X& input) {
    return hooked(ops::conv2d(input, parameter(0), parameter(1), Dims{patch_, patch_}, Dims{0, 0}, Dims{1, 1}, 1));
  }
  DType dtype() const { return parameter(0).dtype(); }

 private:
  I patch_;
};

/// CLIPMLP and its copies: fc2(act(fc1(x))), the activation registered first.
UnaryPtr make_clip_mlp(std::string type, I hidden, I intermediate, const std::string& act);

class ClipEncoder final : public Base {
 public:
  struct Form {
    std::string prefix;        ///< of the class names
    bool norms_first = false;  ///< a layer's norms are registered before its attention and its MLP (SigLIP)
    bool causal = false;       ///< the attention is called with is_causal
    bool views_last = false;   ///< the three projections are made before their views (CLIP)
  };
  ClipEncoder(const ClipConfig& c, const Form& form);
  /// Appends the hidden states whose indices `selected` has to `hidden_states`.
  X operator()(X inputs_embeds, X attention_mask, const std::vector<I>& selected, std::vector<X>& hidden_states);
  X operator()(X inputs_embeds, X attention_mask) {
    std::vector<X> none;
    return (*this)(std::move(inputs_embeds), std::move(attention_mask), {}, none);
  }

 private:
  std::vector<DecoderLayerPtr> layers_;
};

/// CLIPTextEmbeddings and SiglipTextEmbeddings.
UnaryPtr make_clip_text_embeddings(const std::string& prefix, const ClipConfig& c);
/// The embedding of patches, with a class token before them where `class_token`; the convolution has a bias where it has none.
UnaryPtr make_clip_vision_embeddings(const std::string& prefix, const ClipVisionConfig& c, bool class_token);

/// CLIPModel and the like: the size of a text and of an image.
class ContrastiveNetwork : public Network {
 public:
  ContrastiveNetwork(std::string type, const Options& options, I positions, const ClipVisionConfig& vision)
      : Network(std::move(type), options), positions_(positions), channels_(vision.channels), image_(vision.image) {}
  std::vector<nn::InputSpec> inputs() const override;
  std::vector<std::pair<std::string, I>> default_sizes() const override { return {{"seq", positions_}, {"image", image_}}; }

 private:
  I positions_, channels_, image_;
};
/// A text model alone.
class ClipTextNetwork : public Network {
 public:
  ClipTextNetwork(std::string type, const Options& options, I positions) : Network(std::move(type), options), positions_(positions) {}
  std::vector<std::pair<std::string, I>> default_sizes() const override { return {{"seq", positions_}}; }

 private:
  I positions_;
};
/// A vision model under a head, or alone.
class ClipVisionNetwork : public Network {
 public:
  ClipVisionNetwork(std::string type, const Options& options, const ClipVisionConfig& vision)
      : Network(std::move(type), options), channels_(vision.channels), image_(vision.image) {}
  std::vector<nn::InputSpec> inputs() const override;
  std::vector<std::pair<std::string, I>> default_sizes() const override { return {{"image", image_}}; }

 private:
  I channels_, image_;
};
/// The mean of the patches' last hidden states (from the second on where there is a class token), and a classifier.
NetworkPtr make_clip_image_classifier(const std::string& prefix, const Config& config, const Options& options, const ClipVisionConfig& c,
                                      VisionTowerPtr vision_model, bool class_token);

/// A part's output in the output object: ClipTextOutput, or VisionOutput.
struct ClipTextOutput {
  X last_hidden_state, pooler_output;
};
/// The output object of a contrastive model: the tensors of its own, then those of the two parts.
Value contrastive_output(std::initializer_list<X> own, const ClipTextOutput& text, const VisionOutput& vision);

}  // namespace memest::hf
