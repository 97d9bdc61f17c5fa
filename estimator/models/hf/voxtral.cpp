// models/voxtral/modeling_voxtral.py (transformers 5.24).
#include "models/hf/composite.h"
#include "models/hf/loss.h"
#include "models/hf/whisper.h"
#include "ops/indexing.h"

namespace memest::hf {
namespace {

/// nn.Embedding(..., dtype=torch.float32), of which the forward takes the weight.
class PositionTable final : public Base {
 public:
  PositionTable(I count, I width) : Base("Embedding") {
    const Scoped<DType> single(runtime().default_dtype, DType::float32);
    new_parameter("weight", {count, width});
    parameter(0)->requires_grad = false;
  }
  T weight() const { return parameter(0); }
};

class VoxtralEncoder final : public Base {
 public:
  VoxtralEncoder(const Config& c, const Options& o)
      : Base("VoxtralEncoder"),
        mel_bins(c.size("num_mel_bins")),
        frames(checked_mul(2, c.size("max_source_positions"))),
        width(c.size("d_model")),
        dropout_(c.number_or("dropout", 0.0)),
        conv1(child<Conv1d>("conv1", mel_bins, width, 3, 1, 1)),
        conv2(child<Conv1d>("conv2", width, width, 3, 2, 1)),
        embed_positions(child<PositionTable>("embed_positions", c.size("max_source_positions"), width)),
        layers_(*this, "layers", c.size("encoder_layers"), [&](I) { return make_whisper_encoder_layer(c, o, "Voxtral"); }),
        layer_norm(child<LayerNorm>("layer_norm", width)) {}
  const I mel_bins, frames, width;
  X operator()(X input_features) {
    Entered scope(*this);
    input_features = input_features.to(conv1.weight().dtype());
    X inputs_embeds = ops::gelu(conv1(input_features), "none");
    inputs_embeds = ops::gelu(conv2(inputs_embeds), "none");
    inputs_embeds = inputs_embeds.permute({0, 2, 1});
    X hidden_states = inputs_embeds.add(X(embed_positions.weight())).to(inputs_embeds.dtype());
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    for (auto& encoder_layer : layers_) hidden_states = (*encoder_layer)(hidden_states, {});
    hidden_states = layer_norm(hidden_states);
    return leave(std::move(hidden_states), inputs_embeds);
  }

 private:
  double dropout_;
  Conv1d &conv1, &conv2;
  PositionTable& embed_positions;
  Layers<AudioEncoderLayer> layers_;
  LayerNorm& layer_norm;
};

class VoxtralMultiModalProjector final : public Unary {
 public:
  VoxtralMultiModalProjector(const std::string& act_name, I in, I hidden)
      : Unary("VoxtralMultiModalProjector"),
        linear_1(child<Linear>("linear_1", in, hidden, false)),
        act(child<Activation>("act", act_name)),
        linear_2(child<Linear>("linear_2", hidden, hidden, false)) {}

 protected:
  X forward(X audio_features) override {
    X hidden_states = linear_1(audio_features);
    hidden_states = act(hidden_states);
    hidden_states = linear_2(hidden_states);
    return hidden_states;
  }

 private:
  Linear& linear_1;
  Activation& act;
  Linear& linear_2;
};

class VoxtralModel final : public Base {
 public:
  VoxtralModel(const Config& c, const Options& o, const DecoderParts& text)
      : Base("VoxtralModel"),
        stacked_(c.section("audio_config").size("intermediate_size")),
        audio_tower(child<VoxtralEncoder>("audio_tower", c.section("audio_config"), o)) {
    language_model_ = register_module("language_model", make_decoder_body(text));
    projector_ = &child<VoxtralMultiModalProjector>("multi_modal_projector", c.text("projector_hidden_act"), stacked_, text.config->hidden);
    if (checked_mul(audio_tower.frames / 2, audio_tower.width) % stacked_ != 0)
      throw c.section("audio_config").error("intermediate_size", "the encoder's output does not split into tokens of this width");
  }
  /// Of one audio.
  I tokens() const { return audio_tower.frames / 2 * audio_tower.width / stacked_; }
  const VoxtralEncoder& tower() const { return audio_tower; }
  struct Output {
    X last_hidden_state;
    CachePtr cache;
    X audio_hidden_states;
  };
  Output operator()(const X& input_ids, const X& input_features) {
    Entered scope(*this);
    X inputs_embeds = language_model_->embed(input_ids);
    X audio_embeds, special_audio_mask;
    if (input_features) {
      audio_embeds = get_audio_features(input_features);
      special_audio_mask = get_placeholder_mask(input_ids, inputs_embeds, audio_embeds);
      inputs_embeds =
          aten("masked_scatter", {Tensor(inputs_embeds), Tensor(special_audio_mask), Tensor(audio_embeds.to(inputs_embeds.dtype()))});
    }
    auto [last_hidden_state, cache] = (*language_model_)(inputs_embeds);
    Output output{last_hidden_state, cache, audio_embeds};
    for (X* local : {&inputs_embeds, &special_audio_mask}) local->reset();
    return output;
  }

