// models/mobilebert/modeling_mobilebert.py.
#include "models/hf/encoder.h"

namespace memest::hf {
namespace {

/// NoNorm: x * weight + bias.
class NoNorm final : public Unary {
 public:
  explicit NoNorm(I width) : Unary("NoNorm") {
    new_parameter("bias", {width});
    new_parameter("weight", {width});
  }

 protected:
  X forward(X input_tensor) override { return input_tensor.mul(X(parameter(1))).add(X(parameter(0))); }
};

struct MobileConfig {
  explicit MobileConfig(const EncoderConfig& config)
      : c(config),
        bottleneck(c.file.boolean_or("use_bottleneck", true)),
        bottleneck_attention(c.file.boolean_or("use_bottleneck_attention", false)),
        shared(c.file.boolean_or("key_query_shared_bottleneck", true)),
        trigram(c.file.boolean_or("trigram_input", true)),
        intra(c.file.size_or("intra_bottleneck_size", 128)),
        true_hidden(bottleneck ? intra : c.hidden),
        networks(c.file.size_or("num_feedforward_networks", 4)) {
    if (true_hidden % c.heads != 0)
      throw c.file.error("num_attention_heads", "expected a divisor of " + std::to_string(true_hidden) + ", the width inside the layers");
  }
  UnaryPtr norm(I width) const {
    const std::string kind = c.file.text_or("normalization_type", "no_norm");
    if (kind == "no_norm") return std::make_shared<NoNorm>(width);
    if (kind == "layer_norm") return make_norm(Norm::layer_norm, width, "LayerNorm");
    throw c.file.error("normalization_type", "expected no_norm or layer_norm, found '" + kind.substr(0, 40) + "'");
  }
  const EncoderConfig& c;
  bool bottleneck, bottleneck_attention, shared, trigram;
  I intra, true_hidden, networks;
};

class MobileBertEmbeddings final : public Unary {
 public:
  explicit MobileBertEmbeddings(const MobileConfig& m)
      : Unary("MobileBertEmbeddings"),
        trigram_(m.trigram),
        word_embeddings(child<Embedding>("word_embeddings", m.c.vocab, m.c.embedding, m.c.pad_token)),
        position_embeddings(child<Embedding>("position_embeddings", m.c.positions, m.c.hidden)),
        token_type_embeddings(child<Embedding>("token_type_embeddings", m.c.types, m.c.hidden)),
        embedding_transformation(child<Linear>("embedding_transformation", m.c.embedding * (m.trigram ? 3 : 1), m.c.hidden)),
        transforms_(m.trigram || m.c.embedding != m.c.hidden),
        norm_(register_module("LayerNorm", m.norm(m.c.hidden))),
        dropout(child<Dropout>("dropout", m.c.hidden_dropout)) {
    new_buffer("position_ids", {1, m.c.positions}, DType::int64);
  }

 protected:
  X forward(X input_ids) override {
    X position_ids = X(buffer(0)).whole_slices(1).slice(1, 0, input_ids.size(1));
    X token_type_ids = zeros(input_ids.sizes(), DType::int64);
    X inputs_embeds = word_embeddings(input_ids);
    if (trigram_) {
      X next =
          aten("constant_pad_nd", {Tensor(inputs_embeds.whole_slices(1).slice(1, 1, std::nullopt)), list_of(Dims{0, 0, 0, 1, 0, 0}), 0.0});
      X previous = aten("constant_pad_nd", {Tensor(inputs_embeds.whole_slices(1).slice(1, 0, -1)), list_of(Dims{0, 0, 1, 0, 0, 0}), 0.0});
      inputs_embeds = cat({std::move(next), inputs_embeds, std::move(previous)}, 2);
    }
    if (transforms_) inputs_embeds = embedding_transformation(inputs_embeds);
    X positions = position_embeddings(position_ids);
    X types = token_type_embeddings(token_type_ids);
    X embeddings = inputs_embeds.add(positions).add(types);
    embeddings = (*norm_)(embeddings);
    embeddings = dropout(embeddings);
    return leave(embeddings, token_type_ids, inputs_embeds, positions, types);
  }

