// models/tapas/modeling_tapas.py. Its attention is always eager.
#include <cmath>

#include "models/hf/encoder.h"
#include "models/hf/masks.h"
#include "models/hf/padding.h"

namespace memest::hf {
namespace {

class TapasEmbeddings final : public Joint {
 public:
  explicit TapasEmbeddings(const EncoderConfig& c)
      : Joint("TapasEmbeddings"),
        positions_(c.positions),
        resets_(c.file.boolean_or("reset_position_index_per_cell", true)),
        type_sizes_(c.file.integers("type_vocab_sizes")),
        word_embeddings(child<Embedding>("word_embeddings", c.vocab, c.hidden, c.pad_token)),
        position_embeddings(child<Embedding>("position_embeddings", c.positions, c.hidden)) {
    for (std::size_t i = 0; i < type_sizes_.size(); ++i)
      token_type_embeddings_.push_back(&child<Embedding>("token_type_embeddings_" + std::to_string(i), type_sizes_[i], c.hidden));
    norm = &child<LayerNorm>("LayerNorm", c.hidden);
    dropout = &child<Dropout>("dropout", c.hidden_dropout);
  }

 protected:
  X forward(X input_ids, X token_type_ids) override {
    const Dims input_shape = input_ids.sizes();
    X position_ids = arange(input_shape[1]);
    position_ids = position_ids.unsqueeze(0).expand(input_shape);
    X full_index, first_position_per_segment, first_position, position;
    if (resets_) {
      full_index = product_index(token_type_ids);
      first_position_per_segment = segment_min(position_ids, full_index);
      first_position = aten("gather", {Tensor(first_position_per_segment), I{1}, Tensor(full_index.view({input_shape[0], -1}))});
      first_position = first_position.view(input_shape);
      position = arange(input_shape[1]).unsqueeze(0);
      X last = full({}, positions_ - 1, DType::int64);
      X within = position.sub(first_position);
      position_ids = aten("min", {Tensor(last), Tensor(within)});
    }
    X inputs_embeds = word_embeddings(input_ids);
    X places = position_embeddings(position_ids);
    X embeddings = inputs_embeds.add(places);
    for (std::size_t i = 0; i < token_type_embeddings_.size(); ++i) {
      X types = (*token_type_embeddings_[i])(token_type_ids.whole_slices(2).select(2, I(i)));
      embeddings = embeddings.add_(types);
    }
    embeddings = (*norm)(embeddings);
    embeddings = (*dropout)(embeddings);
    return leave(embeddings, position_ids, inputs_embeds, full_index, first_position_per_segment, first_position, position, places);
  }

 private:
  I segments() const { return type_sizes_.at(1) * type_sizes_.at(2); }
  /// ProductIndexMap of columns and rows.
  X product_index(const X& token_type_ids) const {
    X columns = token_type_ids.whole_slices(2).select(2, 1), rows = token_type_ids.whole_slices(2).select(2, 2);
    X outer = columns.mul(type_sizes_.at(2));
    return rows.add(outer);
  }
  /// reduce_min(values, index)[0].
  X segment_min(const X& values, const X& index) const {
    const I batch = index.size(0);
    X flat_index;
    {
      X offset = arange(batch).mul(segments());
      flat_index = offset.unsqueeze(-1).add(index).view({-1});
    }
    X flat_values = values.reshape({-1});
    X out = zeros({segments() * batch}, DType::float32);
    X segment_means;
    {
      X src = flat_values.to_float();
      segment_means =
          aten("scatter_reduce", {Tensor(out), I{0}, Tensor(flat_index), Tensor(src), std::string("amin")}, {{"include_self", false}});
    }
    X output_values = segment_means.clone().view({batch, segments()}).to(values.dtype());
    X output_index = arange(segments()).view({1, segments()});
    output_index = aten("repeat", {Tensor(output_index), list_of(Dims{batch, 1})});
    return leave(output_values, flat_index, flat_values, out, segment_means, output_index);
  }

