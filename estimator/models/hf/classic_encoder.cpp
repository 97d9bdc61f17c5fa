#include "models/hf/classic_encoder.h"

#include "fake/checkpoint.h"

namespace memest::hf {

Pair ClassicLayer::operator()(X hidden_states, LayerCall call) {
  Entered scope(*this);
  if (checkpoint_ && training && runtime().grad_mode) {
    call.cache = nullptr;
    const X mask = std::move(call.mask);  // an argument by position, which a reentrant checkpoint lets go of in backward; others it keeps
    Region region = [this, call](const Tensors& inputs) {
      LayerCall with_mask = call;
      with_mask.mask = inputs[1];
      Pair outputs = forward(X(inputs[0]), with_mask);
      return Tensors{outputs.first, outputs.second};
    };
    const Tensors inputs{hidden_states, mask};
    Tensors outputs = reentrant_ ? checkpoint_reentrant(std::move(region), inputs) : memest::checkpoint(std::move(region), inputs);
    return {outputs[0], outputs[1]};
  }
  Pair result = forward(hidden_states, call);
  hidden_states.reset();
  return result;
}

Pair classic_attention(X& query_layer, X& key_layer, X& value_layer, const X& attention_mask, Dropout& dropout) {
  X attention_scores = query_layer.matmul(key_layer.transpose(-1, -2));
  attention_scores = attention_scores.div(1.0);
  if (attention_mask) attention_scores = attention_scores.add(attention_mask);
  X attention_probs = attention_scores.softmax(-1);
  attention_probs = dropout(attention_probs);
  X context_layer = attention_probs.matmul(value_layer);
  context_layer = context_layer.permute({0, 2, 1, 3}).contiguous();
  context_layer = context_layer.view({context_layer.size(0), context_layer.size(1), -1});
  return leave(Pair(context_layer, attention_probs), query_layer, key_layer, value_layer, attention_scores);
}

namespace {

class ClassicSelfAttention final : public Mixer {
 public:
  ClassicSelfAttention(const EncoderConfig& c, I layer, std::string type)
      : Mixer(std::move(type)),
        layer_(layer),
        head_dim_(c.head_dim),
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
    if (call.cache) std::tie(key_layer, value_layer) = call.cache->update(key_layer, value_layer, layer_);
    return classic_attention(query_layer, key_layer, value_layer, call.mask, dropout);
  }

 private:
  I layer_, head_dim_;
  Linear &query, &key, &value;
  Dropout& dropout;
};

/// MegatronBertSelfOutput and MegatronBertOutput: input + dropout(dense(x)).
class PlainResidual final : public Joint {
 public:
  PlainResidual(std::string type, const EncoderConfig& c, I in)
      : Joint(std::move(type)), dense(child<Linear>("dense", in, c.hidden)), dropout(child<Dropout>("dropout", c.hidden_dropout)) {}

 protected:
  X forward(X hidden_states, X input_tensor) override {
    hidden_states = dense(hidden_states);
    hidden_states = dropout(hidden_states);
    return input_tensor.add(hidden_states);
  }

 private:
  Linear& dense;
  Dropout& dropout;
};

JointPtr make_residual(const ClassicForm& form, const std::string& suffix, const EncoderConfig& c, I in) {
  if (form.pre_norm) return std::make_shared<PlainResidual>(form.prefix + suffix, c, in);
  return make_residual_output(form.prefix + suffix, c, in);
}

class ClassicAttentionBlock final : public Mixer {
 public:
  ClassicAttentionBlock(const EncoderConfig& c, I layer, const ClassicForm& form) : Mixer(form.prefix + "Attention") {
    if (form.pre_norm) ln = &child<LayerNorm>("ln", c.hidden);
    self_ = register_module(
        "self", form.self_attention ? form.self_attention(c, layer) : make_classic_self_attention(c, layer, form.prefix + "SelfAttention"));
    output_ = register_module("output", make_residual(form, "SelfOutput", c, c.hidden));
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    X ln_outputs = ln ? (*ln)(hidden_states) : hidden_states;
    Pair self_outputs = (*self_)(ln_outputs, call);
    X attention_output = (*output_)(self_outputs.first, hidden_states);
    return leave(Pair(attention_output, self_outputs.second), ln_outputs, self_outputs.first);
  }

