// models/gemma4/modeling_gemma4.py (transformers 5.24), the model of text, images and sound called with text alone: of the towers only the
// parameters count. Its text model stands in gemma4_text.cpp.
#include "models/hf/gemma4.h"

#include "models/hf/composite.h"
#include "models/hf/weights.h"

namespace memest::hf {
namespace {

/// Gemma4ClippableLinear.
void add_linear(Weights& owner, const std::string& name, const Config& c, I in, I out) {
  Weights& module = owner.part(name, "Gemma4ClippableLinear");
  module.linear("linear", in, out, false);
  if (!c.boolean_or("use_clipped_linears", false)) return;
  for (const char* bound : {"input_min", "input_max", "output_min", "output_max"}) module.new_buffer(bound, {}, runtime().default_dtype);
}
void add_norm(Weights& owner, const std::string& name, I width) { owner.part(name, "Gemma4RMSNorm").new_parameter("weight", {width}); }

void add_vision_tower(Weights& tower, const Config& c) {
  const I hidden = c.size("hidden_size"), intermediate = c.size("intermediate_size"), head_dim = c.size("head_dim"),
          heads = c.size("num_attention_heads"), kv_heads = c.size_or("num_key_value_heads", heads), patch = square_size(c, "patch_size");
  Weights& embedder = tower.part("patch_embedder", "Gemma4VisionPatchEmbedder");
  embedder.linear("input_proj", checked_mul(3, checked_mul(patch, patch)), hidden, false);
  embedder.new_parameter("position_embedding_table", {2, c.size("position_embedding_size"), hidden});
  Weights& encoder = tower.part("encoder", "Gemma4VisionEncoder");
  Weights& rotary = encoder.part("rotary_emb", "Gemma4VisionRotaryEmbedding");
  for (const char* name : {"inv_freq", "original_inv_freq"}) rotary.new_buffer(name, {head_dim / 4}, DType::float32);
  Weights& layers = encoder.part("layers", "ModuleList");
  for (I i = 0; i < layer_count(c); ++i) {
    Weights& layer = layers.part(std::to_string(i), "Gemma4VisionEncoderLayer");
    Weights& attention = layer.part("self_attn", "Gemma4VisionAttention");
    add_linear(attention, "q_proj", c, hidden, checked_mul(heads, head_dim));
    add_linear(attention, "k_proj", c, hidden, checked_mul(kv_heads, head_dim));
    add_linear(attention, "v_proj", c, hidden, checked_mul(kv_heads, head_dim));
    add_linear(attention, "o_proj", c, checked_mul(heads, head_dim), hidden);
    add_norm(attention, "q_norm", head_dim);
    add_norm(attention, "k_norm", head_dim);
    Weights& mlp = layer.part("mlp", "Gemma4VisionMLP");
    add_linear(mlp, "gate_proj", c, hidden, intermediate);
    add_linear(mlp, "up_proj", c, hidden, intermediate);
    add_linear(mlp, "down_proj", c, intermediate, hidden);
    for (const char* name : {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"})
      add_norm(layer, name, hidden);
  }
  for (const char* name : {"std_bias", "std_scale"})
    if (c.boolean_or("standardize", false)) tower.new_buffer(name, {hidden}, runtime().default_dtype);
}

void add_feed_forward(Weights& layer, const std::string& name, const Config& c, I hidden) {
  Weights& block = layer.part(name, "Gemma4AudioFeedForward");
  add_linear(block, "ffw_layer_1", c, hidden, checked_mul(4, hidden));
  add_linear(block, "ffw_layer_2", c, checked_mul(4, hidden), hidden);
  add_norm(block, "pre_layer_norm", hidden);
  add_norm(block, "post_layer_norm", hidden);
}

void add_audio_tower(Weights& tower, const Config& c) {
  const I hidden = c.size("hidden_size"), heads = c.size("num_attention_heads");
  const std::vector<I> channels = c.integers("subsampling_conv_channels");
  if (channels.size() != 2 || channels[0] < 4 || channels[1] < 1)
    throw c.error("subsampling_conv_channels", "expected two numbers of channels");
  Weights& subsample = tower.part("subsample_conv_projection", "Gemma4AudioSubSampleConvProjection");
  for (std::size_t i = 0; i < 2; ++i) {
    Weights& layer = subsample.part("layer" + std::to_string(i), "Gemma4AudioSubSampleConvProjectionLayer");
    layer.conv("conv", i == 0 ? 1 : channels[0], channels[i], 3, false);
    layer.part("norm", "LayerNorm").new_parameter("weight", {channels[i]});
  }
  subsample.linear("input_proj_linear", checked_mul(channels[0] / 4, channels[1]), hidden, false);
  tower.part("rel_pos_enc", "Gemma4AudioRelPositionalEncoding").new_buffer("inv_timescales", {1, 1, hidden / 2}, runtime().default_dtype);
  Weights& layers = tower.part("layers", "ModuleList");
  for (I i = 0; i < layer_count(c); ++i) {
    Weights& layer = layers.part(std::to_string(i), "Gemma4AudioLayer");
    add_feed_forward(layer, "feed_forward1", c, hidden);
    add_feed_forward(layer, "feed_forward2", c, hidden);
    Weights& attention = layer.part("self_attn", "Gemma4AudioAttention");
    for (const char* name : {"q_proj", "k_proj", "v_proj"}) add_linear(attention, name, c, hidden, hidden / heads * heads);
    add_linear(attention, "post", c, hidden, hidden);
    attention.linear("relative_k_proj", hidden, hidden / heads * heads, false);
    attention.new_parameter("per_dim_scale", {hidden / heads});
    attention.new_buffer("softcap", {}, runtime().default_dtype);
    Weights& conv = layer.part("lconv1d", "Gemma4AudioLightConv1d");
    add_linear(conv, "linear_start", c, hidden, checked_mul(2, hidden));
    add_linear(conv, "linear_end", c, hidden, hidden);
    conv.part("depthwise_conv1d", "Gemma4AudioCausalConv1d").new_parameter("weight", {hidden, 1, c.size("conv_kernel_size")});
    add_norm(conv, "pre_layer_norm", hidden);
    add_norm(conv, "conv_norm", hidden);
    for (const char* name : {"norm_pre_attn", "norm_post_attn", "norm_out"}) add_norm(layer, name, hidden);
  }
  tower.linear("output_proj", hidden, c.size("output_proj_dims"));
}

class Gemma4Model final : public ImageTextModel {
 public:
  Gemma4Model(const Config& c, const Options& o) : ImageTextModel("Gemma4Model", o) {
    const auto vision = c.section_if("vision_config"), audio = c.section_if("audio_config");
    if (vision) add_vision_tower(child<Weights>("vision_tower", "Gemma4VisionModel"), *vision);
    text = text_decoder(c.section("text_config"), o);
    language_model_ = std::dynamic_pointer_cast<Gemma4Text>(register_module("language_model", make_decoder_body(text)));
    if (!language_model_) throw c.error("text_config", "memest builds this model on gemma4_text only");
    if (audio) add_audio_tower(child<Weights>("audio_tower", "Gemma4AudioModel"), *audio);
    auto embedder = [&](const char* name, I width) {
      child<Weights>(name, "Gemma4MultimodalEmbedder").linear("embedding_projection", width, text.config->hidden, false);
    };
    if (vision) embedder("embed_vision", vision->size("hidden_size"));
    if (audio) embedder("embed_audio", audio->size_or("output_proj_dims", audio->size("hidden_size")));
  }
  Images images() const override { return {0, 3, 1}; }

 protected:
  Output forward(const Batch& batch) override {
    if (options_.images > 0) throw Error("memest runs Gemma 4 with text alone", "leave out --images");
    auto token_mask = [&] { return aten("eq", {Tensor(batch.input), I{0}}); };
    X image_mask = token_mask(), video_mask = token_mask(), audio_mask = token_mask();
    X multimodal_mask = aten("bitwise_or", {Tensor(aten("bitwise_or", {Tensor(image_mask), Tensor(video_mask)})), Tensor(audio_mask)});
    X llm_input_ids = batch.input.clone();
    llm_input_ids = where(multimodal_mask, Scalar(I{0}), llm_input_ids);
    X inputs_embeds = language_model_->embed(llm_input_ids);
    X pad_embedding, llm_inputs_embeds, per_layer_inputs;
    if (text.config->file.integer_or("hidden_size_per_layer_input", 256) > 0) {
      pad_embedding = X(language_model_->embedding_weight()).select(0, 0).slice(0, std::nullopt, std::nullopt);
      llm_inputs_embeds = where(multimodal_mask.unsqueeze(-1), pad_embedding.view({1, 1, -1}), inputs_embeds);
      per_layer_inputs = language_model_->get_per_layer_inputs(llm_input_ids);
    }
    X position_ids = arange(inputs_embeds.size(1)).add(0);
    position_ids = position_ids.unsqueeze(0);
    const DecoderMasks causal_mask_mapping = make_masks(inputs_embeds, position_ids);
    language_model_->given_per_layer_inputs = per_layer_inputs;
    auto [last_hidden_state, cache] = (*language_model_)(inputs_embeds, position_ids, {}, causal_mask_mapping);
    return {last_hidden_state, cache, {}};
  }

 private:
  /// create_masks_for_generate
  DecoderMasks make_masks(const X& inputs_embeds, const X& position_ids) const {
    const DecoderConfig& c = *text.config;
    MaskArguments arguments{c.options, inputs_embeds};
    arguments.position_ids = position_ids;
    bool any_full = false, any_sliding = false;
    for (I i = 0; i < c.layers; ++i) (c.sliding(i) ? any_sliding : any_full) = true;
    DecoderMasks masks;
    if (any_full) masks.full = create_causal_mask(arguments);
    if (any_sliding) masks.sliding = create_sliding_window_causal_mask(arguments, c.sliding_window.value_or(512));
    return masks;
  }

  std::shared_ptr<Gemma4Text> language_model_;
};

NetworkPtr gemma4(const Config& config, const Options& o) {
  return make_image_text(config, o, {.prefix = "Gemma4", .tied = config.boolean_or("tie_word_embeddings", true), .softcaps = true},
                         std::make_shared<Gemma4Model>(config, o));
}
const Family gemma4_family{{"gemma4"}, {{Task::causal_lm, "Gemma4ForConditionalGeneration", gemma4}, {Task::base, "Gemma4Model", gemma4}}};

}  // namespace
}  // namespace memest::hf