  I positions_;
  bool resets_;
  std::vector<I> type_sizes_;
  Embedding &word_embeddings, &position_embeddings;
  std::vector<Embedding*> token_type_embeddings_;
  LayerNorm* norm;
  Dropout* dropout;
};

class TapasSelfAttention final : public Mixer {
 public:
  explicit TapasSelfAttention(const EncoderConfig& c)
      : Mixer("TapasSelfAttention"),
        head_dim_(c.head_dim),
        query(child<Linear>("query", c.hidden, c.hidden)),
        key(child<Linear>("key", c.hidden, c.hidden)),
        value(child<Linear>("value", c.hidden, c.hidden)) {
    dropout = &child<Dropout>("dropout", c.attention_dropout);
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims hidden_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1) + Dims{-1, head_dim_};
    X query_layer = query(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_layer = key(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_layer = value(hidden_states).view(hidden_shape).transpose(1, 2);
    X attention_scores = query_layer.matmul(key_layer.transpose(-1, -2));
    attention_scores = attention_scores.div(std::sqrt(double(head_dim_)));
    if (call.mask) attention_scores = attention_scores.add(call.mask);
    X attention_probs = attention_scores.softmax(-1);
    attention_probs = (*dropout)(attention_probs);
    X context_layer = attention_probs.matmul(value_layer);
    context_layer = context_layer.permute({0, 2, 1, 3}).contiguous();
    context_layer = context_layer.view({context_layer.size(0), context_layer.size(1), -1});
    return leave(Pair(context_layer, {}), query_layer, key_layer, value_layer, attention_scores, attention_probs);
  }

 private:
  I head_dim_;
  Linear &query, &key, &value;
  Dropout* dropout;
};

class TapasEncoder final : public Base {
 public:
  explicit TapasEncoder(const EncoderConfig& c)
      : Base("TapasEncoder"),
        layers_(*this, "layer", c.layers, [&](I) { return make_encoder_layer(c, std::make_shared<TapasSelfAttention>(c), "Tapas"); }) {}
  X operator()(X hidden_states, const X& attention_mask) {
    Entered scope(*this);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, {attention_mask, {}, {}});
    return hidden_states;
  }

 private:
  Layers<DecoderLayer> layers_;
};

class TapasModel final : public EncoderBody {
 public:
  TapasModel(const EncoderConfig& c, bool pools)
      : EncoderBody("TapasModel"),
        file_(c.file),
        options_(c.options),
        types_(I(c.file.integers("type_vocab_sizes").size())),
        embeddings(child<TapasEmbeddings>("embeddings", c)),
        encoder(child<TapasEncoder>("encoder", c)) {
    if (pools) pooler_ = register_module("pooler", make_pooler("TapasPooler", c.hidden, c.hidden, "tanh"));
  }

 protected:
  EncoderOutput forward(X input_ids, bool) override {
    const Dims input_shape = input_ids.sizes();
    warn_if_padding(file_, input_ids);
    X attention_mask = ones(input_shape, DType::float32);
    X token_type_ids = zeros(input_shape + Dims{types_}, DType::int64);
    X embedding_output = embeddings(input_ids, token_type_ids);
    attention_mask = create_bidirectional_mask({.options = options_, .inputs_embeds = embedding_output, .attention_mask = attention_mask});
    X sequence_output = encoder(embedding_output, attention_mask);
    X pooled_output;
    if (pooler_) pooled_output = (*pooler_)(sequence_output);
    return {sequence_output, pooled_output};
  }

 private:
  Config file_;
  const Options options_;
  I types_;
  TapasEmbeddings& embeddings;
  TapasEncoder& encoder;
  UnaryPtr pooler_;
};

NetworkPtr tapas(const Config& config, const Options& o) {
  EncoderForm f = bert_form("Tapas", "tapas");
  f.adjust = [](EncoderConfig& c) {
    c.options.attention = Attention::eager;
    c.classifier_dropout = c.hidden_dropout;
    c.types = 0;
  };
  f.body = [](const EncoderConfig& c, bool pools) { return std::make_shared<TapasModel>(c, pools); };
  return make_encoder(config, o, std::move(f));
}
const Family tapas_family{{"tapas"},
                          {{Task::masked_lm, "TapasForMaskedLM", tapas},
                           {Task::seq_cls, "TapasForSequenceClassification", tapas},
                           {Task::base, "TapasModel", tapas}}};

}  // namespace
}  // namespace memest::hf
