// models/lilt: text and the boxes of its words in two streams, whose attention scores are added to each other.
#include "fake/checkpoint.h"
#include "models/hf/encoder.h"
#include "models/hf/padding.h"

namespace memest::hf {
namespace {

class TextEmbeddings final : public Base {
 public:
  explicit TextEmbeddings(const EncoderConfig& c)
      : Base("LiltTextEmbeddings"),
        word_embeddings(child<Embedding>("word_embeddings", c.vocab, c.hidden, c.pad_token)),
        position_embeddings(child<Embedding>("position_embeddings", c.positions, c.hidden, c.pad_token)),
        token_type_embeddings(child<Embedding>("token_type_embeddings", c.types, c.hidden)),
        norm(child<LayerNorm>("LayerNorm", c.hidden)),
        dropout(child<Dropout>("dropout", c.hidden_dropout)) {
    new_buffer("position_ids", {1, c.positions}, DType::int64);
  }
  /// The embeddings, and position_ids.
  Pair operator()(const X& input_ids, const X& token_type_ids) {
    Entered scope(*this);
    X position_ids = position_ids_of(input_ids, false);
    X inputs_embeds = word_embeddings(input_ids);
    X types = token_type_embeddings(token_type_ids);
    X embeddings = inputs_embeds.add(types);
    X positions = position_embeddings(position_ids);
    embeddings = embeddings.add_(positions);
    embeddings = norm(embeddings);
    embeddings = dropout(embeddings);
    return leave(Pair(embeddings, position_ids), inputs_embeds, types, positions);
  }

 private:
  Embedding &word_embeddings, &position_embeddings, &token_type_embeddings;
  LayerNorm& norm;
  Dropout& dropout;
};

I shrink_ratio(const EncoderConfig& c) {
  const I ratio = c.file.size_or("channel_shrink_ratio", 4);
  if (c.hidden % 6 != 0) throw c.file.error("hidden_size", "expected a multiple of 6, found " + std::to_string(c.hidden));
  if (c.head_dim % ratio != 0)
    throw c.file.error("channel_shrink_ratio",
                       "expected a divisor of a head's width " + std::to_string(c.head_dim) + ", found " + std::to_string(ratio));
  return ratio;
}
/// The sizes of the stream of boxes.
EncoderConfig shrunk(EncoderConfig c, I ratio) {
  c.hidden /= ratio;
  c.intermediate /= ratio;
  return c;
}

class LayoutEmbeddings final : public Base {
 public:
  LayoutEmbeddings(const EncoderConfig& c, I ratio) : Base("LiltLayoutEmbeddings") {
    const I boxes = c.file.size_or("max_2d_position_embeddings", 1024), part = c.hidden / 6, narrow = c.hidden / ratio;
    x_position_embeddings = &child<Embedding>("x_position_embeddings", boxes, part);
    y_position_embeddings = &child<Embedding>("y_position_embeddings", boxes, part);
    h_position_embeddings = &child<Embedding>("h_position_embeddings", boxes, part);
    w_position_embeddings = &child<Embedding>("w_position_embeddings", boxes, part);
    box_position_embeddings = &child<Embedding>("box_position_embeddings", c.positions, narrow, c.pad_token);
    box_linear_embeddings = &child<Linear>("box_linear_embeddings", c.hidden, narrow);
    norm = &child<LayerNorm>("LayerNorm", narrow);
    dropout = &child<Dropout>("dropout", c.hidden_dropout);
  }
  X operator()(const X& bbox, const X& position_ids) {
    Entered scope(*this);
    const auto side = [&](I i) { return bbox.whole_slices(2).select(2, i); };
    X left = (*x_position_embeddings)(side(0));
    X upper = (*y_position_embeddings)(side(1));
    X right = (*x_position_embeddings)(side(2));
    X lower = (*y_position_embeddings)(side(3));
    X height = (*h_position_embeddings)(side(3).sub(side(1)));
    X width = (*w_position_embeddings)(side(2).sub(side(0)));
    X spatial = cat({left, upper, right, lower, height, width}, -1);
    spatial = (*box_linear_embeddings)(spatial);
    X positions = (*box_position_embeddings)(position_ids);
    spatial = spatial.add(positions);
    spatial = (*norm)(spatial);
    spatial = (*dropout)(spatial);
    return leave(spatial, left, upper, right, lower, height, width, positions);
  }