 private:
  X get_audio_features(const X& input_features) {
    X audio_hidden_states = audio_tower(input_features);
    X audio_embeds = (*projector_)(audio_hidden_states.reshape({-1, stacked_}));
    return leave(std::move(audio_embeds), audio_hidden_states);
  }
  static X get_placeholder_mask(const X& input_ids, const X& inputs_embeds, const X& audio_features) {
    X special_audio_mask = aten("eq", {Tensor(input_ids), I{0}});
    X n_audio_tokens = aten("sum", {Tensor(special_audio_mask)});
    special_audio_mask = special_audio_mask.unsqueeze(-1).expand(inputs_embeds.sizes());
    {  // inputs_embeds[special_audio_mask].numel()
      const ops::AssumedSelection features(audio_features.numel());
      aten("index", {Tensor(inputs_embeds), make_list({Tensor(special_audio_mask)})});
    }
    return leave(std::move(special_audio_mask), n_audio_tokens);
  }
  I stacked_;
  VoxtralEncoder& audio_tower;
  std::shared_ptr<DecoderBody> language_model_;
  VoxtralMultiModalProjector* projector_ = nullptr;
};

/// One audio of 30 seconds a sample, unless the size "audios" says otherwise; --seq counts its tokens too.
class VoxtralForConditionalGeneration final : public Network {
 public:
  VoxtralForConditionalGeneration(const Config& c, const Options& o, const DecoderParts& text)
      : Network("VoxtralForConditionalGeneration", o),
        vocab_(text.config->vocab),
        model(child<VoxtralModel>("model", c, o, text)),
        lm_head(child<Linear>("lm_head", text.config->hidden, text.config->vocab, false)) {}
  std::vector<nn::InputSpec> inputs() const override {
    std::vector<nn::InputSpec> list = Network::inputs();
    const nn::SizeExpression audios("batch * audios"), bins(std::to_string(model.tower().mel_bins)),
        frames(std::to_string(model.tower().frames));
    list.insert(list.begin() + 1, {"input_features", {audios, bins, frames}, DType::float32});
    return list;
  }
  std::vector<std::pair<std::string, I>> default_sizes() const override {
    constexpr I kText = 512;
    return {{"seq", checked_add(kText, model.tokens())}, {"audios", 1}};
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    X input_features = batch.others.at(0).second;
    if (input_features.size(0) == 0) input_features.reset();
    check_room(batch.input, input_features);
    VoxtralModel::Output outputs = model(batch.input, input_features);
    X hidden_states = slice_logits_to_keep(outputs.last_hidden_state, options_.logits_to_keep);
    X logits = lm_head(hidden_states);
    X loss;
    if (batch.labels) loss = causal_lm_loss(logits, batch.labels, vocab_);
    return {model_output({loss, logits}, outputs.cache.get()), loss};
  }

 private:
  void check_room(const X& input_ids, const X& input_features) const {
    if (!input_features) return;
    const I needed = checked_mul(input_features.size(0) / input_ids.size(0), model.tokens());
    if (input_ids.size(1) < needed)
      throw Error("a sequence of " + std::to_string(input_ids.size(1)) + " tokens has no room for its audio of " + std::to_string(needed),
                  "--seq counts the audio's tokens too: give at least " + std::to_string(needed));
  }
  I vocab_;
  VoxtralModel& model;
  Linear& lm_head;
};

NetworkPtr voxtral(const Config& config, const Options& o) {
  return std::make_shared<VoxtralForConditionalGeneration>(config, o, text_decoder(config.section("text_config"), o));
}
const Family voxtral_family{{"voxtral"}, {{Task::seq2seq, "VoxtralForConditionalGeneration", voxtral}}};

}  // namespace
}  // namespace memest::hf
