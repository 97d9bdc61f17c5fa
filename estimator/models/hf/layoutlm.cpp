// models/layoutlm/modeling_layoutlm.py, without boxes given: all are zero.
#include "models/hf/encoder.h"
#include "models/hf/padding.h"

namespace memest::hf {
namespace {

/// Words, positions, the six tables of boxes, and types.
class LayoutLMEmbeddings final : public Base {
 public:
  explicit LayoutLMEmbeddings(const EncoderConfig& c)
      : Base("LayoutLMEmbeddings"),
        word_embeddings(child<Embedding>("word_embeddings", c.vocab, c.hidden, c.pad_token)),
        position_embeddings(child<Embedding>("position_embeddings", c.positions, c.hidden)),
        x_position_embeddings(box_table("x_position_embeddings", c)),
        y_position_embeddings(box_table("y_position_embeddings", c)),
        h_position_embeddings(box_table("h_position_embeddings", c)),
        w_position_embeddings(box_table("w_position_embeddings", c)),
        token_type_embeddings(child<Embedding>("token_type_embeddings", c.types, c.hidden)),
        norm(child<LayerNorm>("LayerNorm", c.hidden)),
        dropout(child<Dropout>("dropout", c.hidden_dropout)) {
    new_buffer("position_ids", {1, c.positions}, DType::int64);
  }
  X operator()(const X& input_ids, const X& bbox, const X& token_type_ids) {
    Entered scope(*this);
    X position_ids = X(buffer(0)).whole_slices(1).slice(1, 0, input_ids.size(1));
    X words = word_embeddings(input_ids);
    X positions = position_embeddings(position_ids);
    auto edge = [&](I i) { return bbox.whole_slices(2).select(2, i); };
    X left = x_position_embeddings(edge(0));
    X upper = y_position_embeddings(edge(1));
    X right = x_position_embeddings(edge(2));
    X lower = y_position_embeddings(edge(3));
    X height = h_position_embeddings(edge(3).sub(edge(1)));
    X width = w_position_embeddings(edge(2).sub(edge(0)));
    X types = token_type_embeddings(token_type_ids);
    X embeddings = words.add(positions).add(left).add(upper).add(right).add(lower).add(height).add(width).add(types);
    embeddings = norm(embeddings);
    embeddings = dropout(embeddings);
    return leave(embeddings, words, positions, left, upper, right, lower, height, width, types);
  }

 private:
  Embedding& box_table(const char* name, const EncoderConfig& c) {
    return child<Embedding>(name, c.file.size_or("max_2d_position_embeddings", 1024), c.hidden);
  }

  Embedding &word_embeddings, &position_embeddings, &x_position_embeddings, &y_position_embeddings, &h_position_embeddings,
      &w_position_embeddings, &token_type_embeddings;
  LayerNorm& norm;
  Dropout& dropout;
};

class LayoutLMSelfAttention final : public Mixer {
 public:
  explicit LayoutLMSelfAttention(const EncoderConfig& c)
      : Mixer("LayoutLMSelfAttention"),
        options_(c.options),
        head_dim_(c.head_dim),
        dropout_(c.attention_dropout),
        query(child<Linear>("query", c.hidden, c.hidden)),
        key(child<Linear>("key", c.hidden, c.hidden)),
        value(child<Linear>("value", c.hidden, c.hidden)) {
    child<Dropout>("dropout", c.attention_dropout);
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1);
    const Dims hidden_shape = input_shape + Dims{-1, head_dim_};
    X query_states = query(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_states = key(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_states = value(hidden_states).view(hidden_shape).transpose(1, 2);
    auto [attn_output, attn_weights] = attention_interface(options_, query_states, key_states, value_states,
                                                           {.mask = call.mask, .dropout = training ? dropout_ : 0.0, .training = training});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    return leave(Pair(attn_output, attn_weights), query_states, key_states, value_states);
  }

 private:
  const Options options_;
  I head_dim_;
  double dropout_;
  Linear &query, &key, &value;
};

class LayoutLMAttention final : public Mixer {
 public:
  explicit LayoutLMAttention(const EncoderConfig& c) : Mixer("LayoutLMAttention") {
    self_ = register_module("self", std::make_shared<LayoutLMSelfAttention>(c));
    output_ = register_module("output", make_residual_output("LayoutLMSelfOutput", c, c.hidden));
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states, weights;
    std::tie(hidden_states, weights) = (*self_)(hidden_states, call);
    hidden_states = (*output_)(hidden_states, residual);
    return {hidden_states, {}};
  }

