// models/squeezebert: BERT whose linear layers are convolutions in groups, over [batch, channels, length].
#include "models/hf/classic_encoder.h"
#include "models/hf/padding.h"

namespace memest::hf {
namespace {

class SqueezeBertEmbeddings final : public Joint {
 public:
  explicit SqueezeBertEmbeddings(const EncoderConfig& c)
      : Joint("SqueezeBertEmbeddings"),
        word_embeddings(child<Embedding>("word_embeddings", c.vocab, c.embedding, c.pad_token)),
        position_embeddings(child<Embedding>("position_embeddings", c.positions, c.embedding)),
        token_type_embeddings(child<Embedding>("token_type_embeddings", c.types, c.embedding)),
        norm(child<LayerNorm>("LayerNorm", c.hidden)),
        dropout(child<Dropout>("dropout", c.hidden_dropout)) {
    new_buffer("position_ids", {1, c.positions}, DType::int64);
  }

 protected:
  X forward(X input_ids, X token_type_ids) override {
    X position_ids = X(buffer(0)).whole_slices(1).slice(1, std::nullopt, input_ids.size(1));
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

/// SqueezeBertLayerNorm: over the channels.
class ChannelNorm final : public Unary {
 public:
  explicit ChannelNorm(I width) : Unary("SqueezeBertLayerNorm"), width_(width) {
    new_parameter("weight", {width});
    new_parameter("bias", {width});
  }

 protected:
  X forward(X x) override {
    x = x.permute({0, 2, 1});
    x = X(ops::layer_norm(x, Dims{width_}, parameter(0), parameter(1), 1e-12, true));
    return x.permute({0, 2, 1});
  }

 private:
  I width_;
};

Conv1d& add_conv(nn::Module& owner, const EncoderConfig& c, const char* name, I in, I out, const char* groups_field) {
  const I groups = c.file.size(groups_field);
  if (in % groups != 0 || out % groups != 0)
    throw c.file.error(groups_field, std::to_string(in) + " channels to " + std::to_string(out) + " do not make " + std::to_string(groups) +
                                         " equal groups");
  return *owner.register_module(name, std::make_shared<Conv1d>(in, out, 1, 1, 0, true, groups));
}

class ConvDropoutLayerNorm final : public Joint {
 public:
  ConvDropoutLayerNorm(const EncoderConfig& c, I in, I out, const char* groups)
      : Joint("ConvDropoutLayerNorm"),
        conv1d(add_conv(*this, c, "conv1d", in, out, groups)),
        layernorm(child<ChannelNorm>("layernorm", out)),
        dropout(child<Dropout>("dropout", c.hidden_dropout)) {}

 protected:
  X forward(X hidden_states, X input_tensor) override {
    X x = conv1d(hidden_states);
    x = dropout(x);
    x = x.add(input_tensor);
    x = layernorm(x);
    return x;
  }

 private:
  Conv1d& conv1d;
  ChannelNorm& layernorm;
  Dropout& dropout;
};

class ConvActivation final : public Unary {
 public:
  ConvActivation(const EncoderConfig& c, I in, I out, const char* groups)
      : Unary("ConvActivation"), conv1d(add_conv(*this, c, "conv1d", in, out, groups)), act(child<Activation>("act", c.act)) {}

 protected:
  X forward(X x) override {
    X output = conv1d(x);
    return act(output);
  }

 private:
  Conv1d& conv1d;
  Activation& act;
};

class SqueezeBertSelfAttention final : public Mixer {
 public:
  explicit SqueezeBertSelfAttention(const EncoderConfig& c)
      : Mixer("SqueezeBertSelfAttention"),
        heads_(c.heads),
        head_dim_(c.head_dim),
        query(add_conv(*this, c, "query", c.hidden, c.hidden, "q_groups")),
        key(add_conv(*this, c, "key", c.hidden, c.hidden, "k_groups")),
        value(add_conv(*this, c, "value", c.hidden, c.hidden, "v_groups")),
        dropout(child<Dropout>("dropout", c.attention_dropout)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    X mixed_query_layer = query(hidden_states);
    X mixed_key_layer = key(hidden_states);
    X mixed_value_layer = value(hidden_states);
    const Dims by_head{hidden_states.size(0), heads_, head_dim_, hidden_states.size(-1)};
    X query_layer = mixed_query_layer.view(by_head).permute({0, 1, 3, 2});
    X key_layer = mixed_key_layer.view(by_head);
    X value_layer = mixed_value_layer.view(by_head).permute({0, 1, 3, 2});
    X attention_score = query_layer.matmul(key_layer);
    attention_score = attention_score.div(1.0);
    if (call.mask) attention_score = attention_score.add(call.mask);
    X attention_probs = attention_score.softmax(-1);
    attention_probs = dropout(attention_probs);
    X context_layer = attention_probs.matmul(value_layer);
    context_layer = context_layer.permute({0, 1, 3, 2}).contiguous();
    context_layer = context_layer.view({context_layer.size(0), heads_ * head_dim_, context_layer.size(3)});
    return {leave(context_layer, mixed_query_layer, mixed_key_layer, mixed_value_layer, query_layer, key_layer, value_layer,
                  attention_score, attention_probs),
            {}};
  }

 private:
  I heads_, head_dim_;
  Conv1d &query, &key, &value;
  Dropout& dropout;
};

/// SqueezeBertModule, whose forward the encoder calls itself.
class SqueezeBertModule final : public Base {
 public:
  explicit SqueezeBertModule(const EncoderConfig& c)
      : Base("SqueezeBertModule"),
        attention(child<SqueezeBertSelfAttention>("attention", c)),
        post_attention(child<ConvDropoutLayerNorm>("post_attention", c, c.hidden, c.hidden, "post_attention_groups")),
        intermediate(child<ConvActivation>("intermediate", c, c.hidden, c.intermediate, "intermediate_groups")),
        output(child<ConvDropoutLayerNorm>("output", c, c.intermediate, c.hidden, "output_groups")) {}
  X operator()(const X& hidden_states, const LayerCall& call) {
    Entered scope(*this);
    X attention_output = attention(hidden_states, call).first;
    X post_attention_output = post_attention(attention_output, hidden_states);
    X intermediate_output = intermediate(post_attention_output);
    X layer_output = output(intermediate_output, post_attention_output);
    return leave(layer_output, attention_output, post_attention_output, intermediate_output);
  }

 private:
  SqueezeBertSelfAttention& attention;
  ConvDropoutLayerNorm& post_attention;
  ConvActivation& intermediate;
  ConvDropoutLayerNorm& output;
};

class SqueezeBertEncoder final : public Mixer {
 public:
  explicit SqueezeBertEncoder(const EncoderConfig& c)
      : Mixer("SqueezeBertEncoder"), layers_(*this, "layers", c.layers, [&](I) { return std::make_shared<SqueezeBertModule>(c); }) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    hidden_states = hidden_states.permute({0, 2, 1});
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, call);
    hidden_states = hidden_states.permute({0, 2, 1});
    return {hidden_states, {}};
  }

