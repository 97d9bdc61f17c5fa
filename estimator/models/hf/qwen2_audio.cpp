// models/qwen2_audio/modeling_qwen2_audio.py (transformers 5.24): its parameters.
#include "models/hf/audio_weights.h"
#include "models/hf/composite.h"

namespace memest::hf {
namespace {

NetworkPtr qwen2_audio(const Config& config, const Options& o) {
  const Config audio = config.section("audio_config");
  auto network = std::make_shared<WeightsOnly>("Qwen2AudioForConditionalGeneration", o);
  Weights& model = network->part("model", "Qwen2AudioModel");
  add_whisper_encoder(model.part("audio_tower", "Qwen2AudioEncoder"), audio, "Qwen2Audio");
  const DecoderParts text = text_decoder(config.section("text_config"), o);
  model.part("multi_modal_projector", "Qwen2AudioMultiModalProjector").linear("linear", audio.size("d_model"), text.config->hidden);
  model.register_module("language_model", make_decoder_body(text));
  network->linear("lm_head", text.config->hidden, text.config->vocab, false);
  return network;
}
const Family qwen2_audio_family{{"qwen2_audio"}, {{Task::seq2seq, "Qwen2AudioForConditionalGeneration", qwen2_audio}}};

}  // namespace
}  // namespace memest::hf
