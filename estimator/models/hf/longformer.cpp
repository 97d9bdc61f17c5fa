// models/longformer/modeling_longformer.py, without global attention: the heads that give some tokens global attention themselves are not
// built.
#include "models/hf/longformer.h"

#include <algorithm>

#include "models/hf/encoder.h"
#include "models/hf/padding.h"

namespace memest::hf {
namespace {

class LongformerEmbeddings final : public Joint {
 public:
  explicit LongformerEmbeddings(const EncoderConfig& c)
      : Joint("LongformerEmbeddings"),
        word_embeddings(child<Embedding>("word_embeddings", c.vocab, c.hidden, c.pad_token)),
        token_type_embeddings(child<Embedding>("token_type_embeddings", c.types, c.hidden)),
        norm(child<LayerNorm>("LayerNorm", c.hidden)),
        dropout(child<Dropout>("dropout", c.hidden_dropout)),
        position_embeddings(child<Embedding>("position_embeddings", c.positions, c.hidden, c.pad_token)) {}

 protected:
  X forward(X input_ids, X token_type_ids) override {
    X position_ids = position_ids_of(input_ids, false);
    X inputs_embeds = word_embeddings(input_ids);
    X positions = position_embeddings(position_ids);
    X types = token_type_embeddings(token_type_ids);
    X embeddings = inputs_embeds.add(positions).add(types);
    embeddings = norm(embeddings);
    embeddings = dropout(embeddings);
    return leave(embeddings, position_ids, inputs_embeds, positions, types);
  }

 private:
  Embedding &word_embeddings, &token_type_embeddings;
  LayerNorm& norm;
  Dropout& dropout;
  Embedding& position_embeddings;
};

class LongformerEncoder final : public Base {
 public:
  LongformerEncoder(const EncoderConfig& c, const std::vector<I>& windows)
      : Base("LongformerEncoder"), layers_(*this, "layer", c.layers, [&](I i) {
          const LongformerSizes sizes{c.hidden, c.heads, windows[std::size_t(i)], c.attention_dropout};
          return make_encoder_layer(c, make_longformer_self_attention("LongformerSelfAttention", sizes), "Longformer");
        }) {}
  X operator()(X hidden_states, const X& attention_mask, I padding_len) {
    Entered scope(*this);
    WindowMasks masks = window_masks(attention_mask);
    X layer_outputs;
    for (auto& layer : layers_) {
      layer_outputs = (*layer)(hidden_states, {attention_mask, {masks.is_index_global_attn, {}}, masks.is_index_masked});
      hidden_states = layer_outputs;
    }
    hidden_states = hidden_states.whole_slices(1).slice(1, std::nullopt, hidden_states.size(1) - padding_len);
    return leave(std::move(hidden_states), masks.is_index_masked, masks.is_index_global_attn, layer_outputs);
  }

 private:
  Layers<DecoderLayer> layers_;
};

class LongformerModel final : public EncoderBody {
 public:
  LongformerModel(const EncoderConfig& c, const std::vector<I>& windows, bool pools)
      : EncoderBody("LongformerModel"),
        options_(c.options),
        file_(c.file),
        window_(*std::max_element(windows.begin(), windows.end())),
        embeddings(child<LongformerEmbeddings>("embeddings", c)),
        encoder(child<LongformerEncoder>("encoder", c, windows)) {
    if (pools) pooler_ = register_module("pooler", make_pooler("LongformerPooler", c.hidden, c.hidden, "tanh"));
  }

 protected:
  EncoderOutput forward(X input_ids, bool) override {
    warn_if_padding(file_, input_ids);
    X attention_mask = ones(input_ids.sizes(), DType::float32);
    X token_type_ids = zeros(input_ids.sizes(), DType::int64);
    const I padding_len = (window_ - input_ids.size(1) % window_) % window_;
    if (padding_len > 0) {  // _pad_to_window_size
      const auto padded = [&](const X& x) { return X(aten("constant_pad_nd", {Tensor(x), list_of(Dims{0, padding_len}), I{0}})); };
      X ids = padded(input_ids), mask = padded(attention_mask), types = padded(token_type_ids);
      input_ids = std::move(ids), attention_mask = std::move(mask), token_type_ids = std::move(types);
    }
    X embedding_output = embeddings(input_ids, token_type_ids);
    X extended_attention_mask = create_bidirectional_mask({.options = options_,
                                                           .inputs_embeds = embedding_output,
                                                           .allow_skip = false,
                                                           .attention_mask = aten("clamp", {Tensor(attention_mask), I{0}, I{1}})});
    extended_attention_mask = extended_attention_mask.whole_slices(1).select(1, 0).select(1, 0).whole_slices(1);
    aten("masked_fill_", {Tensor(extended_attention_mask), Tensor(aten("eq", {Tensor(attention_mask), I{2}})), 1e30});
    X sequence_output = encoder(embedding_output, extended_attention_mask, padding_len);
    X pooled_output;
    if (pooler_) pooled_output = (*pooler_)(sequence_output);
    return leave(EncoderOutput{sequence_output, pooled_output}, input_ids, attention_mask, token_type_ids, embedding_output,
                 extended_attention_mask);
  }

 private:
  const Options options_;
  Config file_;
  I window_;
  LongformerEmbeddings& embeddings;
  LongformerEncoder& encoder;
  UnaryPtr pooler_;
};

NetworkPtr longformer(const Config& config, const Options& o) {
  EncoderForm f;
  f.prefix = "Longformer";
  f.base_prefix = "longformer";
  f.adjust = [](EncoderConfig& c) {
    c.options.attention = Attention::eager;
    c.classifier_dropout = c.hidden_dropout;
    c.is_decoder = false;
  };
  f.body = [](const EncoderConfig& c, bool pools) {
    return std::make_shared<LongformerModel>(c, attention_windows(c.file, c.layers), pools);
  };
  f.lm_head = [](const EncoderConfig& c) { return EncoderForm::Heads{{"lm_head", make_roberta_lm_head(c, "Longformer")}}; };
  f.ties = {{"lm_head.decoder.weight", "longformer.embeddings.word_embeddings.weight"}, {"lm_head.decoder.bias", "lm_head.bias"}};
  return make_encoder(config, o, std::move(f));
}
const Family longformer_family{{"longformer"},
                               {{Task::masked_lm, "LongformerForMaskedLM", longformer},
                                {Task::token_cls, "LongformerForTokenClassification", longformer},
                                {Task::base, "LongformerModel", longformer}}};

}  // namespace
}  // namespace memest::hf
