// models/qwen3_asr/modeling_qwen3_asr.py (transformers 5.24): its parameters.
#include "models/hf/composite.h"
#include "models/hf/weights_only.h"

namespace memest::hf {
namespace {

void add_encoder(Weights& encoder, const Config& c) {
  constexpr I kMost = 10'000;
  const I width = c.size("d_model"), channels = c.size("downsample_hidden_size"), intermediate = c.size("encoder_ffn_dim"),
          bins = c.size("num_mel_bins"), count = c.size("encoder_layers");
  if (count > kMost)
    throw c.error("encoder_layers", "expected at most " + std::to_string(kMost) + " layers, found " + std::to_string(count));
  encoder.part("positional_embedding", "SinusoidsPositionEmbedding")
      .new_buffer("positional_embedding", {c.size("max_position_embeddings"), width}, DType::float32);
  Weights& layers = encoder.part("layers", "ModuleList");
  for (I i = 0; i < count; ++i) {
    Weights& layer = layers.part(std::to_string(i), "Qwen3ASRAudioEncoderLayer");
    Weights& attention = layer.part("self_attn", "Qwen3ASRAudioAttention");
    for (const char* name : {"k_proj", "v_proj", "q_proj", "out_proj"}) attention.linear(name, width, width);
    layer.norm("self_attn_layer_norm", width);
    layer.linear("fc1", width, intermediate);
    layer.linear("fc2", intermediate, width);
    layer.norm("final_layer_norm", width);
  }
  encoder.norm("ln_post", width);
  encoder.conv("conv2d1", 1, channels, 3);
  encoder.conv("conv2d2", channels, channels, 3);
  encoder.conv("conv2d3", channels, channels, 3);
  const I rows = (((bins + 1) / 2 + 1) / 2 + 1) / 2;  // three convolutions of stride 2
  encoder.linear("conv_out", checked_mul(channels, rows), width, false);
}

NetworkPtr qwen3_asr(const Config& config, const Options& o) {
  const Config audio = config.section("audio_config");
  auto network = std::make_shared<WeightsOnly>("Qwen3ASRForConditionalGeneration", o);
  Weights& model = network->part("model", "Qwen3ASRModel");
  add_encoder(model.part("audio_tower", "Qwen3ASREncoder"), audio);
  const DecoderParts text = text_decoder(config.section("text_config"), o);
  model.register_module("language_model", make_decoder_body(text));
  Weights& projector = model.part("multi_modal_projector", "Qwen3ASRMultiModalProjector");
  projector.linear("linear_1", audio.size("d_model"), audio.size("d_model"));
  projector.linear("linear_2", audio.size("d_model"), audio.size("output_dim"));
  network->linear("lm_head", text.config->hidden, text.config->vocab, false);
  if (config.boolean_or("tie_word_embeddings", true)) network->tie("lm_head.weight", "model.language_model.embed_tokens.weight");
  return network;
}
const Family qwen3_asr_family{{"qwen3_asr"}, {{Task::seq2seq, "Qwen3ASRForConditionalGeneration", qwen3_asr}}};

}  // namespace
}  // namespace memest::hf