 private:
  Layers<SqueezeBertModule> layers_;
};

class SqueezeBertModel final : public EncoderBody {
 public:
  explicit SqueezeBertModel(const EncoderConfig& c)
      : EncoderBody("SqueezeBertModel"),
        options_(c.options),
        file_(c.file),
        embeddings(child<SqueezeBertEmbeddings>("embeddings", c)),
        encoder(child<SqueezeBertEncoder>("encoder", c)),
        pooler_(register_module("pooler", make_pooler("SqueezeBertPooler", c.hidden, c.hidden, "tanh"))) {}

 protected:
  EncoderOutput forward(X input_ids, bool) override {
    warn_if_padding(file_, input_ids);
    X attention_mask = ones(input_ids.sizes(), DType::float32);
    X token_type_ids = zeros(input_ids.sizes(), DType::int64);
    X embedding_output = embeddings(input_ids, token_type_ids);
    attention_mask = create_bidirectional_mask({.options = options_, .inputs_embeds = embedding_output, .attention_mask = attention_mask});
    X sequence_output = encoder(embedding_output, {attention_mask, {}, {}}).first;
    X pooled_output = (*pooler_)(sequence_output);
    return leave(EncoderOutput{sequence_output, pooled_output}, attention_mask, token_type_ids, embedding_output);
  }

 private:
  const Options options_;
  Config file_;
  SqueezeBertEmbeddings& embeddings;
  SqueezeBertEncoder& encoder;
  UnaryPtr pooler_;
};

NetworkPtr squeezebert(const Config& config, const Options& o) {
  EncoderForm f = bert_form("SqueezeBert", "transformer");
  f.project = true;
  f.adjust = [](EncoderConfig& c) {
    if (c.embedding != c.hidden)
      throw c.file.error("embedding_size",
                         "expected the hidden size " + std::to_string(c.hidden) + ", found " + std::to_string(c.embedding));
    c.options.attention = Attention::eager;
    c.classifier_dropout = c.hidden_dropout;
    c.is_decoder = false;
  };
  f.body = [](const EncoderConfig& c, bool) { return std::make_shared<SqueezeBertModel>(c); };
  return make_encoder(config, o, std::move(f));
}
const Family squeezebert_family{{"squeezebert"}, bidirectional_classes("SqueezeBert", squeezebert)};

}  // namespace
}  // namespace memest::hf