 private:
  Embedding *x_position_embeddings, *y_position_embeddings, *h_position_embeddings, *w_position_embeddings, *box_position_embeddings;
  Linear* box_linear_embeddings;
  LayerNorm* norm;
  Dropout* dropout;
};

class SelfAttention final : public Base {
 public:
  SelfAttention(const EncoderConfig& c, I ratio) : Base("LiltSelfAttention"), heads_(c.heads), head_dim_(c.head_dim), ratio_(ratio) {
    const I narrow = c.hidden / ratio;
    query = &child<Linear>("query", c.hidden, c.hidden);
    key = &child<Linear>("key", c.hidden, c.hidden);
    value = &child<Linear>("value", c.hidden, c.hidden);
    layout_query = &child<Linear>("layout_query", narrow, narrow);
    layout_key = &child<Linear>("layout_key", narrow, narrow);
    layout_value = &child<Linear>("layout_value", narrow, narrow);
    dropout = &child<Dropout>("dropout", c.attention_dropout);
  }
  Pair operator()(const X& hidden_states, const X& layout_inputs, const X& attention_mask) {
    Entered scope(*this);
    X layout_value_layer = by_head((*layout_value)(layout_inputs), ratio_);
    X layout_key_layer = by_head((*layout_key)(layout_inputs), ratio_);
    X layout_query_layer = by_head((*layout_query)(layout_inputs), ratio_);
    X mixed_query_layer = (*query)(hidden_states);
    X key_layer = by_head((*key)(hidden_states), 1);
    X value_layer = by_head((*value)(hidden_states), 1);
    X query_layer = by_head(mixed_query_layer, 1);
    X attention_scores = query_layer.matmul(key_layer.transpose(-1, -2));
    X layout_attention_scores = layout_query_layer.matmul(layout_key_layer.transpose(-1, -2));
    X tmp_attention_scores = attention_scores.div(1.0);
    X tmp_layout_attention_scores = layout_attention_scores.div(1.0);
    attention_scores = tmp_attention_scores.add(tmp_layout_attention_scores);
    layout_attention_scores = tmp_layout_attention_scores.add(tmp_attention_scores);
    if (attention_mask) layout_attention_scores = layout_attention_scores.add(attention_mask);
    X layout_attention_probs = layout_attention_scores.softmax(-1);
    layout_attention_probs = (*dropout)(layout_attention_probs);
    X layout_context_layer = joined(layout_attention_probs.matmul(layout_value_layer));
    if (attention_mask) attention_scores = attention_scores.add(attention_mask);
    X attention_probs = attention_scores.softmax(-1);
    attention_probs = (*dropout)(attention_probs);
    X context_layer = joined(attention_probs.matmul(value_layer));
    return leave(Pair(context_layer, layout_context_layer), layout_value_layer, layout_key_layer, layout_query_layer, mixed_query_layer,
                 key_layer, value_layer, query_layer, attention_scores, layout_attention_scores, tmp_attention_scores,
                 tmp_layout_attention_scores, layout_attention_probs, attention_probs);
  }

 private:
  X by_head(const X& x, I ratio) const { return x.view(x.sizes().slice(0, 2) + Dims{heads_, head_dim_ / ratio}).permute({0, 2, 1, 3}); }
  static X joined(X context) {
    context = context.permute({0, 2, 1, 3}).contiguous();
    return context.view({context.size(0), context.size(1), -1});
  }
  I heads_, head_dim_, ratio_;
  Linear *query, *key, *value, *layout_query, *layout_key, *layout_value;
  Dropout* dropout;
};

class LiltAttention final : public Base {
 public:
  LiltAttention(const EncoderConfig& c, I ratio)
      : Base("LiltAttention"),
        self(child<SelfAttention>("self", c, ratio)),
        output(register_module("output", make_residual_output("LiltSelfOutput", c, c.hidden))),
        layout_output(register_module("layout_output", make_residual_output("LiltSelfOutput", shrunk(c, ratio), c.hidden / ratio))) {}
  Pair operator()(const X& hidden_states, const X& layout_inputs, const X& attention_mask) {
    Entered scope(*this);
    Pair self_outputs = self(hidden_states, layout_inputs, attention_mask);
    X attention_output = (*output)(self_outputs.first, hidden_states);
    X layout_attention_output = (*layout_output)(self_outputs.second, layout_inputs);
    return leave(Pair(attention_output, layout_attention_output), self_outputs.first, self_outputs.second);
  }

 private:
  SelfAttention& self;
  JointPtr output, layout_output;
};

class LiltLayer final : public Base {
 public:
  LiltLayer(const EncoderConfig& c, I ratio) : Base("LiltLayer"), options_(c.options) {
    const EncoderConfig narrow = shrunk(c, ratio);
    attention = &child<LiltAttention>("attention", c, ratio);
    intermediate = register_module("intermediate", make_intermediate("LiltIntermediate", c));
    output = register_module("output", make_residual_output("LiltOutput", c, c.intermediate));
    layout_intermediate = register_module("layout_intermediate", make_intermediate("LiltIntermediate", narrow));
    layout_output = register_module("layout_output", make_residual_output("LiltOutput", narrow, narrow.intermediate));
  }
  /// GradientCheckpointingLayer of two inputs and two outputs.
  Pair operator()(X hidden_states, X layout_inputs, const X& attention_mask) {
    Entered scope(*this);
    if (options_.checkpoint && training && runtime().grad_mode) {
      Region region = [this, attention_mask](const Tensors& inputs) {
        Pair outputs = forward(X(inputs[0]), X(inputs[1]), attention_mask);
        return Tensors{outputs.first, outputs.second};
      };
      Tensors inputs{hidden_states, layout_inputs};
      Tensors outputs =
          options_.reentrant ? checkpoint_reentrant(std::move(region), inputs) : memest::checkpoint(std::move(region), inputs);
      return {X(outputs[0]), X(outputs[1])};
    }
    Pair result = forward(hidden_states, layout_inputs, attention_mask);
    hidden_states.reset(), layout_inputs.reset();
    return result;
  }

