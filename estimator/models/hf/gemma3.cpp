// models/gemma3/modeling_gemma3.py (transformers 5.24), the model of images and text; its text model stands in gemma.cpp.
#include <cmath>

#include "models/hf/composite.h"

namespace memest::hf {
namespace {

class Gemma3MultiModalProjector final : public Unary {
 public:
  Gemma3MultiModalProjector(const Config& c, const VisionTower::Shape& vision, I hidden)
      : Unary("Gemma3MultiModalProjector"), patches_per_image_(vision.image / square_size(c.section("vision_config"), "patch_size")) {
    const I tokens = c.size("mm_tokens_per_image");
    new_parameter("mm_input_projection_weight", {vision.hidden, hidden});
    mm_soft_emb_norm_ = register_module("mm_soft_emb_norm", make_norm(Norm::gemma, vision.hidden, "Gemma3RMSNorm"));
    kernel_size_ = patches_per_image_ / I(std::sqrt(double(tokens)));
    if (kernel_size_ == 0)
      throw c.error("mm_tokens_per_image", "expected at most the " + std::to_string(patches_per_image_) + "x" +
                                               std::to_string(patches_per_image_) + " patches of an image, found " +
                                               std::to_string(tokens));
  }
  I tokens() const {
    const I side = patches_per_image_ / kernel_size_;
    return side * side;
  }

 protected:
  X forward(X vision_outputs) override {
    const I batch_size = vision_outputs.size(0), hidden_size = vision_outputs.size(2);
    X reshaped_vision_outputs = vision_outputs.transpose(1, 2);
    reshaped_vision_outputs = reshaped_vision_outputs.reshape({batch_size, hidden_size, patches_per_image_, patches_per_image_});
    reshaped_vision_outputs = reshaped_vision_outputs.contiguous();
    const Dims kernel{kernel_size_, kernel_size_};
    X pooled_vision_outputs = aten("avg_pool2d", {Tensor(reshaped_vision_outputs), list_of(kernel), list_of(kernel)});
    pooled_vision_outputs = pooled_vision_outputs.flatten(2);
    pooled_vision_outputs = pooled_vision_outputs.transpose(1, 2);
    X normed_vision_outputs = (*mm_soft_emb_norm_)(pooled_vision_outputs);
    X projected_vision_outputs = normed_vision_outputs.matmul(X(parameter(0)));
    X result = projected_vision_outputs.to(vision_outputs.dtype());
    return leave(std::move(result), reshaped_vision_outputs, pooled_vision_outputs, normed_vision_outputs, projected_vision_outputs);
  }

 private:
  I patches_per_image_, kernel_size_;
  UnaryPtr mm_soft_emb_norm_;
};

class Gemma3Model final : public ImageTextModel {
 public:
  Gemma3Model(const Config& c, const Options& o) : ImageTextModel("Gemma3Model", o) {
    vision_tower_ = register_module("vision_tower", make_vision_tower(c.section("vision_config"), o));
    text = text_decoder(c.section("text_config"), o);
    multi_modal_projector = &child<Gemma3MultiModalProjector>("multi_modal_projector", c, vision_tower_->shape, text.config->hidden);
    language_model_ = register_module("language_model", make_decoder_body(text));
    foreign_token_ = c.integer("image_token_index") >= text.config->vocab;
  }
  Images images() const override { return {multi_modal_projector->tokens(), vision_tower_->shape.channels, vision_tower_->shape.image}; }
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
    ImageFeatures image = image_features_of(batch);
    X image_features;
    if (image) {
      image_features = image.pooled[0].to(inputs_embeds.dtype());
      special_image_mask = placeholder_mask(batch.input, inputs_embeds, image_features);
      inputs_embeds = aten("masked_scatter", {Tensor(inputs_embeds), Tensor(special_image_mask), Tensor(image_features)});
    }
    MaskArguments mask_kwargs{text.config->options, inputs_embeds, batch.cache.get(), batch.position_ids};
    if (batch.token_type_ids) mask_kwargs.block_sequence_ids = block_sequence_ids(batch.token_type_ids);
    const DecoderMasks causal_mask_mapping = make_masks(mask_kwargs);
    auto [last_hidden_state, cache] = (*language_model_)(inputs_embeds, batch.position_ids, batch.cache, causal_mask_mapping);
    Output output{last_hidden_state, cache, {}};
    if (image) image.collect(output.image_outputs);
    return output;
  }

 private:
  /// get_block_sequence_ids_for_mask
  static X block_sequence_ids(const X& token_type_ids) {
    X is_image = aten("eq", {Tensor(token_type_ids), I{1}});
    X is_previous_image = aten("constant_pad_nd", {Tensor(is_image), list_of(Dims{1, 0}), I{0}});
    is_previous_image = is_previous_image.whole_slices(1).slice(1, std::nullopt, -1);
    X new_image_start = aten("bitwise_and", {Tensor(is_image), Tensor(aten("bitwise_not", {Tensor(is_previous_image)}))});
    X group_ids = aten("cumsum", {Tensor(new_image_start.to(DType::int32)), I{1}});
    group_ids = std::move(group_ids).sub(1);
    X block_sequence_ids = where(is_image, group_ids, Scalar(I{-1}));
    return leave(std::move(block_sequence_ids), is_image, is_previous_image, new_image_start, group_ids);
  }
  /// create_masks_for_vision_model, or create_masks_for_generate: a mask for each kind that layers have.
  DecoderMasks make_masks(const MaskArguments& a) const {
    const DecoderConfig& c = *text.config;
    const I window = c.file.integer("sliding_window");
    DecoderMasks masks;
    if (a.block_sequence_ids) {
      masks.full = create_causal_mask(a);
      masks.sliding = create_sliding_window_block_mask(a, window);
      return masks;
    }
    bool any_full = false, any_sliding = false;
    for (I i = 0; i < c.layers; ++i) (c.sliding(i) ? any_sliding : any_full) = true;
    if (any_sliding) masks.sliding = create_sliding_window_causal_mask(a, window);
    if (any_full) masks.full = create_causal_mask(a);
    return masks;
  }

  VisionTowerPtr vision_tower_;
  Gemma3MultiModalProjector* multi_modal_projector;
  std::shared_ptr<DecoderBody> language_model_;
  bool foreign_token_;
};

NetworkPtr gemma3(const Config& config, const Options& o) {
  return make_image_text(config, o, {.prefix = "Gemma3", .tied = config.boolean_or("tie_word_embeddings", true)},
                         std::make_shared<Gemma3Model>(config, o));
}
const Family gemma3_family{{"gemma3"},
                           {{Task::image_text_to_text, "Gemma3ForConditionalGeneration", gemma3},
                            {Task::causal_lm, "Gemma3ForConditionalGeneration", gemma3},
                            {Task::seq_cls, "Gemma3ForSequenceClassification", gemma3},
                            {Task::base, "Gemma3Model", gemma3}}};

}  // namespace
}  // namespace memest::hf