 private:
  bool trigram_;
  Embedding &word_embeddings, &position_embeddings, &token_type_embeddings;
  Linear& embedding_transformation;
  bool transforms_;
  UnaryPtr norm_;
  Dropout& dropout;
};

/// What the bottleneck makes of a layer's input.
struct Tensors4 {
  X query, key, value, layer_input;
};

class MobileBertSelfAttention final : public Base {
 public:
  explicit MobileBertSelfAttention(const MobileConfig& m)
      : Base("MobileBertSelfAttention"),
        options_(m.c.options),
        head_dim_(m.true_hidden / m.c.heads),
        dropout_(m.c.attention_dropout),
        query(child<Linear>("query", m.true_hidden, m.true_hidden)),
        key(child<Linear>("key", m.true_hidden, m.true_hidden)),
        value(child<Linear>("value", m.bottleneck_attention ? m.true_hidden : m.c.hidden, m.true_hidden)) {
    child<Dropout>("dropout", m.c.attention_dropout);
  }
  Pair operator()(const Tensors4& t) {
    Entered scope(*this);
    const Dims input_shape = t.query.sizes().slice(0, t.query.dim() - 1);
    const Dims hidden_shape = input_shape + Dims{-1, head_dim_};
    X query_layer = query(t.query).view(hidden_shape).transpose(1, 2);
    X key_layer = key(t.key).view(hidden_shape).transpose(1, 2);
    X value_layer = value(t.value).view(hidden_shape).transpose(1, 2);
    auto [attn_output, attn_weights] = bert_attention_interface(
        options_, query_layer, key_layer, value_layer, {.dropout = training ? dropout_ : 0.0, .training = training, .causal = false});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    return leave(Pair(attn_output, attn_weights), query_layer, key_layer, value_layer);
  }

 private:
  const Options options_;
  I head_dim_;
  double dropout_;
  Linear &query, &key, &value;
};

/// dense, dropout where it has one, the residual and the norm: MobileBertSelfOutput, OutputBottleneck, FFNOutput.
class MobileResidual final : public Joint {
 public:
  MobileResidual(std::string type, const MobileConfig& m, I in, I out, bool drops)
      : Joint(std::move(type)),
        dense(child<Linear>("dense", in, out)),
        norm_(register_module("LayerNorm", m.norm(out))),
        dropout(drops ? &child<Dropout>("dropout", m.c.hidden_dropout) : nullptr) {}

 protected:
  X forward(X hidden_states, X residual_tensor) override {
    X layer_outputs = dense(hidden_states);
    if (dropout) layer_outputs = (*dropout)(layer_outputs);
    layer_outputs = (*norm_)(layer_outputs.add(residual_tensor));
    return layer_outputs;
  }

 private:
  Linear& dense;
  UnaryPtr norm_;
  Dropout* dropout;
};

class MobileBertAttention final : public Base {
 public:
  explicit MobileBertAttention(const MobileConfig& m)
      : Base("MobileBertAttention"),
        self(child<MobileBertSelfAttention>("self", m)),
        output(child<MobileResidual>("output", "MobileBertSelfOutput", m, m.true_hidden, m.true_hidden, !m.bottleneck)) {}
  Pair operator()(const Tensors4& t) {
    Entered scope(*this);
    auto [attention_output, attn_weights] = self(t);
    attention_output = output(attention_output, t.layer_input);
    return {attention_output, attn_weights};
  }

 private:
  MobileBertSelfAttention& self;
  MobileResidual& output;
};

class MobileBertIntermediate final : public Unary {
 public:
  explicit MobileBertIntermediate(const MobileConfig& m)
      : Unary("MobileBertIntermediate"),
        dense(child<Linear>("dense", m.true_hidden, m.c.intermediate)),
        intermediate_act_fn(child<Activation>("intermediate_act_fn", m.c.act)) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = dense(hidden_states);
    hidden_states = intermediate_act_fn(hidden_states);
    return hidden_states;
  }