 private:
  LayerNorm* ln = nullptr;
  MixerPtr self_;
  JointPtr output_;
};

class StandardClassicLayer final : public ClassicLayer {
 public:
  StandardClassicLayer(const EncoderConfig& c, I layer, const ClassicForm& form) : ClassicLayer(form.prefix + "Layer", c.options) {
    attention_ = register_module("attention", std::make_shared<ClassicAttentionBlock>(c, layer, form));
    if (c.file.boolean_or("add_cross_attention", false)) throw c.file.error("add_cross_attention", "memest does not build cross-attention");
    if (form.pre_norm) ln = &child<LayerNorm>("ln", c.hidden);
    intermediate_ = register_module("intermediate", make_intermediate(form.prefix + "Intermediate", c));
    output_ = register_module("output", make_residual(form, "Output", c, c.intermediate));
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    Pair self_attention_outputs = (*attention_)(hidden_states, call);
    X attention_output = self_attention_outputs.first;
    X layer_output = feed_forward_chunk(attention_output);
    return {layer_output, self_attention_outputs.second};
  }

 private:
  X feed_forward_chunk(const X& attention_output) {
    X ln_output = ln ? (*ln)(attention_output) : attention_output;
    X intermediate_output = (*intermediate_)(ln_output);
    X layer_output = (*output_)(intermediate_output, attention_output);
    return layer_output;
  }

  MixerPtr attention_;
  LayerNorm* ln = nullptr;
  UnaryPtr intermediate_;
  JointPtr output_;
};

class ClassicEncoder final : public Mixer {
 public:
  ClassicEncoder(const EncoderConfig& c, const ClassicForm& form)
      : Mixer(form.prefix + "Encoder"),
        projection_(form.projects ? &child<Linear>(form.projection, c.embedding, c.hidden) : nullptr),
        embed_positions_(form.embed_positions ? register_module("embed_positions", form.embed_positions(c)) : nullptr),
        layers_(*this, "layer", c.layers, [&](I i) { return std::make_shared<StandardClassicLayer>(c, i, form); }),
        ln(form.pre_norm ? &child<LayerNorm>("ln", c.hidden) : nullptr) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& given) override {
    LayerCall call = given;
    if (projection_) hidden_states = (*projection_)(hidden_states);
    if (embed_positions_) call.position_embeddings.first = (*embed_positions_)(hidden_states);
    Pair layer_outputs;
    for (auto& layer : layers_) {
      layer_outputs = (*layer)(hidden_states, call);
      hidden_states = layer_outputs.first;
    }
    if (ln) hidden_states = (*ln)(hidden_states);
    return {hidden_states, {}};
  }

 private:
  Linear* projection_;
  UnaryPtr embed_positions_;
  Layers<StandardClassicLayer> layers_;
  LayerNorm* ln;
};

class ClassicEmbeddings final : public Joint {
 public:
  ClassicEmbeddings(std::string type, const EncoderConfig& c, bool norms)
      : Joint(std::move(type)),
        word_embeddings(child<Embedding>("word_embeddings", c.vocab, c.embedding, c.pad_token)),
        position_embeddings(child<Embedding>("position_embeddings", c.positions, c.embedding)),
        token_type_embeddings(child<Embedding>("token_type_embeddings", c.types, c.embedding)),
        norm(norms ? &child<LayerNorm>("LayerNorm", c.embedding) : nullptr),
        dropout(child<Dropout>("dropout", c.hidden_dropout)) {
    new_buffer("position_ids", {1, c.positions}, DType::int64);
  }

 protected:
  X forward(X input_ids, X token_type_ids) override {
    X position_ids = X(buffer(0)).whole_slices(1).slice(1, 0, input_ids.size(1));
    X inputs_embeds = word_embeddings(input_ids);
    X types = token_type_embeddings(token_type_ids);
    X embeddings = inputs_embeds.add(types);
    X positions = position_embeddings(position_ids);
    embeddings = embeddings.add_(positions);
    if (norm) embeddings = (*norm)(embeddings);
    embeddings = dropout(embeddings);
    return embeddings;
  }

 private:
  Embedding &word_embeddings, &position_embeddings, &token_type_embeddings;
  LayerNorm* norm;
  Dropout& dropout;
};

}  // namespace

MixerPtr make_classic_self_attention(const EncoderConfig& c, I layer, std::string type) {
  return std::make_shared<ClassicSelfAttention>(c, layer, std::move(type));
}
MixerPtr make_classic_encoder(const EncoderConfig& c, const ClassicForm& form) { return std::make_shared<ClassicEncoder>(c, form); }
JointPtr make_classic_embeddings(std::string type, const EncoderConfig& c, bool norm) {
  return std::make_shared<ClassicEmbeddings>(std::move(type), c, norm);
}

}  // namespace memest::hf
