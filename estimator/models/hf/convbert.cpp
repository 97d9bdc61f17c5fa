// models/convbert: half of the heads are convolutions with kernels that depend on the tokens.
#include "models/hf/classic_encoder.h"
#include "models/hf/generator_predictions.h"

namespace memest::hf {
namespace {

class ConvBertEmbeddings final : public Unary {
 public:
  explicit ConvBertEmbeddings(const EncoderConfig& c)
      : Unary("ConvBertEmbeddings"),
        word_embeddings(child<Embedding>("word_embeddings", c.vocab, c.embedding, c.pad_token)),
        position_embeddings(child<Embedding>("position_embeddings", c.positions, c.embedding)),
        token_type_embeddings(child<Embedding>("token_type_embeddings", c.types, c.embedding)),
        norm(child<LayerNorm>("LayerNorm", c.embedding)),
        dropout(child<Dropout>("dropout", c.hidden_dropout)) {
    new_buffer("position_ids", {1, c.positions}, DType::int64);
    new_buffer("token_type_ids", {1, c.positions}, DType::int64);
  }

 protected:
  X forward(X input_ids) override {
    const I length = input_ids.size(1);
    X position_ids = X(buffer(0)).whole_slices(1).slice(1, std::nullopt, length);
    X token_type_ids = X(buffer(1)).whole_slices(1).slice(1, std::nullopt, length).expand({input_ids.size(0), length});
    X inputs_embeds = word_embeddings(input_ids);
    X positions = position_embeddings(position_ids);
    X types = token_type_embeddings(token_type_ids);
    X embeddings = inputs_embeds.add(positions).add(types);
    embeddings = norm(embeddings);
    embeddings = dropout(embeddings);
    return leave(embeddings, inputs_embeds, positions, types);
  }

 private:
  Embedding &word_embeddings, &position_embeddings, &token_type_embeddings;
  LayerNorm& norm;
  Dropout& dropout;
};

class SeparableConv1D final : public Unary {
 public:
  SeparableConv1D(I in, I out, I kernel) : Unary("SeparableConv1D") {
    depthwise = &child<Conv1d>("depthwise", in, in, kernel, 1, kernel / 2, false, in);
    pointwise = &child<Conv1d>("pointwise", in, out, 1, 1, 0, false);
    new_parameter("bias", {out, 1});
  }

 protected:
  X forward(X hidden_states) override {
    X x = (*depthwise)(hidden_states);
    x = (*pointwise)(x);
    x = x.add_(X(parameter(0)));
    return x;
  }

 private:
  Conv1d *depthwise, *pointwise;
};

class ConvBertSelfAttention final : public Mixer {
 public:
  explicit ConvBertSelfAttention(const EncoderConfig& c)
      : Mixer("ConvBertSelfAttention"),
        heads_(std::max<I>(1, c.heads / c.file.size_or("head_ratio", 2))),
        head_dim_(c.hidden / heads_ / 2),
        width_(heads_ * head_dim_),
        kernel_(c.file.size_or("conv_kernel_size", 9)) {
    if (c.hidden % heads_ != 0 || head_dim_ < 1)
      throw c.file.error("head_ratio",
                         "the hidden size " + std::to_string(c.hidden) + " is not a multiple of " + std::to_string(heads_) + " heads");
    query = &child<Linear>("query", c.hidden, width_);
    key = &child<Linear>("key", c.hidden, width_);
    value = &child<Linear>("value", c.hidden, width_);
    key_conv_attn_layer = &child<SeparableConv1D>("key_conv_attn_layer", c.hidden, width_, kernel_);
    conv_kernel_layer_ = &child<Linear>("conv_kernel_layer", width_, checked_mul(heads_, kernel_));
    conv_out_layer_ = &child<Linear>("conv_out_layer", c.hidden, width_);
    dropout = &child<Dropout>("dropout", c.attention_dropout);
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const I batch = hidden_states.size(0);
    const Dims hidden_shape = hidden_states.sizes().slice(0, 2) + Dims{-1, head_dim_};
    X mixed_key_layer = (*key)(hidden_states);
    X mixed_value_layer = (*value)(hidden_states);
    X mixed_key_conv_attn_layer = (*key_conv_attn_layer)(hidden_states.transpose(1, 2));
    mixed_key_conv_attn_layer = mixed_key_conv_attn_layer.transpose(1, 2);
    X mixed_query_layer = (*query)(hidden_states);
    X query_layer = mixed_query_layer.view(hidden_shape).transpose(1, 2);
    X key_layer = mixed_key_layer.view(hidden_shape).transpose(1, 2);
    X value_layer = mixed_value_layer.view(hidden_shape).transpose(1, 2);
    X conv_attn_layer = mixed_key_conv_attn_layer.mul(mixed_query_layer);
    X conv_kernel_layer = (*conv_kernel_layer_)(conv_attn_layer);
    conv_kernel_layer = conv_kernel_layer.reshape({-1, kernel_, 1});
    conv_kernel_layer = conv_kernel_layer.softmax(1);
    X conv_out_layer = (*conv_out_layer_)(hidden_states);
    conv_out_layer = conv_out_layer.reshape({batch, -1, width_});
    conv_out_layer = conv_out_layer.transpose(1, 2).contiguous().unsqueeze(-1);
    conv_out_layer = aten("im2col", {Tensor(conv_out_layer), list_of(Dims{kernel_, 1}), list_of(Dims{1, 1}),
                                     list_of(Dims{(kernel_ - 1) / 2, 0}), list_of(Dims{1, 1})});
    conv_out_layer = conv_out_layer.transpose(1, 2).reshape({batch, -1, width_, kernel_});
    conv_out_layer = conv_out_layer.reshape({-1, head_dim_, kernel_});
    conv_out_layer = conv_out_layer.matmul(conv_kernel_layer);
    conv_out_layer = conv_out_layer.reshape({-1, width_});
    X attention_scores = query_layer.matmul(key_layer.transpose(-1, -2));
    attention_scores = attention_scores.div(1.0);
    if (call.mask) attention_scores = attention_scores.add(call.mask);
    X attention_probs = attention_scores.softmax(-1);
    attention_probs = (*dropout)(attention_probs);
    X context_layer = attention_probs.matmul(value_layer);
    context_layer = context_layer.permute({0, 2, 1, 3}).contiguous();
    X conv_out = conv_out_layer.reshape({batch, -1, heads_, head_dim_});
    context_layer = cat({context_layer, conv_out}, 2);
    context_layer = context_layer.view({batch, context_layer.size(1), 2 * width_});
    return leave(Pair(context_layer, attention_probs), mixed_key_layer, mixed_value_layer, mixed_key_conv_attn_layer, mixed_query_layer,
                 query_layer, key_layer, value_layer, conv_attn_layer, conv_kernel_layer, conv_out_layer, attention_scores);
  }