 private:
  Linear& dense;
  Activation& intermediate_act_fn;
};

class MobileBertOutput final : public Base {
 public:
  explicit MobileBertOutput(const MobileConfig& m)
      : Base("MobileBertOutput"),
        dense(child<Linear>("dense", m.c.intermediate, m.true_hidden)),
        norm_(register_module("LayerNorm", m.norm(m.true_hidden))) {
    if (m.bottleneck)
      bottleneck = &child<MobileResidual>("bottleneck", "OutputBottleneck", m, m.true_hidden, m.c.hidden, true);
    else
      dropout = &child<Dropout>("dropout", m.c.hidden_dropout);
  }
  X operator()(const X& intermediate_states, const X& residual_tensor_1, const X& residual_tensor_2) {
    Entered scope(*this);
    X layer_output = dense(intermediate_states);
    if (dropout) layer_output = (*dropout)(layer_output);
    layer_output = (*norm_)(layer_output.add(residual_tensor_1));
    if (bottleneck) layer_output = (*bottleneck)(layer_output, residual_tensor_2);
    return layer_output;
  }

 private:
  Linear& dense;
  UnaryPtr norm_;
  Dropout* dropout = nullptr;
  MobileResidual* bottleneck = nullptr;
};

class BottleneckLayer final : public Unary {
 public:
  explicit BottleneckLayer(const MobileConfig& m)
      : Unary("BottleneckLayer"),
        dense(child<Linear>("dense", m.c.hidden, m.intra)),
        norm_(register_module("LayerNorm", m.norm(m.intra))) {}

 protected:
  X forward(X hidden_states) override {
    X layer_input = dense(hidden_states);
    layer_input = (*norm_)(layer_input);
    return layer_input;
  }

 private:
  Linear& dense;
  UnaryPtr norm_;
};

class Bottleneck final : public Base {
 public:
  explicit Bottleneck(const MobileConfig& m)
      : Base("Bottleneck"),
        bottleneck_attention_(m.bottleneck_attention),
        input(child<BottleneckLayer>("input", m)),
        attention(m.shared ? &child<BottleneckLayer>("attention", m) : nullptr) {}
  Tensors4 operator()(const X& hidden_states) {
    Entered scope(*this);
    X bottlenecked = input(hidden_states);
    if (bottleneck_attention_) return {bottlenecked, bottlenecked, bottlenecked, bottlenecked};
    if (!attention) return {hidden_states, hidden_states, hidden_states, bottlenecked};
    X shared = (*attention)(hidden_states);
    return {shared, shared, hidden_states, bottlenecked};
  }

 private:
  bool bottleneck_attention_;
  BottleneckLayer &input, *attention;
};

class FfnLayer final : public Unary {
 public:
  explicit FfnLayer(const MobileConfig& m)
      : Unary("FFNLayer"),
        intermediate(child<MobileBertIntermediate>("intermediate", m)),
        output(child<MobileResidual>("output", "FFNOutput", m, m.c.intermediate, m.true_hidden, false)) {}

 protected:
  X forward(X hidden_states) override {
    X intermediate_output = intermediate(hidden_states);
    X layer_outputs = output(intermediate_output, hidden_states);
    return layer_outputs;
  }

 private:
  MobileBertIntermediate& intermediate;
  MobileResidual& output;
};

class MobileBertLayer final : public DecoderLayer {
 public:
  explicit MobileBertLayer(const MobileConfig& m)
      : DecoderLayer("MobileBertLayer", m.c.options),
        attention(child<MobileBertAttention>("attention", m)),
        intermediate(child<MobileBertIntermediate>("intermediate", m)),
        output(child<MobileBertOutput>("output", m)) {
    if (m.bottleneck) bottleneck = &child<Bottleneck>("bottleneck", m);
    if (m.networks > 1)
      ffn_ = std::make_unique<Layers<FfnLayer>>(*this, "ffn", m.networks - 1, [&](I) { return std::make_shared<FfnLayer>(m); });
  }

 protected:
  X forward(X hidden_states, const LayerCall&) override {
    Tensors4 t = bottleneck ? (*bottleneck)(hidden_states) : Tensors4{hidden_states, hidden_states, hidden_states, hidden_states};
    auto [self_attention_output, weights] = attention(t);
    X attention_output = self_attention_output;
    if (ffn_)
      for (auto& ffn_module : *ffn_) attention_output = (*ffn_module)(attention_output);
    X intermediate_output = intermediate(attention_output);
    X layer_output = output(intermediate_output, attention_output, hidden_states);
    return leave(layer_output, t.query, t.key, t.value, t.layer_input, self_attention_output, weights, attention_output,
                 intermediate_output);
  }