 private:
  using Base::forward;
  Pair forward(const X& hidden_states, const X& layout_inputs, const X& attention_mask) {
    Pair attended = (*attention)(hidden_states, layout_inputs, attention_mask);
    X layer_output = feed_forward(*intermediate, *output, attended.first);
    X layout_layer_output = feed_forward(*layout_intermediate, *layout_output, attended.second);
    return leave(Pair(layer_output, layout_layer_output), attended.first, attended.second);
  }
  static X feed_forward(Unary& first, Joint& second, const X& attention_output) {
    X intermediate_output = first(attention_output);
    X layer_output = second(intermediate_output, attention_output);
    return leave(layer_output, intermediate_output);
  }
  const Options options_;
  LiltAttention* attention;
  UnaryPtr intermediate, layout_intermediate;
  JointPtr output, layout_output;
};

class LiltEncoder final : public Base {
 public:
  LiltEncoder(const EncoderConfig& c, I ratio)
      : Base("LiltEncoder"), layer(*this, "layer", c.layers, [&](I) { return std::make_shared<LiltLayer>(c, ratio); }) {}
  X operator()(X hidden_states, X layout_inputs, const X& attention_mask) {
    Entered scope(*this);
    Pair layer_outputs;
    for (auto& one : layer) {
      layer_outputs = (*one)(hidden_states, layout_inputs, attention_mask);
      hidden_states = layer_outputs.first;
      layout_inputs = layer_outputs.second;
    }
    return hidden_states;
  }

 private:
  Layers<LiltLayer> layer;
};

class LiltModel final : public EncoderBody {
 public:
  LiltModel(const EncoderConfig& c, I ratio, bool pools)
      : EncoderBody("LiltModel"),
        options_(c.options),
        file_(c.file),
        embeddings(child<TextEmbeddings>("embeddings", c)),
        layout_embeddings(child<LayoutEmbeddings>("layout_embeddings", c, ratio)),
        encoder(child<LiltEncoder>("encoder", c, ratio)) {
    if (pools) pooler_ = register_module("pooler", make_pooler("LiltPooler", c.hidden, c.hidden, "tanh"));
  }

 protected:
  /// Without boxes the model makes some of zeros.
  EncoderOutput forward(X input_ids, bool) override {
    warn_if_padding(file_, input_ids);
    X bbox = zeros(input_ids.sizes() + Dims{4}, DType::int64);
    X attention_mask = ones(input_ids.sizes(), DType::float32);
    X token_type_ids = zeros(input_ids.sizes(), DType::int64);
    auto [embedding_output, position_ids] = embeddings(input_ids, token_type_ids);
    attention_mask = create_bidirectional_mask({.options = options_, .inputs_embeds = embedding_output, .attention_mask = attention_mask});
    X layout_embedding_output = layout_embeddings(bbox, position_ids);
    X sequence_output = encoder(embedding_output, layout_embedding_output, attention_mask);
    X pooled_output;
    if (pooler_) pooled_output = (*pooler_)(sequence_output);
    return leave(EncoderOutput{sequence_output, pooled_output}, bbox, attention_mask, token_type_ids, position_ids, embedding_output,
                 layout_embedding_output);
  }

 private:
  const Options options_;
  Config file_;
  TextEmbeddings& embeddings;
  LayoutEmbeddings& layout_embeddings;
  LiltEncoder& encoder;
  UnaryPtr pooler_;
};

NetworkPtr lilt(const Config& config, const Options& o) {
  EncoderForm f;
  f.prefix = "Lilt";
  f.base_prefix = "lilt";
  f.adjust = [](EncoderConfig& c) {
    c.options.attention = Attention::eager;
    c.is_decoder = false;
  };
  f.body = [](const EncoderConfig& c, bool pools) { return std::make_shared<LiltModel>(c, shrink_ratio(c), pools); };
  f.classifier = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"classifier", make_classification_head("LiltClassificationHead", c, "tanh")}};
  };
  return make_encoder(config, o, std::move(f));
}
const Family lilt_family{{"lilt"},
                         {{Task::seq_cls, "LiltForSequenceClassification", lilt},
                          {Task::token_cls, "LiltForTokenClassification", lilt},
                          {Task::question_answering, "LiltForQuestionAnswering", lilt},
                          {Task::base, "LiltModel", lilt}}};

}  // namespace
}  // namespace memest::hf
