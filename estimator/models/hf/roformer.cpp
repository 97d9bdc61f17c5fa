// models/roformer/modeling_roformer.py.
#include "models/hf/classic_encoder.h"

namespace memest::hf {
namespace {

/// RoFormerSinusoidalPositionalEmbedding: a table that is not trained.
class SinusoidalPositions final : public Unary {
 public:
  explicit SinusoidalPositions(const EncoderConfig& c) : Unary("RoFormerSinusoidalPositionalEmbedding") {
    new_parameter("weight", {c.positions, c.head_dim});
    parameter(0)->requires_grad = false;
  }

 protected:
  X forward(X hidden_states) override {
    X position_ids = arange(hidden_states.size(1));
    return X(ops::embedding(parameter(0), position_ids, -1, false, false)).unsqueeze(0).unsqueeze(0).whole_slices(2);
  }
};

/// RoFormerEmbeddings: no positions.
class RoFormerEmbeddings final : public Joint {
 public:
  explicit RoFormerEmbeddings(const EncoderConfig& c)
      : Joint("RoFormerEmbeddings"),
        word_embeddings(child<Embedding>("word_embeddings", c.vocab, c.embedding, c.pad_token)),
        token_type_embeddings(child<Embedding>("token_type_embeddings", c.types, c.embedding)),
        norm(child<LayerNorm>("LayerNorm", c.embedding)),
        dropout(child<Dropout>("dropout", c.hidden_dropout)) {}

 protected:
  X forward(X input_ids, X token_type_ids) override {
    X inputs_embeds = word_embeddings(input_ids);
    X types = token_type_embeddings(token_type_ids);
    X embeddings = inputs_embeds.add(types);
    embeddings = norm(embeddings);
    embeddings = dropout(embeddings);
    return leave(embeddings, inputs_embeds, types);
  }

 private:
  Embedding &word_embeddings, &token_type_embeddings;
  LayerNorm& norm;
  Dropout& dropout;
};

class RoFormerSelfAttention final : public Mixer {
 public:
  RoFormerSelfAttention(const EncoderConfig& c, I layer)
      : Mixer("RoFormerSelfAttention"),
        layer_(layer),
        head_dim_(c.head_dim),
        rotary_value_(c.file.boolean_or("rotary_value", false)),
        query(child<Linear>("query", c.hidden, c.hidden)),
        key(child<Linear>("key", c.hidden, c.hidden)),
        value(child<Linear>("value", c.hidden, c.hidden)),
        dropout(child<Dropout>("dropout", c.attention_dropout)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims hidden_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1) + Dims{-1, head_dim_};
    X query_layer = query(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_layer = key(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_layer = value(hidden_states).view(hidden_shape).transpose(1, 2);
    rotate(call.position_embeddings.first, query_layer, key_layer, value_layer);
    if (call.cache) std::tie(key_layer, value_layer) = call.cache->update(key_layer, value_layer, layer_);
    return classic_attention(query_layer, key_layer, value_layer, call.mask, dropout);
  }

 private:
  /// apply_rotary_position_embeddings: pairs of neighbours.
  void rotate(const X& sinusoidal_pos, X& query_layer, X& key_layer, X& value_layer) const {
    auto doubled = [&](const X& half) { return stack({half, half}, -1).reshape(sinusoidal_pos.sizes()); };
    std::vector<X> halves = sinusoidal_pos.chunk(2, -1);
    X sin_pos = doubled(halves[0]);
    X cos_pos = doubled(halves[1]);
    auto rotated_half = [](const X& x) {
      X odd = x.slice(-1, 1, std::nullopt, 2).neg();
      return stack({odd, x.slice(-1, 0, std::nullopt, 2)}, -1);
    };
    std::vector<X> rotated;
    auto rotate_one = [&](const X& x) {
      rotated.push_back(rotated_half(x).reshape(x.sizes()));
      return x.mul(cos_pos).add(rotated.back().mul(sin_pos));
    };
    X rotated_query = rotate_one(query_layer);
    X rotated_key = rotate_one(key_layer);
    X rotated_value;
    if (rotary_value_) rotated_value = rotate_one(value_layer);
    halves.clear(), sin_pos.reset(), cos_pos.reset(), rotated.clear();
    query_layer = std::move(rotated_query);
    key_layer = std::move(rotated_key);
    if (rotary_value_) value_layer = std::move(rotated_value);
  }

  I layer_, head_dim_;
  bool rotary_value_;
  Linear &query, &key, &value;
  Dropout& dropout;
};

/// RoFormerOnlyMLMHead: the transform goes to the embeddings' width.
class RoFormerHead final : public Unary {
 public:
  explicit RoFormerHead(const EncoderConfig& c) : Unary("RoFormerLMPredictionHead") {
    new_parameter("bias", {c.vocab});
    transform = register_module("transform", make_head_transform("RoFormerPredictionHeadTransform", c.hidden, c.embedding, c.act));
    decoder = &child<Linear>("decoder", c.embedding, c.vocab);
  }

 protected:
  X forward(X hidden_states) override {
    hidden_states = (*transform)(hidden_states);
    hidden_states = (*decoder)(hidden_states);
    return hidden_states;
  }

 private:
  UnaryPtr transform;
  Linear* decoder;
};
class RoFormerOnlyMLMHead final : public Unary {
 public:
  explicit RoFormerOnlyMLMHead(const EncoderConfig& c) : Unary("RoFormerOnlyMLMHead"), predictions(child<RoFormerHead>("predictions", c)) {}

 protected:
  X forward(X sequence_output) override { return predictions(sequence_output); }

 private:
  RoFormerHead& predictions;
};

NetworkPtr roformer(const Config& config, const Options& o) {
  EncoderForm f = bert_form("RoFormer", "roformer");
  f.adjust = [](EncoderConfig& c) {
    c.options.attention = Attention::eager;
    c.classifier_dropout = c.hidden_dropout;
  };
  f.typed_embeddings = [](const EncoderConfig& c) { return std::make_shared<RoFormerEmbeddings>(c); };
  f.project = true;
  f.ones_mask = true;
  f.masked_encoder = [](const EncoderConfig& c) {
    return make_classic_encoder(
        c, {.prefix = "RoFormer",
            .self_attention = [](const EncoderConfig& ec, I layer) { return std::make_shared<RoFormerSelfAttention>(ec, layer); },
            .embed_positions = [](const EncoderConfig& ec) { return std::make_shared<SinusoidalPositions>(ec); }});
  };
  f.pools = false;
  f.lm_head = [](const EncoderConfig& c) { return EncoderForm::Heads{{"cls", std::make_shared<RoFormerOnlyMLMHead>(c)}}; };
  f.classifier = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"classifier", make_classification_head("RoFormerClassificationHead", c, c.act)}};
  };
  f.choice = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"sequence_summary", make_sequence_summary("RoFormerSequenceSummary", c.file, c.hidden)},
                              {"classifier", make_linear(c.hidden, 1)}};
  };
  f.answers_are_views = true;
  return make_encoder(config, o, std::move(f));
}
const Family roformer_family{{"roformer"}, encoder_classes("RoFormer", roformer)};

}  // namespace
}  // namespace memest::hf
