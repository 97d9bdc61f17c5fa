// models/moss_transcribe_diarize/modeling_moss_transcribe_diarize.py: a Whisper encoder before Qwen3, called with text alone.
#include "models/hf/decoder.h"
#include "models/hf/loss.h"

namespace memest::hf {
namespace {

/// What only holds parameters where the call has no audio.
class Holder : public Base {
 public:
  using Base::Base;
};

class AudioTower final : public Holder {
 public:
  explicit AudioTower(const Config& c) : Holder("MossTranscribeDiarizeAudioModel") {
    const I width = c.size("hidden_size"), heads = c.size("num_attention_heads"), intermediate = c.size("intermediate_size");
    if (width % heads != 0)
      throw c.error("num_attention_heads",
                    "expected a divisor of the hidden_size " + std::to_string(width) + ", found " + std::to_string(heads));
    child<Conv1d>("conv1", c.size("num_mel_bins"), width, 3, 1, 1);
    child<Conv1d>("conv2", width, width, 3, 2, 1);
    child<Embedding>("embed_positions", c.size("max_source_positions"), width).weight()->requires_grad = false;
    const std::string act = c.text_or("activation_function", "gelu");
    Layers<Layer>(*this, "layers", layer_count(c), [&](I) { return std::make_shared<Layer>(width, intermediate, act); });
    child<LayerNorm>("layer_norm", width);
  }

 private:
  struct SelfAttention final : Holder {
    explicit SelfAttention(I width) : Holder("MossTranscribeDiarizeAudioAttention") {
      child<Linear>("k_proj", width, width, false);
      for (const char* name : {"v_proj", "q_proj", "out_proj"}) child<Linear>(name, width, width);
    }
  };
  struct Layer final : Holder {
    Layer(I width, I intermediate, const std::string& act) : Holder("MossTranscribeDiarizeAudioLayer") {
      child<SelfAttention>("self_attn", width);
      child<LayerNorm>("self_attn_layer_norm", width);
      child<Activation>("activation_fn", act);
      child<Linear>("fc1", width, intermediate);
      child<Linear>("fc2", intermediate, width);
      child<LayerNorm>("final_layer_norm", width);
    }
  };
};

class Projector final : public Holder {
 public:
  Projector(const Config& c, I audio_width, I width) : Holder("MossTranscribeDiarizeMultiModalProjector") {
    const bool bias = c.boolean_or("projector_bias", true);
    child<Linear>("linear_1", checked_mul(audio_width, c.size("audio_merge_size")), width, bias);
    child<Activation>("act", c.text_or("projector_hidden_act", "silu"));
    child<Linear>("linear_2", width, width, bias);
    child<LayerNorm>("norm", width);
  }
};

DecoderForm qwen3_form() {
  DecoderForm f;
  f.prefix = "Qwen3";
  f.norm_type = "Qwen3RMSNorm";
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "Qwen3DecoderLayer";
    form.norm_type = "Qwen3RMSNorm";
    const bool b = c.attention_bias;
    MixerPtr self_attn = make_attention_with_qk_norm(c, i, "Qwen3Attention", {b, b, b, b}, QkNorm::before_transpose, Norm::llama);
    return make_layer(c, form, self_attn, make_gated_mlp("Qwen3MLP", c.hidden, c.intermediate, false, c.act));
  };
  f.rotary = [](const DecoderConfig& c) { return std::make_shared<RotaryEmbedding>("Qwen3RotaryEmbedding", c.file, c.head_dim); };
  return f;
}

class MossModel final : public Base {
 public:
  MossModel(const Config& c, std::shared_ptr<const DecoderConfig> text) : Base("MossTranscribeDiarizeModel") {
    const Config audio = c.section("audio_config");
    child<AudioTower>("audio_tower", audio);
    language_model_ = &child<DecoderModel>("language_model", text, std::make_shared<const DecoderForm>(qwen3_form()));
    child<Projector>("multi_modal_projector", c, audio.size("hidden_size"), text->hidden);
  }
  std::pair<X, CachePtr> operator()(X input_ids) {
    Entered scope(*this);
    return (*language_model_)(input_ids);
  }

 private:
  DecoderModel* language_model_;
};

class MossForConditionalGeneration final : public Network {
 public:
  MossForConditionalGeneration(const Config& c, std::shared_ptr<const DecoderConfig> text)
      : Network("MossTranscribeDiarizeForConditionalGeneration", text->options),
        vocab_(text->vocab),
        model_(child<MossModel>("model", c, text)),
        lm_head(child<Linear>("lm_head", text->hidden, text->vocab, false)) {
    if (c.boolean_or("tie_word_embeddings", true)) tie("lm_head.weight", "model.language_model.embed_tokens.weight");
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto [last_hidden_state, cache] = model_(batch.input);
    X hidden_states = last_hidden_state.whole_slices(3);
    X logits = lm_head(hidden_states);
    X loss;
    if (batch.labels) loss = causal_lm_loss(logits, batch.labels, vocab_);
    return {model_output({loss, logits}, cache.get()), loss};
  }

 private:
  I vocab_;
  MossModel& model_;
  Linear& lm_head;
};

NetworkPtr moss_transcribe_diarize(const Config& config, const Options& o) {
  const Config text = config.section("text_config");
  if (text.model_type() != "qwen3")
    throw text.error("model_type", "memest builds this model on qwen3 only, found '" + text.model_type().substr(0, 60) + "'");
  auto c = std::make_shared<DecoderConfig>(text, o);
  c->sliding_window.reset();  // Qwen3Config: none unless use_sliding_window
  if (text.boolean_or("use_sliding_window", false))
    throw text.error("use_sliding_window", "memest does not build this model with sliding windows", "set it to false");
  return std::make_shared<MossForConditionalGeneration>(config, c);
}
const Family moss_family{{"moss_transcribe_diarize"},
                         {{Task::seq2seq, "MossTranscribeDiarizeForConditionalGeneration", moss_transcribe_diarize},
                          {Task::causal_lm, "MossTranscribeDiarizeForConditionalGeneration", moss_transcribe_diarize}}};

}  // namespace
}  // namespace memest::hf