 private:
  I heads_, head_dim_, width_, kernel_;
  Linear *query, *key, *value, *conv_kernel_layer_, *conv_out_layer_;
  SeparableConv1D* key_conv_attn_layer;
  Dropout* dropout;
};

/// ConvBertAttention keeps the weights that its self-attention returns until it returns, itself without them.
class ConvBertAttention final : public Mixer {
 public:
  explicit ConvBertAttention(const EncoderConfig& c)
      : Mixer("ConvBertAttention"),
        self(child<ConvBertSelfAttention>("self", c)),
        output(register_module("output", make_residual_output("ConvBertSelfOutput", c, c.hidden))) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    auto [context_layer, weights] = self(hidden_states, call);
    X attention_output = (*output)(context_layer, hidden_states);
    return {leave(attention_output, context_layer, weights), {}};
  }

 private:
  ConvBertSelfAttention& self;
  JointPtr output;
};

class ConvBertLayer final : public DecoderLayer {
 public:
  explicit ConvBertLayer(const EncoderConfig& c)
      : DecoderLayer("ConvBertLayer", c.options),
        attention(child<ConvBertAttention>("attention", c)),
        intermediate(register_module("intermediate", make_intermediate("ConvBertIntermediate", c))),
        output(register_module("output", make_residual_output("ConvBertOutput", c, c.intermediate))) {}

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X attention_output = attention(hidden_states, call).first;
    X intermediate_output = (*intermediate)(attention_output);
    X layer_output = (*output)(intermediate_output, attention_output);
    return leave(layer_output, attention_output, intermediate_output);
  }

 private:
  ConvBertAttention& attention;
  UnaryPtr intermediate;
  JointPtr output;
};

NetworkPtr convbert(const Config& config, const Options& o) {
  if (config.integer_or("num_groups", 1) != 1)
    throw config.error("num_groups", "memest builds ConvBERT with one group of its linear layers");
  EncoderForm f = bert_form("ConvBert", "convbert");
  f.adjust = [](EncoderConfig& c) {
    c.options.attention = Attention::eager;
    c.is_decoder = false;
  };
  f.project = true;
  f.ones_mask = true;
  f.pools = false;
  f.embeddings = [](const EncoderConfig& c) { return std::make_shared<ConvBertEmbeddings>(c); };
  f.layer = [](const EncoderConfig& c, I) { return std::make_shared<ConvBertLayer>(c); };
  f.lm_head = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"generator_predictions", std::make_shared<GeneratorPredictions>("ConvBert", c)},
                              {"generator_lm_head", make_linear(c.embedding, c.vocab)}};
  };
  f.ties = {{"generator_lm_head.weight", "convbert.embeddings.word_embeddings.weight"}};
  f.classifier = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"classifier", make_classification_head("ConvBertClassificationHead", c, c.act)}};
  };
  f.choice = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"sequence_summary", make_sequence_summary("ConvBertSequenceSummary", c.file, c.hidden)},
                              {"classifier", make_linear(c.hidden, 1)}};
  };
  return make_encoder(config, o, std::move(f));
}
const Family convbert_family{{"convbert"}, bidirectional_classes("ConvBert", convbert)};

}  // namespace
}  // namespace memest::hf