 private:
  MobileBertAttention& attention;
  MobileBertIntermediate& intermediate;
  MobileBertOutput& output;
  Bottleneck* bottleneck = nullptr;
  std::unique_ptr<Layers<FfnLayer>> ffn_;
};

class MobileBertPooler final : public Unary {
 public:
  explicit MobileBertPooler(const EncoderConfig& c)
      : Unary("MobileBertPooler"),
        dense(c.file.boolean_or("classifier_activation", true) ? &child<Linear>("dense", c.hidden, c.hidden) : nullptr) {}

 protected:
  X forward(X hidden_states) override {
    X first_token_tensor = hidden_states.whole_slices(1).select(1, 0);
    if (!dense) return first_token_tensor;
    X pooled_output = (*dense)(first_token_tensor);
    pooled_output = pooled_output.tanh();
    return pooled_output;
  }

 private:
  Linear* dense;
};

/// The decoder's weight, the embeddings', is narrower than the hidden states: a second matrix stands beside it.
class MobileBertHead final : public Unary {
 public:
  explicit MobileBertHead(const EncoderConfig& c) : Unary("MobileBertLMPredictionHead") {
    new_parameter("bias", {c.vocab});
    transform_ = register_module("transform", make_head_transform("MobileBertPredictionHeadTransform", c.hidden, c.hidden, c.act));
    if (c.hidden <= c.embedding)
      throw c.file.error("embedding_size",
                         "expected less than the hidden_size " + std::to_string(c.hidden) + ", found " + std::to_string(c.embedding));
    dense = &child<Linear>("dense", c.vocab, c.hidden - c.embedding, false);
    decoder = &child<Linear>("decoder", c.embedding, c.vocab);
  }

 protected:
  X forward(X hidden_states) override {
    hidden_states = (*transform_)(hidden_states);
    hidden_states = hidden_states.matmul(cat({X(decoder->weight()).t(), X(dense->weight())}, 0));
    hidden_states = hidden_states.add_(X(decoder->bias()));
    return hidden_states;
  }

 private:
  UnaryPtr transform_;
  Linear *dense, *decoder;
};
class MobileBertOnlyMLMHead final : public Unary {
 public:
  explicit MobileBertOnlyMLMHead(const EncoderConfig& c)
      : Unary("MobileBertOnlyMLMHead"), predictions(child<MobileBertHead>("predictions", c)) {}

 protected:
  X forward(X sequence_output) override { return predictions(sequence_output); }

 private:
  MobileBertHead& predictions;
};

NetworkPtr mobilebert(const Config& config, const Options& o) {
  EncoderForm f = bert_form("MobileBert", "mobilebert");
  f.adjust = [](EncoderConfig& c) {
    c.embedding = c.file.size_or("embedding_size", 128);
    c.act = c.file.text_or("hidden_act", "relu");
    c.hidden_dropout = c.file.number_or("hidden_dropout_prob", 0.0);
    c.classifier_dropout = c.file.number_or("classifier_dropout", c.hidden_dropout);
    c.is_decoder = false;
  };
  f.embeddings = [](const EncoderConfig& c) { return std::make_shared<MobileBertEmbeddings>(MobileConfig(c)); };
  f.layer = [](const EncoderConfig& c, I) { return std::make_shared<MobileBertLayer>(MobileConfig(c)); };
  f.pooler = [](const EncoderConfig& c) { return EncoderForm::Heads{{"pooler", std::make_shared<MobileBertPooler>(c)}}; };
  f.lm_head = [](const EncoderConfig& c) { return EncoderForm::Heads{{"cls", std::make_shared<MobileBertOnlyMLMHead>(c)}}; };
  f.pretraining = [](const EncoderConfig& c) {
    return EncoderForm::TwoHeads{
        "cls", {{"predictions", std::make_shared<MobileBertHead>(c)}}, {{"seq_relationship", make_linear(c.hidden, 2)}}};
  };
  return make_encoder(config, o, std::move(f));
}
const Family mobilebert_family{{"mobilebert"}, bidirectional_classes("MobileBert", mobilebert, true)};

}  // namespace
}  // namespace memest::hf
