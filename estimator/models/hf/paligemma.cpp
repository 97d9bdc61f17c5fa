// models/paligemma/modeling_paligemma.py (transformers 5.24): PaliGemma on gemma, PaliGemma 2 on gemma2.
#include "models/hf/composite.h"

namespace memest::hf {
namespace {

class PaliGemmaMultiModalProjector final : public Unary {
 public:
  PaliGemmaMultiModalProjector(I in, I out) : Unary("PaliGemmaMultiModalProjector"), linear(child<Linear>("linear", in, out)) {}

 protected:
  X forward(X image_features) override {
    X hidden_states = linear(image_features);
    return hidden_states;
  }

 private:
  Linear& linear;
};

class PaliGemmaModel final : public ImageTextModel {
 public:
  PaliGemmaModel(const Config& c, const Options& o) : ImageTextModel("PaliGemmaModel", o) {
    vision_tower_ = register_module("vision_tower", make_vision_tower(c.section("vision_config"), o));
    multi_modal_projector =
        &child<PaliGemmaMultiModalProjector>("multi_modal_projector", vision_tower_->shape.hidden, c.size("projection_dim"));
    text = text_decoder(c.section("text_config"), o);
    language_model_ = register_module("language_model", make_decoder_body(text));
    foreign_token_ = c.integer("image_token_index") >= text.config->vocab;
  }
  Images images() const override {
    const VisionTower::Shape& s = vision_tower_->shape;
    return {s.positions, s.channels, s.image};
  }
  std::vector<nn::InputSpec> image_inputs() const override {
    std::vector<nn::InputSpec> list = ImageTextModel::image_inputs();
    list.insert(list.begin(), {"token_type_ids", {nn::SizeExpression("batch"), nn::SizeExpression("seq")}, DType::int64});
    return list;
  }
  DecoderBody* generating_decoder() const override { return language_model_.get(); }
  ImageFeatures get_image_features(const Batch& batch) override {
    VisionOutput image_outputs = (*vision_tower_)(batch.pixel_values);
    image_outputs.pooler_output = (*multi_modal_projector)(image_outputs.last_hidden_state);
    return {image_outputs, {image_outputs.pooler_output}};
  }
  /// They are counted from one.
  X call_positions(X position_ids) const override { return position_ids.add(1); }
  EncodesImages::TokenTypes token_types() const override { return EncodesImages::TokenTypes::suffix; }
  bool makes_masks() const override { return true; }

 protected:
  Output forward(const Batch& batch) override {
    X special_image_mask, llm_input_ids = batch.input;
    if (foreign_token_) {
      special_image_mask = aten("eq", {Tensor(batch.input), I{0}});
      llm_input_ids = batch.input.clone();
      aten("masked_fill_", {Tensor(llm_input_ids), Tensor(special_image_mask), I{0}});
    }
    X inputs_embeds = language_model_->embed(llm_input_ids);
    X position_ids = batch.position_ids;
    if (!position_ids) position_ids = X(arange(inputs_embeds.size(1)).add(0)).unsqueeze(0).add(1);
    ImageFeatures image = image_features_of(batch);
    X image_features;
    if (image) {
      image_features = image.pooled[0].to(inputs_embeds.dtype());
      special_image_mask = placeholder_mask(batch.input, inputs_embeds, image_features);
      inputs_embeds = aten("masked_scatter", {Tensor(inputs_embeds), Tensor(special_image_mask), Tensor(image_features)});
    }
    MaskArguments mask_kwargs{text.config->options, inputs_embeds, batch.cache.get()};
    mask_kwargs.position_ids = position_ids;
    if (batch.token_type_ids && is_first_call(batch)) mask_kwargs.block_sequence_ids = prefix_block(batch.token_type_ids);
    DecoderMasks causal_mask;
    causal_mask.full = create_causal_mask(mask_kwargs);
    causal_mask.mapping = text.config->sliding_window.has_value();
    if (causal_mask.mapping) causal_mask.sliding = create_sliding_window_causal_mask(mask_kwargs, *text.config->sliding_window);
    auto [last_hidden_state, cache] = (*language_model_)(inputs_embeds, position_ids, batch.cache, causal_mask);
    Output output{last_hidden_state, cache, {}};
    if (image) image.collect(output.image_outputs);
    return output;
  }

 private:
  /// torch.where(token_type_ids == 0, 0, -1)
  static X prefix_block(const X& token_type_ids) {
    return aten("where", {Tensor(aten("eq", {Tensor(token_type_ids), I{0}})), I{0}, I{-1}});
  }

  VisionTowerPtr vision_tower_;
  PaliGemmaMultiModalProjector* multi_modal_projector;
  std::shared_ptr<DecoderBody> language_model_;
  bool foreign_token_;
};

NetworkPtr paligemma(const Config& config, const Options& o) {
  return make_image_text(config, o, {.prefix = "PaliGemma", .tied = config.boolean_or("tie_word_embeddings", true), .softcaps = true},
                         std::make_shared<PaliGemmaModel>(config, o));
}
const Family paligemma_family{{"paligemma"}, image_text_classes("PaliGemma", paligemma, false)};

}  // namespace
}  // namespace memest::hf
