// Models of images and text: a vision tower, a decoder of text that takes its features in place of image tokens, and the inputs of both.
#pragma once
#include "models/hf/decoder.h"
#include "models/hf/multimodal.h"
#include "nn/embedded_model.h"

namespace memest::hf {

/// AutoModel.from_config(text_config): the parts of a decoder of that section's model_type.
DecoderParts text_decoder(const Config& section, const Options& options);

/// The argument of that name beside the usual ones; undefined where the call has none.
X argument(const Batch& batch, std::string_view name);

/// The tensor [images, 2] of a call, and what its values would say: the pixels of each image.
struct ImageSizes {
  X tensor;
  I height = 0, width = 0;
};

/// BaseModelOutputWithPooling of a vision model.
struct VisionOutput {
  X last_hidden_state, pooler_output;
  std::vector<X> hidden_states = {};  ///< those that were asked for, in the order of the layers
  void collect(Values& into) const;
};

/// AutoModel.from_config(vision_config).
class VisionTower : public Base, public nn::EmbeddedModel {
 public:
  struct Shape {
    I positions, hidden, layers, channels, image;  ///< of last_hidden_state; its layers; of pixel_values
    I patch = 0;                                   ///< of a tower that takes images of any size, packed into one sequence
  };
  VisionTower(std::string type, Shape s) : Base(std::move(type)), shape(s) {}
  const Shape shape;
  nn::InputEmbedding* input_embedding() override { return embedding_at(*this, "embeddings.patch_embedding"); }
  /// `selected`: which hidden states are kept; 0 is what the first layer gets.
  VisionOutput operator()(X pixel_values, const std::vector<I>& selected = {}, ImageSizes sizes = {}) {
    Entered scope(*this);
    sizes_ = std::move(sizes);
    VisionOutput output = forward(pixel_values, selected);
    sizes_ = {};
    pixel_values.reset();
    return output;
  }

 protected:
  virtual VisionOutput forward(X pixel_values, const std::vector<I>& selected) = 0;
  using Base::forward;
  const ImageSizes& sizes() const { return sizes_; }

 private:
  ImageSizes sizes_;
};
using VisionTowerPtr = std::shared_ptr<VisionTower>;

/// A vision model that composites take by its model_type; it registers itself.
class VisionModel {
 public:
  VisionModel(const char* model_type, VisionTowerPtr (*make)(const Config& config, const Options& options));
  const char* const model_type;
  VisionTowerPtr (*const make)(const Config& config, const Options& options);
};
VisionTowerPtr make_vision_tower(const Config& section, const Options& options);

/// Squares of 1 / ratio patches a side become one, their channels joined: [batch, side, side, channels] of llama4 and internvl.
X pixel_shuffle(X vision_features, double ratio);

/// get_placeholder_mask: which of the input_ids stand for images, [batch, seq, 1], and the check that they are as many as the features.
X placeholder_mask(const X& input_ids, const X& inputs_embeds, const X& image_features);

/// The model under the heads: a vision tower, a projector, and a decoder.
class ImageTextModel : public Base, public nn::EmbeddedModel {
 public:
  /// `tokens`: of one image in the sequence; `channels`, `image`: of pixel_values.
  struct Images {
    I tokens, channels, image;
  };
  struct Output {
    X last_hidden_state;
    CachePtr cache;
    Values image_outputs;
  };
  /// What get_image_features returns: its pooler_output may be one tensor for each image.
  struct ImageFeatures {
    VisionOutput outputs;
    std::vector<X> pooled;
    explicit operator bool() const { return bool(outputs.last_hidden_state); }
    void collect(Values& into) const;
  };
  ImageTextModel(std::string type, const Options& options) : Base(std::move(type)), options_(options) {}
  Output operator()(const Batch& batch) {
    Entered scope(*this);
    return forward(batch);
  }
  nn::InputEmbedding* input_embedding() override { return embedding_at(*this, "language_model." + std::string(text.form->embedding_name)); }
  virtual Images images() const = 0;
  /// Null where memest does not generate with the model; else what its cache and its images come from.
  virtual DecoderBody* generating_decoder() const { return nullptr; }
  virtual ImageFeatures get_image_features(const Batch&) { return {}; }
  virtual X call_positions(X position_ids) const { return position_ids; }  ///< of generate()'s
  virtual EncodesImages::TokenTypes token_types() const { return EncodesImages::TokenTypes::prompt; }
  virtual bool makes_masks() const { return false; }
  ImageFeatures mm_encoder_outputs;  ///< of generate()
  /// The inputs that come with images, after input_ids: pixel_values unless there are others.
  virtual std::vector<nn::InputSpec> image_inputs() const;
  DecoderParts text;  ///< of the language model

 protected:
  virtual Output forward(const Batch& batch) = 0;
  using Base::forward;
  /// Whether a call of generate() takes the prompt.
  static bool is_first_call(const Batch& batch) { return !batch.cache || batch.cache->seen(batch.cache->first_layer(false)) == 0; }
  /// Those that generate() encoded before, or the batch's own.
  ImageFeatures image_features_of(const Batch& batch) {
    if (mm_encoder_outputs) return is_first_call(batch) ? mm_encoder_outputs : ImageFeatures();
    return batch.pixel_values ? get_image_features(batch) : ImageFeatures();
  }
  /// The forward of LLaVA's kin: the images' features, which `joined` makes one tensor, take the places of their tokens.
  Output run_merged(DecoderBody& language_model, const Batch& batch, X (*joined)(const ImageFeatures& image));
  const Options options_;
};
using ImageTextModelPtr = std::shared_ptr<ImageTextModel>;

/// The sizes of such a model: room for its images and 512 tokens of text.
std::vector<std::pair<std::string, I>> image_text_sizes(const Options& options, const ImageTextModel::Images& images);
/// Throws Error where a sequence is shorter than its images.
void check_image_room(const X& input_ids, const Options& options, const ImageTextModel::Images& images);

/// PREFIXForConditionalGeneration, PREFIXForSequenceClassification or PREFIXModel. `tied`: lm_head's weight is the embedding's;
/// `softcaps`: the logits are those of the text model's own head.
struct ImageTextForm {
  std::string prefix;
  bool tied = true, softcaps = false;
  const char* text_name = "language_model";  ///< of the text model in PREFIXModel
};
NetworkPtr make_image_text(const Config& config, const Options& options, const ImageTextForm& form, ImageTextModelPtr model);
/// Its classes. `causal`: AutoModelForCausalLM knows the first, too.
std::vector<TaskClass> image_text_classes(const std::string& prefix, NetworkPtr (*make)(const Config& config, const Options& options),
                                          bool causal);

/// The fields image_size and patch_size, a number or two that are alike.
I square_size(const Config& config, const std::string& key);

}  // namespace memest::hf
