// models/got_ocr2/modeling_got_ocr2.py, called without images: of the vision tower and the projector only the parameters count.
#include <algorithm>

#include "models/hf/decoder.h"
#include "models/hf/weights.h"

namespace memest::hf {
namespace {

void add_vision_encoder(Weights& encoder, const Config& file) {
  const I hidden = file.size("hidden_size"), mlp = file.size("mlp_dim"), channels = file.size("output_channels"),
          patch = file.size("patch_size"), side = file.size("image_size") / patch, window = file.integer("window_size"),
          head_dim = hidden / file.size("num_attention_heads");
  encoder.part("patch_embed", "GotOcr2PatchEmbeddings").conv("projection", file.size_or("num_channels", 3), hidden, patch);
  encoder.new_parameter("pos_embed", {1, side, side, hidden}, file.boolean_or("use_abs_pos", true));
  Weights& layers = encoder.part("layers", "ModuleList");
  const std::vector<I> global = file.integers("global_attn_indexes");
  for (I i = 0; i < file.size("num_hidden_layers"); ++i) {
    Weights& layer = layers.part(std::to_string(i), "GotOcr2VisionLayer");
    const bool windowed = window > 0 && std::find(global.begin(), global.end(), i) == global.end();
    const I length = 2 * (windowed ? window : side) - 1;
    const bool relative = file.boolean_or("use_rel_pos", true);
    layer.norm("layer_norm1", hidden);
    Weights& attention = layer.part("attn", "GotOcr2VisionAttention");
    attention.linear("qkv", hidden, 3 * hidden, file.boolean_or("qkv_bias", true));
    attention.linear("proj", hidden, hidden);
    attention.new_parameter("rel_pos_h", {length, head_dim}, relative);
    attention.new_parameter("rel_pos_w", {length, head_dim}, relative);
    layer.norm("layer_norm2", hidden);
    Weights& block = layer.part("mlp", "GotOcr2MLPBlock");
    block.linear("lin1", hidden, mlp);
    block.linear("lin2", mlp, hidden);
  }
  Weights& neck = encoder.part("neck", "GotOcr2VisionNeck");
  neck.conv("conv1", hidden, channels, 1, false);
  neck.norm("layer_norm1", channels);
  neck.conv("conv2", channels, channels, 3, false);
  neck.norm("layer_norm2", channels);
}

class GotOcr2Model final : public DecoderBody {
 public:
  GotOcr2Model(const std::shared_ptr<const DecoderConfig>& c, const std::shared_ptr<const DecoderForm>& text, const Config& file)
      : DecoderBody("GotOcr2Model") {
    const Config vision = file.section("vision_config");
    add_vision_encoder(child<Weights>("vision_tower", "GotOcr2VisionEncoder"), vision);
    const I channels = vision.size("output_channels");
    Weights& projector = child<Weights>("multi_modal_projector", "GotOcr2MultiModalProjector");
    projector.conv("conv_upsampler1", channels, 2 * channels, 3, false);
    projector.conv("conv_upsampler2", 2 * channels, c->hidden, 3, false);
    projector.linear("multimodal_projector", c->hidden, c->hidden);
    language_model = &child<DecoderModel>("language_model", c, text);
  }
  CachePtr new_generation_cache(const DecoderConfig& c) const override {
    throw c.file.error("hidden_size", "memest does not generate with GOT-OCR2");
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override { return (*language_model)(input_ids); }

 private:
  DecoderModel* language_model;
};

DecoderForm qwen2_form() {
  DecoderForm f;
  f.prefix = "Qwen2";
  f.norm_type = "Qwen2RMSNorm";
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "Qwen2DecoderLayer";
    form.norm_type = "Qwen2RMSNorm";
    return make_layer(c, form, make_attention(c, i, "Qwen2Attention", {true, true, true, false}),
                      make_gated_mlp("Qwen2MLP", c.hidden, c.intermediate, false, c.act));
  };
  f.rotary = [](const DecoderConfig& c) { return std::make_shared<RotaryEmbedding>("Qwen2RotaryEmbedding", c.file, c.head_dim); };
  return f;
}

NetworkPtr got_ocr2(const Config& config, const Options& o) {
  Config text = config.section("text_config");
  if (text.model_type() != "qwen2" || text.boolean_or("use_sliding_window", false))
    throw config.error("text_config", "memest builds GOT-OCR2 with a qwen2 without a sliding window only");
  text.set("sliding_window", {});
  text.set("tie_word_embeddings", ConfigValue{config.boolean_or("tie_word_embeddings", true)});
  DecoderForm f = qwen2_form();
  auto inner = std::make_shared<const DecoderForm>(qwen2_form());
  f.prefix = "GotOcr2";
  f.causal_suffix = "ForConditionalGeneration";
  f.embedding_name = "language_model.embed_tokens";
  f.body = [config, inner](const std::shared_ptr<const DecoderConfig>& c, const std::shared_ptr<const DecoderForm>&) {
    return std::make_shared<GotOcr2Model>(c, inner, config);
  };
  return make_decoder(text, o, std::move(f));
}
const Family got_ocr2_family{{"got_ocr2"},
                             {{Task::causal_lm, "GotOcr2ForConditionalGeneration", got_ocr2}, {Task::base, "GotOcr2Model", got_ocr2}}};

}  // namespace
}  // namespace memest::hf
