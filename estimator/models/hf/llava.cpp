// models/llava/modeling_llava.py (transformers 5.24).
#include "models/hf/composite.h"

namespace memest::hf {
namespace {

/// LlavaMultiModalProjector and Mistral3's: linear_2(act(linear_1(x))).
class LlavaMultiModalProjector final : public Unary {
 public:
  LlavaMultiModalProjector(const Config& c, I in, I hidden)
      : Unary("LlavaMultiModalProjector"),
        linear_1(child<Linear>("linear_1", in, hidden, c.boolean_or("multimodal_projector_bias", true))),
        act(child<Activation>("act", c.text("projector_hidden_act"))),
        linear_2(child<Linear>("linear_2", hidden, hidden, c.boolean_or("multimodal_projector_bias", true))) {}

 protected:
  X forward(X image_features) override {
    X hidden_states = linear_1(image_features);
    hidden_states = act(hidden_states);
    hidden_states = linear_2(hidden_states);
    return hidden_states;
  }

 private:
  Linear& linear_1;
  Activation& act;
  Linear& linear_2;
};

class LlavaModel final : public ImageTextModel {
 public:
  LlavaModel(const Config& c, const Options& o) : ImageTextModel("LlavaModel", o), one_layer_(!c.find("vision_feature_layer")->list()) {
    vision_tower_ = register_module("vision_tower", make_vision_tower(c.section("vision_config"), o));
    text = text_decoder(c.section("text_config"), o);
    const I states = vision_tower_->shape.layers + 1;
    for (I layer : one_layer_ ? std::vector<I>{c.integer("vision_feature_layer")} : c.integers("vision_feature_layer")) {
      if (layer < -states || layer >= states)
        throw c.error("vision_feature_layer",
                      "the vision model has " + std::to_string(states) + " hidden states, found " + std::to_string(layer));
      feature_layers_.push_back((layer + states) % states);
    }
    const std::string strategy = c.text("vision_feature_select_strategy");
    if (strategy != "default" && strategy != "full")
      throw c.error("vision_feature_select_strategy", "expected 'default' or 'full', found '" + strategy.substr(0, 60) + "'");
    crops_ = strategy == "default";
    multi_modal_projector = &child<LlavaMultiModalProjector>(
        "multi_modal_projector", c, checked_mul(vision_tower_->shape.hidden, I(feature_layers_.size())), text.config->hidden);
    language_model_ = register_module("language_model", make_decoder_body(text));
  }
  Images images() const override {
    const VisionTower::Shape& s = vision_tower_->shape;
    return {s.positions - (crops_ ? 1 : 0), s.channels, s.image};
  }

  DecoderBody* generating_decoder() const override { return language_model_.get(); }
  /// The features of each image take the place of the vision model's pooler_output.
  ImageFeatures get_image_features(const Batch& batch) override {
    VisionOutput image_outputs = (*vision_tower_)(batch.pixel_values, feature_layers_);
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
    X image_features = (*multi_modal_projector)(selected_image_feature);
    std::vector<X> features = image_features.unbind(0);
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
  bool one_layer_, crops_;
  VisionTowerPtr vision_tower_;
  std::vector<I> feature_layers_;
  LlavaMultiModalProjector* multi_modal_projector;
  std::shared_ptr<DecoderBody> language_model_;
};

NetworkPtr llava(const Config& config, const Options& o) {
  const bool tied =
      config.boolean_or("tie_word_embeddings", false) || config.section("text_config").boolean_or("tie_word_embeddings", true);
  return make_image_text(config, o, {.prefix = "Llava", .tied = tied}, std::make_shared<LlavaModel>(config, o));
}
const Family llava_family{{"llava"}, image_text_classes("Llava", llava, false)};

}  // namespace
}  // namespace memest::hf
