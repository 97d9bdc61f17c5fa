// models/llava/modeling_llava.py (transformers 5.24).
#include "models/hf/llava.h"

#include <algorithm>

namespace memest::hf {
namespace {

class LlavaMultiModalProjector final : public LlavaProjector {
 public:
  LlavaMultiModalProjector(const Config& c, I in, I hidden)
      : LlavaProjector("LlavaMultiModalProjector"), projection_(*this, c, in, hidden) {}
  X operator()(X image_features, const ImageSizes&) override {
    Entered scope(*this);
    X hidden_states = projection_(image_features);
    image_features.reset();
    return hidden_states;
  }

 private:
  LlavaProjection projection_;
};

class LlavaModel final : public ImageTextModel {
 public:
  LlavaModel(const Config& c, const Options& o, const LlavaForm& form)
      : ImageTextModel(form.type, o), form_(form), one_layer_(!c.find("vision_feature_layer")->list()) {
    vision_tower_ = register_module("vision_tower", make_vision_tower(c.section("vision_config"), o));
    text = text_decoder(c.section("text_config"), o);
    const I states = vision_tower_->shape.layers + 1;
    for (I layer : one_layer_ ? std::vector<I>{c.integer("vision_feature_layer")} : c.integers("vision_feature_layer")) {
      if (layer < -states || layer >= states)
        throw c.error("vision_feature_layer",
                      "the vision model has " + std::to_string(states) + " hidden states, found " + std::to_string(layer));
      feature_layers_.push_back((layer + states) % states);
    }
    const VisionTower::Shape& shape = vision_tower_->shape;
    const std::string strategy = c.text_or("vision_feature_select_strategy", "full");
    if (strategy != "default" && strategy != "full")
      throw c.error("vision_feature_select_strategy", "expected 'default' or 'full', found '" + strategy.substr(0, 60) + "'");
    crops_ = strategy == "default";
    if (shape.patch > 0 && crops_)
      throw c.error("vision_feature_select_strategy", "expected 'full' over a vision model without a class token, found 'default'");
    height_ = shape.patch > 0 ? c.integer_or("image_height", shape.image) : shape.image;
    width_ = shape.patch > 0 ? c.integer_or("image_width", shape.image) : shape.image;
    check_sides();
    multi_modal_projector = register_module(
        "multi_modal_projector", form.make_projector(c, checked_mul(shape.hidden, I(feature_layers_.size())), text.config->hidden));
    language_model_ = register_module("language_model", make_decoder_body(text));
  }
  Images images() const override {
    const VisionTower::Shape& s = vision_tower_->shape;
    if (s.patch == 0) return {s.positions - (crops_ ? 1 : 0), s.channels, s.image};
    const I rows = height_ / side(), columns = width_ / side();  // processing_pixtral.py: a token ends each row
    return {checked_mul(rows, columns + 1), s.channels, s.image};
  }
  std::vector<nn::InputSpec> image_inputs() const override {
    if (vision_tower_->shape.patch == 0) return ImageTextModel::image_inputs();
    const nn::SizeExpression images("batch * images"), channels(std::to_string(vision_tower_->shape.channels));
    return {{"pixel_values",
             {images, channels, nn::SizeExpression(std::to_string(height_)), nn::SizeExpression(std::to_string(width_))},
             DType::float32},
            {"image_sizes", {images, nn::SizeExpression("2")}, DType::int64}};
  }

  DecoderBody* generating_decoder() const override { return language_model_.get(); }
  /// The features of each image take the place of the vision model's pooler_output.
  ImageFeatures get_image_features(const Batch& batch) override {
    const X image_sizes = argument(batch, "image_sizes");
    const ImageSizes sizes{image_sizes, height_, width_};
    VisionOutput image_outputs = (*vision_tower_)(batch.pixel_values, feature_layers_, sizes);
    auto cropped = [this](const X& x) { return crops_ ? x.whole_slices(1).slice(1, 1, std::nullopt) : x; };
    X selected_image_feature;
    if (one_layer_) {
      selected_image_feature = cropped(image_outputs.hidden_states[0]);
    } else {
      std::vector<X> hs_pool;
      for (I layer : feature_layers_) {
        std::size_t kept = 0;
        for (I other : feature_layers_) kept += other < layer;
        hs_pool.push_back(cropped(image_outputs.hidden_states[kept]));
      }
      selected_image_feature = cat(std::move(hs_pool), -1);
    }
    X image_features = (*multi_modal_projector)(form_.takes_rows ? selected_image_feature.squeeze(0) : selected_image_feature, sizes);
    std::vector<X> features = image_sizes ? split_by_sizes(image_features, image_sizes) : image_features.unbind(0);
    image_outputs.pooler_output.reset();
    return {image_outputs, features};
  }