 private:
  MixerPtr self_;
  JointPtr output_;
};

class LayoutLMLayer final : public DecoderLayer {
 public:
  explicit LayoutLMLayer(const EncoderConfig& c) : DecoderLayer("LayoutLMLayer", c.options) {
    attention_ = register_module("attention", std::make_shared<LayoutLMAttention>(c));
    intermediate_ = register_module("intermediate", make_intermediate("LayoutLMIntermediate", c));
    output_ = register_module("output", make_residual_output("LayoutLMOutput", c, c.intermediate));
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    hidden_states = (*attention_)(hidden_states, call).first;
    hidden_states = feed_forward_chunk(hidden_states);
    return hidden_states;
  }

 private:
  X feed_forward_chunk(const X& attention_output) {
    X intermediate_output = (*intermediate_)(attention_output);
    return (*output_)(intermediate_output, attention_output);
  }

  MixerPtr attention_;
  UnaryPtr intermediate_;
  JointPtr output_;
};

class LayoutLMEncoder final : public Base {
 public:
  explicit LayoutLMEncoder(const EncoderConfig& c)
      : Base("LayoutLMEncoder"), layers_(*this, "layer", c.layers, [&](I) { return std::make_shared<LayoutLMLayer>(c); }) {}
  X operator()(X hidden_states, const X& attention_mask) {
    Entered scope(*this);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, {attention_mask, {}, {}});
    return hidden_states;
  }

 private:
  Layers<LayoutLMLayer> layers_;
};

/// Has a pooler in every class.
class LayoutLMModel final : public EncoderBody {
 public:
  explicit LayoutLMModel(const EncoderConfig& c)
      : EncoderBody("LayoutLMModel"),
        file_(c.file),
        embeddings(child<LayoutLMEmbeddings>("embeddings", c)),
        encoder(child<LayoutLMEncoder>("encoder", c)),
        pooler_(register_module("pooler", make_pooler("LayoutLMPooler", c.hidden, c.hidden, "tanh"))) {}

 protected:
  EncoderOutput forward(X input_ids, bool) override {
    const Dims input_shape = input_ids.sizes();
    warn_if_padding(file_, input_ids);
    X attention_mask = ones(input_shape, DType::float32);
    X token_type_ids = zeros(input_shape, DType::int64);
    X bbox = zeros(input_shape + Dims{4}, DType::int64);
    X extended_attention_mask = attention_mask.unsqueeze(1).unsqueeze(2);
    extended_attention_mask = extended_attention_mask.to(pooler_->parameters()[0].dtype());
    extended_attention_mask = X(aten("rsub", {Tensor(extended_attention_mask), 1.0})).mul(-1e30);
    X embedding_output = embeddings(input_ids, bbox, token_type_ids);
    X sequence_output = encoder(embedding_output, extended_attention_mask);
    X pooled_output = (*pooler_)(sequence_output);
    return {sequence_output, pooled_output};
  }

 private:
  Config file_;
  LayoutLMEmbeddings& embeddings;
  LayoutLMEncoder& encoder;
  UnaryPtr pooler_;
};

NetworkPtr layoutlm(const Config& config, const Options& o) {
  EncoderForm f = bert_form("LayoutLM", "layoutlm");
  f.adjust = [](EncoderConfig& c) { c.classifier_dropout = c.hidden_dropout; };
  f.body = [](const EncoderConfig& c, bool) { return std::make_shared<LayoutLMModel>(c); };
  return make_encoder(config, o, std::move(f));
}
const Family layoutlm_family{{"layoutlm"},
                             {{Task::masked_lm, "LayoutLMForMaskedLM", layoutlm},
                              {Task::seq_cls, "LayoutLMForSequenceClassification", layoutlm},
                              {Task::token_cls, "LayoutLMForTokenClassification", layoutlm},
                              {Task::question_answering, "LayoutLMForQuestionAnswering", layoutlm},
                              {Task::base, "LayoutLMModel", layoutlm}}};

}  // namespace
}  // namespace memest::hf
