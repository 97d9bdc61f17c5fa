// models/albert/modeling_albert.py.
#include "models/hf/encoder.h"

namespace memest::hf {
namespace {

class AlbertAttention final : public Mixer {
 public:
  explicit AlbertAttention(const EncoderConfig& c)
      : Mixer("AlbertAttention"),
        options_(c.options),
        head_dim_(c.head_dim),
        dropout_(c.attention_dropout),
        output_dropout(child<Dropout>("output_dropout", c.hidden_dropout)),
        query(child<Linear>("query", c.hidden, c.hidden)),
        key(child<Linear>("key", c.hidden, c.hidden)),
        value(child<Linear>("value", c.hidden, c.hidden)),
        dense(child<Linear>("dense", c.hidden, c.hidden)),
        norm(child<LayerNorm>("LayerNorm", c.hidden)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1);
    const Dims hidden_shape = input_shape + Dims{-1, head_dim_};
    X query_layer = query(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_layer = key(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_layer = value(hidden_states).view(hidden_shape).transpose(1, 2);
    auto [attn_output, attn_weights] =
        bert_attention_interface(options_, query_layer, key_layer, value_layer,
                                 {.mask = call.mask, .dropout = training ? dropout_ : 0.0, .training = training, .causal = false});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = dense(attn_output);
    attn_output = output_dropout(attn_output);
    attn_output = norm(hidden_states.add(attn_output));
    return {attn_output, attn_weights};
  }

 private:
  const Options options_;
  I head_dim_;
  double dropout_;
  Dropout& output_dropout;
  Linear &query, &key, &value, &dense;
  LayerNorm& norm;
};

class AlbertLayer final : public Unary {
 public:
  explicit AlbertLayer(const EncoderConfig& c)
      : Unary("AlbertLayer"),
        full_layer_layer_norm(child<LayerNorm>("full_layer_layer_norm", c.hidden)),
        attention(child<AlbertAttention>("attention", c)),
        ffn(child<Linear>("ffn", c.hidden, c.intermediate)),
        ffn_output(child<Linear>("ffn_output", c.intermediate, c.hidden)),
        activation(child<Activation>("activation", c.act)) {}

 protected:
  X forward(X hidden_states) override {
    auto [attention_output, weights] = attention(hidden_states, LayerCall{});
    X output = ff_chunk(attention_output);
    hidden_states = full_layer_layer_norm(output.add(attention_output));
    return hidden_states;
  }

 private:
  X ff_chunk(const X& attention_output) {
    X output = ffn(attention_output);
    output = activation(output);
    output = ffn_output(output);
    return output;
  }

  LayerNorm& full_layer_layer_norm;
  AlbertAttention& attention;
  Linear &ffn, &ffn_output;
  Activation& activation;
};

class AlbertLayerGroup final : public Unary {
 public:
  explicit AlbertLayerGroup(const EncoderConfig& c)
      : Unary("AlbertLayerGroup"),
        layers_(*this, "albert_layers", c.file.size_or("inner_group_num", 1), [&](I) { return std::make_shared<AlbertLayer>(c); }) {}

 protected:
  X forward(X hidden_states) override {
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states);
    return hidden_states;
  }

 private:
  Layers<AlbertLayer> layers_;
};

/// The layers of a group share their parameters.
class AlbertTransformer final : public Unary {
 public:
  explicit AlbertTransformer(const EncoderConfig& c)
      : Unary("AlbertTransformer"),
        count_(c.layers),
        embedding_hidden_mapping_in(child<Linear>("embedding_hidden_mapping_in", c.embedding, c.hidden)),
        groups_(*this, "albert_layer_groups", c.file.size_or("num_hidden_groups", 1),
                [&](I) { return std::make_shared<AlbertLayerGroup>(c); }) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = embedding_hidden_mapping_in(hidden_states);
    for (I i = 0; i < count_; ++i) {
      const I group = I(double(i) / (double(count_) / double(groups_.size())));
      hidden_states = groups_[group](hidden_states);
    }
    return hidden_states;
  }

 private:
  I count_;
  Linear& embedding_hidden_mapping_in;
  Layers<AlbertLayerGroup> groups_;
};

class AlbertMLMHead final : public Unary {
 public:
  explicit AlbertMLMHead(const EncoderConfig& c) : Unary("AlbertMLMHead") {
    new_parameter("bias", {c.vocab});
    norm = &child<LayerNorm>("LayerNorm", c.embedding);
    dense = &child<Linear>("dense", c.hidden, c.embedding);
    decoder = &child<Linear>("decoder", c.embedding, c.vocab);
    activation = &child<Activation>("activation", c.act);
  }

 protected:
  X forward(X hidden_states) override {
    hidden_states = (*dense)(hidden_states);
    hidden_states = (*activation)(hidden_states);
    hidden_states = (*norm)(hidden_states);
    hidden_states = (*decoder)(hidden_states);
    return hidden_states;
  }

 private:
  LayerNorm* norm;
  Linear *dense, *decoder;
  Activation* activation;
};

class AlbertSOPHead final : public Unary {
 public:
  explicit AlbertSOPHead(const EncoderConfig& c)
      : Unary("AlbertSOPHead"),
        dropout(child<Dropout>("dropout", c.file.number_or("classifier_dropout_prob", 0.1))),
        classifier(child<Linear>("classifier", c.hidden, num_labels(c.file))) {}

 protected:
  X forward(X pooled_output) override {
    X dropout_pooled_output = dropout(pooled_output);
    return classifier(dropout_pooled_output);
  }

 private:
  Dropout& dropout;
  Linear& classifier;
};

NetworkPtr albert(const Config& config, const Options& o) {
  EncoderForm f = bert_form("Albert", "albert");
  f.adjust = [](EncoderConfig& c) {
    c.embedding = c.file.size("embedding_size");
    c.act = c.file.text_or("hidden_act", "gelu_new");
    c.hidden_dropout = c.file.number_or("hidden_dropout_prob", 0.0);
    c.attention_dropout = c.file.number_or("attention_probs_dropout_prob", 0.0);
    c.classifier_dropout = c.file.number_or("classifier_dropout_prob", 0.1);
    c.is_decoder = false;
  };
  f.encoder = [](const EncoderConfig& c) { return std::make_shared<AlbertTransformer>(c); };
  f.pooler = [](const EncoderConfig& c) {
    return EncoderForm::Heads{
        {"", make_first_token()}, {"pooler", make_linear(c.hidden, c.hidden)}, {"pooler_activation", make_activation("tanh")}};
  };
  f.lm_head = [](const EncoderConfig& c) { return EncoderForm::Heads{{"predictions", std::make_shared<AlbertMLMHead>(c)}}; };
  f.ties = {{"predictions.decoder.weight", "albert.embeddings.word_embeddings.weight"}, {"predictions.decoder.bias", "predictions.bias"}};
  f.pretraining = [](const EncoderConfig& c) {
    return EncoderForm::TwoHeads{
        "", {{"predictions", std::make_shared<AlbertMLMHead>(c)}}, {{"sop_classifier", std::make_shared<AlbertSOPHead>(c)}}};
  };
  return make_encoder(config, o, std::move(f));
}
const Family albert_family{{"albert"}, bidirectional_classes("Albert", albert, true)};

}  // namespace
}  // namespace memest::hf