 protected:
  Output forward(const Batch& batch) override {
    X inputs_embeds = language_model_->embed(batch.input);
    ImageFeatures image = image_features_of(batch);
    X image_features, special_image_mask;
    if (image) {
      image_features = cat(image.pooled, 0).to(inputs_embeds.dtype());
      special_image_mask = placeholder_mask(batch.input, inputs_embeds, image_features);
      inputs_embeds = aten("masked_scatter", {Tensor(inputs_embeds), Tensor(special_image_mask), Tensor(image_features)});
    }
    auto [last_hidden_state, cache] = (*language_model_)(inputs_embeds, batch.position_ids, batch.cache);
    Output output{last_hidden_state, cache, {}};
    if (image) image.collect(output.image_outputs);
    inputs_embeds.reset();
    image_features.reset();
    special_image_mask.reset();
    return output;
  }

 private:
  std::vector<X> split_by_sizes(const X& image_features, const X& image_sizes) const {
    {  // split_sizes
      X tokens = aten("floor_divide", {Tensor(image_sizes), side()});
      X counts = aten("prod", {Tensor(tokens), I{-1}});
      tokens.reset();
    }
    return image_features.squeeze(0).split(Dims::filled(int(image_sizes.size(0)), height_ / side() * (width_ / side())), 0);
  }
  /// Pixels of a token's side.
  I side() const { return checked_mul(vision_tower_->shape.patch, form_.merge); }
  void check_sides() const {
    if (vision_tower_->shape.patch == 0 || (height_ % side() == 0 && width_ % side() == 0)) return;
    auto rounded = [this](I pixels) { return std::to_string(std::max<I>(1, (pixels + side() - 1) / side()) * side()); };
    throw Error("--image " + std::to_string(height_) + "x" + std::to_string(width_) + ": the sides of an image are multiples of " +
                    std::to_string(side()) + " pixels here",
                "the processor resizes it: --image " + rounded(height_) + "x" + rounded(width_));
  }

  LlavaForm form_;
  I height_ = 0, width_ = 0;
  bool one_layer_, crops_;
  VisionTowerPtr vision_tower_;
  std::vector<I> feature_layers_;
  std::shared_ptr<LlavaProjector> multi_modal_projector;
  std::shared_ptr<DecoderBody> language_model_;
};

NetworkPtr llava(const Config& config, const Options& o) {
  const bool tied =
      config.boolean_or("tie_word_embeddings", false) || config.section("text_config").boolean_or("tie_word_embeddings", true);
  LlavaForm form;
  form.make_projector = [](const Config& c, I in, I hidden) -> std::shared_ptr<LlavaProjector> {
    return std::make_shared<LlavaMultiModalProjector>(c, in, hidden);
  };
  return make_image_text(config, o, {.prefix = "Llava", .tied = tied}, make_llava_model(config, o, form));
}
const Family llava_family{{"llava"}, image_text_classes("Llava", llava, false)};

}  // namespace

LlavaProjection::LlavaProjection(Base& owner, const Config& c, I in, I hidden) {
  const bool bias = c.boolean_or("multimodal_projector_bias", true);
  linear_1 = owner.register_module("linear_1", std::make_shared<Linear>(in, hidden, bias));
  act = owner.register_module("act", std::make_shared<Activation>(c.text("projector_hidden_act")));
  linear_2 = owner.register_module("linear_2", std::make_shared<Linear>(hidden, hidden, bias));
}
X LlavaProjection::operator()(X image_features) {
  X hidden_states = (*linear_1)(image_features);
  image_features.reset();
  hidden_states = (*act)(hidden_states);
  hidden_states = (*linear_2)(hidden_states);
  return hidden_states;
}

ImageTextModelPtr make_llava_model(const Config& config, const Options& options, const LlavaForm& form) {
  return std::make_shared<LlavaModel>(config, options, form);
}

}  // namespace memest::hf
