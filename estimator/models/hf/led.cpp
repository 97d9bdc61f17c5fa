// models/led: BART whose encoder attends within windows, as Longformer does, without global attention.
#include <algorithm>

#include "models/hf/batched_attention.h"
#include "models/hf/longformer.h"
#include "models/hf/seq2seq.h"

namespace memest::hf {
namespace {

/// LEDLearnedPositionalEmbedding.
class LEDPositions final : public PositionEmbedding {
 public:
  LEDPositions(I rows, I width) : PositionEmbedding("LEDLearnedPositionalEmbedding") { new_parameter("weight", {rows, width}); }

 protected:
  X forward(const X&, const X& inputs_embeds, X) override {
    X positions = arange(inputs_embeds.size(1));
    return ops::embedding(parameter(0), positions, -1, false, false);
  }
};

class LEDEncoderAttention final : public Mixer {
 public:
  LEDEncoderAttention(const Seq2SeqConfig& c, I window)
      : Mixer("LEDEncoderAttention"),
        longformer_self_attn(register_module(
            "longformer_self_attn",
            make_longformer_self_attention("LEDEncoderSelfAttention", {c.hidden, c.encoder.heads, window, c.attention_dropout}))),
        output(child<Linear>("output", c.hidden, c.hidden)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    Pair self_outputs = (*longformer_self_attn)(hidden_states, call);
    X attn_output = output(self_outputs.first);
    return {leave(attn_output, self_outputs.first), self_outputs.second};
  }

 private:
  MixerPtr longformer_self_attn;
  Linear& output;
};

class LEDEncoderLayer final : public DecoderLayer {
 public:
  LEDEncoderLayer(const Seq2SeqConfig& c, I window)
      : DecoderLayer("LEDEncoderLayer", c.options),
        dropout_(c.dropout),
        activation_dropout_(c.activation_dropout),
        self_attn(child<LEDEncoderAttention>("self_attn", c, window)),
        self_attn_layer_norm(child<LayerNorm>("self_attn_layer_norm", c.hidden)),
        activation_fn(child<Activation>("activation_fn", c.act)),
        fc1(child<Linear>("fc1", c.hidden, c.encoder.intermediate)),
        fc2(child<Linear>("fc2", c.encoder.intermediate, c.hidden)),
        final_layer_norm(child<LayerNorm>("final_layer_norm", c.hidden)) {}

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states;
    Pair attn_outputs = self_attn(hidden_states, call);
    hidden_states = attn_outputs.first;
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    hidden_states = residual.add(hidden_states);
    hidden_states = self_attn_layer_norm(hidden_states);
    residual = hidden_states;
    hidden_states = activation_fn(fc1(hidden_states));
    hidden_states = ops::dropout(hidden_states, activation_dropout_, training);
    hidden_states = fc2(hidden_states);
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    hidden_states = residual.add(hidden_states);
    hidden_states = final_layer_norm(hidden_states);
    hidden_states = clamp_overflown(std::move(hidden_states));
    return leave(std::move(hidden_states), residual, attn_outputs.first, attn_outputs.second);
  }

 private:
  double dropout_, activation_dropout_;
  LEDEncoderAttention& self_attn;
  LayerNorm& self_attn_layer_norm;
  Activation& activation_fn;
  Linear &fc1, &fc2;
  LayerNorm& final_layer_norm;
};

class LEDEncoder final : public Seq2SeqEncoder {
 public:
  explicit LEDEncoder(const Seq2SeqConfig& c) : Seq2SeqEncoder("LEDEncoder"), c_(c), windows_(attention_windows(c.file, c.encoder.layers)) {
    window_ = *std::max_element(windows_.begin(), windows_.end());
    embed_tokens = &child<Embedding>("embed_tokens", c.vocab, c.hidden, c.pad_token);
    embed_positions = &child<LEDPositions>("embed_positions", c.file.size("max_encoder_position_embeddings"), c.hidden);
    layers_ = std::make_unique<Layers<LEDEncoderLayer>>(
        *this, "layers", c.encoder.layers, [&](I i) { return std::make_shared<LEDEncoderLayer>(c, windows_[std::size_t(i)]); });
    layernorm_embedding = &child<LayerNorm>("layernorm_embedding", c.hidden);
  }

 protected:
  X forward(const X& given, X padding) override {
    X input_ids = given;
    X inputs_embeds = (*embed_tokens)(input_ids);
    X attention_mask = padding ? padding : ones(input_ids.sizes(), DType::int64);
    padding.reset();
    const I padding_len = (window_ - input_ids.size(1) % window_) % window_;
    if (padding_len > 0) pad_to_window_size(padding_len, input_ids, attention_mask, inputs_embeds);
    attention_mask = inverted_mask(attention_mask, inputs_embeds.dtype()).whole_slices(1).select(1, 0).select(1, 0).whole_slices(1);
    WindowMasks masks = window_masks(attention_mask);
    X embed_pos = (*embed_positions)(input_ids, inputs_embeds);
    X hidden_states = inputs_embeds.add(embed_pos);
    hidden_states = (*layernorm_embedding)(hidden_states);
    hidden_states = ops::dropout(hidden_states, c_.dropout, training);
    X layer_outputs;
    for (auto& layer : *layers_) {
      layer_outputs = (*layer)(hidden_states, LayerCall{attention_mask, {masks.is_index_global_attn, {}}, masks.is_index_masked, nullptr});
      hidden_states = layer_outputs;
    }
    if (padding_len > 0) hidden_states = hidden_states.whole_slices(1).slice(1, std::nullopt, -padding_len);
    return leave(std::move(hidden_states), attention_mask, inputs_embeds, input_ids, masks.is_index_masked, masks.is_index_global_attn,
                 embed_pos, layer_outputs);
  }

 private:
  void pad_to_window_size(I padding_len, X& input_ids, X& attention_mask, X& inputs_embeds) {
    auto padded = [&](const X& x) { return X(aten("constant_pad_nd", {Tensor(x), list_of(Dims{0, padding_len}), I{0}})); };
    X ids = padded(input_ids);
    X input_ids_padding = full({input_ids.size(0), padding_len}, I{0}, DType::int64);
    X inputs_embeds_padding = (*embed_tokens)(input_ids_padding);
    X embeds = cat({inputs_embeds, inputs_embeds_padding}, -2);
    X mask = padded(attention_mask);
    input_ids_padding.reset(), inputs_embeds_padding.reset();
    input_ids = std::move(ids), attention_mask = std::move(mask), inputs_embeds = std::move(embeds);
  }
  /// _prepare_4d_attention_mask_inverted: a row for each position.
  static X inverted_mask(const X& mask, DType dtype) {
    const I bsz = mask.size(0), src_len = mask.size(1);
    X expanded_mask = mask.whole_slices(1).unsqueeze(1).unsqueeze(2).expand({bsz, 1, src_len, src_len}).to(dtype);
    X inverted = aten("rsub", {Tensor(expanded_mask), 1.0});
    X chosen = inverted.to(DType::boolean);
    X expanded_attention_mask = aten("masked_fill", {Tensor(inverted), Tensor(std::move(chosen)), -1e30});
    expanded_attention_mask = expanded_attention_mask.mul(inverted);
    return leave(expanded_attention_mask, expanded_mask, inverted);
  }

  const Seq2SeqConfig c_;
  std::vector<I> windows_;
  I window_;
  Embedding* embed_tokens;
  LEDPositions* embed_positions;
  std::unique_ptr<Layers<LEDEncoderLayer>> layers_;
  LayerNorm* layernorm_embedding;
};

class LEDDecoderAttention final : public BatchedAttention {
 public:
  LEDDecoderAttention(const Seq2SeqConfig& c, I heads, I layer) : BatchedAttention("LEDDecoderAttention", c, heads, layer) {}
};

NetworkPtr led(const Config& given, const Options& options) {
  Options o = options;
  o.attention = Attention::eager;
  Config config = given;
  config.set("max_position_embeddings", *given.find("max_decoder_position_embeddings"));
  Seq2SeqForm f;
  f.prefix = "LED";
  f.model_name = "led";
  f.scales_itself = f.decoder_scales = f.ones_mask = f.generates = false;
  f.position_ids = Seq2SeqForm::PositionIds::none;
  f.own_positions = [](const Seq2SeqConfig& c) { return std::make_shared<LEDPositions>(c.positions, c.hidden); };
  f.encoder = [](const Seq2SeqConfig& c) { return std::make_shared<LEDEncoder>(c); };
  f.attention = [](const Seq2SeqConfig& c, I heads, I layer) { return std::make_shared<LEDDecoderAttention>(c, heads, layer); };
  return make_seq2seq(config, o, std::move(f));
}
const Family led_family{{"led"}, seq2seq_classes("LED", led, {Task::seq2seq, Task::base})};

}  // namespace
}  // namespace memest::hf
