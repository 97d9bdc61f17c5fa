// models/esm/modeling_esm.py, without its folding model.
#include "models/hf/encoder.h"
#include "models/hf/loss.h"

namespace memest::hf {
namespace {

/// gelu of the module.
X gelu(X x) {
  X half = x.mul(0.5);
  X ratio = x.div(1.0);
  X erf = aten("erf", {Tensor(std::move(ratio))});
  return std::move(half).mul(std::move(erf).add(1.0));
}

/// EsmRotaryEmbedding: one buffer, always the default frequencies.
class EsmRotaryEmbedding final : public Base {
 public:
  explicit EsmRotaryEmbedding(I width) : Base("EsmRotaryEmbedding") { new_buffer("inv_freq", {ceil_div(width, 2)}, DType::float32); }
  Pair operator()(X x, X position_ids) {
    Entered scope(*this);
    NoGrad guard;
    X freqs = position_ids.unsqueeze(-1).to_float().mul(X(buffer(0)));
    X emb = cat({freqs, freqs}, -1);
    X cos = X(aten("cos", {Tensor(emb)})).mul(1.0);
    X sin = X(aten("sin", {Tensor(emb)})).mul(1.0);
    return leave(Pair(cos.to(x.dtype()), sin.to(x.dtype())), freqs, emb, cos, sin);
  }
};

/// rotate_half, whose argument dies with the call.
X rotated_half(X x) {
  X result = rotate_half(x);
  x.reset();
  return result;
}
/// apply_rotary_pos_emb in fp32.
Pair rotated_in_fp32(const X& q, const X& k, X cos, X sin) {
  const DType original_dtype = q.dtype();
  cos = cos.unsqueeze(1);
  sin = sin.unsqueeze(1);
  X q_embed = q.to_float().mul(cos).add(rotated_half(q.to_float()).mul(sin));
  X k_embed = k.to_float().mul(cos).add(rotated_half(k.to_float()).mul(sin));
  X q_result = q_embed.to(original_dtype), k_result = k_embed.to(original_dtype);
  return leave(Pair(q_result, k_result), q_embed, k_embed);
}

class EsmEmbeddings final : public Unary {
 public:
  EsmEmbeddings(const EncoderConfig& c, bool absolute)
      : Unary("EsmEmbeddings"),
        token_dropout_(c.file.boolean_or("token_dropout", false)),
        word_embeddings(child<Embedding>("word_embeddings", c.vocab, c.hidden, c.pad_token)) {
    if (c.file.boolean_or("emb_layer_norm_before", false)) layer_norm = &child<LayerNorm>("layer_norm", c.hidden);
    child<Dropout>("dropout", c.hidden_dropout);
    new_buffer("position_ids", {1, c.positions}, DType::int64);
    if (absolute) position_embeddings = &child<Embedding>("position_embeddings", c.positions, c.hidden, c.pad_token);
  }

 protected:
  X forward(X input_ids) override {
    X position_ids = position_ids_of(input_ids, false);
    X inputs_embeds = word_embeddings(input_ids);
    X embeddings = inputs_embeds, mask_ratio_observed, positions;
    if (token_dropout_) {
      embeddings = aten("masked_fill", {Tensor(embeddings), Tensor(masked(input_ids).unsqueeze(-1)), 0.0});
      mask_ratio_observed = masked(input_ids).sum(-1).to_float().div(1.0);
      X scaled = embeddings.mul(1.0);
      X observed = X(aten("rsub", {Tensor(mask_ratio_observed), I{1}})).unsqueeze(1).unsqueeze(2);
      scaled = std::move(scaled).div(std::move(observed));
      embeddings = std::move(scaled).to(embeddings.dtype());
    }
    if (position_embeddings) {
      positions = (*position_embeddings)(position_ids);
      embeddings = embeddings.add(positions);
    }
    if (layer_norm) embeddings = (*layer_norm)(embeddings);
    return leave(embeddings, position_ids, inputs_embeds);
  }

 private:
  static X masked(const X& input_ids) { return aten("eq", {Tensor(input_ids), I{1}}); }
  bool token_dropout_;
  Embedding &word_embeddings, *position_embeddings = nullptr;
  LayerNorm* layer_norm = nullptr;
};

class EsmSelfAttention final : public Mixer {
 public:
  explicit EsmSelfAttention(const EncoderConfig& c)
      : Mixer("EsmSelfAttention"),
        options_(c.options),
        head_dim_(c.head_dim),
        dropout_(c.attention_dropout),
        causal_(c.is_decoder),
        query(child<Linear>("query", c.hidden, c.hidden)),
        key(child<Linear>("key", c.hidden, c.hidden)),
        value(child<Linear>("value", c.hidden, c.hidden)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1), hidden_shape = input_shape + Dims{-1, head_dim_};
    X query_layer = query(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_layer = key(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_layer = value(hidden_states).view(hidden_shape).transpose(1, 2);
    query_layer = query_layer.mul(1.0);
    if (const auto& [cos, sin] = call.position_embeddings; cos)
      std::tie(query_layer, key_layer) = rotated_in_fp32(query_layer, key_layer, cos, sin);
    auto [attn_output, attn_weights] =
        bert_attention_interface(options_, query_layer, key_layer, value_layer,
                                 {.mask = call.mask, .dropout = training ? dropout_ : 0.0, .training = training, .causal = causal_});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    return leave(Pair(attn_output, attn_weights), query_layer, key_layer, value_layer);
  }

 private:
  const Options options_;
  I head_dim_;
  double dropout_;
  bool causal_;
  Linear &query, &key, &value;
};

/// EsmSelfOutput and EsmOutput: dropout(dense(x)) + input.
class EsmResidual final : public Joint {
 public:
  EsmResidual(std::string type, const EncoderConfig& c, I in)
      : Joint(std::move(type)), dense(child<Linear>("dense", in, c.hidden)), dropout(child<Dropout>("dropout", c.hidden_dropout)) {}

 protected:
  X forward(X hidden_states, X input_tensor) override {
    hidden_states = dense(hidden_states);
    hidden_states = dropout(hidden_states);
    hidden_states = hidden_states.add(input_tensor);
    return hidden_states;
  }

 private:
  Linear& dense;
  Dropout& dropout;
};

class EsmAttention final : public Mixer {
 public:
  explicit EsmAttention(const EncoderConfig& c)
      : Mixer("EsmAttention"),
        self(child<EsmSelfAttention>("self", c)),
        output(child<EsmResidual>("output", "EsmSelfOutput", c, c.hidden)),
        norm(child<LayerNorm>("LayerNorm", c.hidden)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    X hidden_states_ln = norm(hidden_states);
    auto [attn_output, weights] = self(hidden_states_ln, call);
    attn_output = output(attn_output, hidden_states);
    return {attn_output, {}};
  }

 private:
  EsmSelfAttention& self;
  EsmResidual& output;
  LayerNorm& norm;
};

class EsmIntermediate final : public Unary {
 public:
  explicit EsmIntermediate(const EncoderConfig& c) : Unary("EsmIntermediate"), dense(child<Linear>("dense", c.hidden, c.intermediate)) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = dense(hidden_states);
    hidden_states = gelu(hidden_states);
    return hidden_states;
  }

 private:
  Linear& dense;
};

class EsmLayer final : public DecoderLayer {
 public:
  explicit EsmLayer(const EncoderConfig& c)
      : DecoderLayer("EsmLayer", c.options),
        attention(child<EsmAttention>("attention", c)),
        intermediate(child<EsmIntermediate>("intermediate", c)),
        output(child<EsmResidual>("output", "EsmOutput", c, c.intermediate)),
        norm(child<LayerNorm>("LayerNorm", c.hidden)) {}

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X attention_output = attention(hidden_states, call).first;
    X attention_output_ln = norm(attention_output);
    X intermediate_output = intermediate(attention_output_ln);
    X layer_output = output(intermediate_output, attention_output);
    return layer_output;
  }

 private:
  EsmAttention& attention;
  EsmIntermediate& intermediate;
  EsmResidual& output;
  LayerNorm& norm;
};

class EsmEncoder final : public Base {
 public:
  explicit EsmEncoder(const EncoderConfig& c)
      : Base("EsmEncoder"),
        layer(*this, "layer", c.layers, [&](I) { return std::make_shared<EsmLayer>(c); }),
        emb_layer_norm_after(child<LayerNorm>("emb_layer_norm_after", c.hidden)) {}
  X operator()(X hidden_states, const LayerCall& call) {
    Entered scope(*this);
    for (auto& one : layer) hidden_states = (*one)(hidden_states, call);
    hidden_states = emb_layer_norm_after(hidden_states);
    return hidden_states;
  }

 private:
  Layers<EsmLayer> layer;
  LayerNorm& emb_layer_norm_after;
};

class EsmModel final : public EncoderBody {
 public:
  EsmModel(const EncoderConfig& c, bool pools) : EncoderBody("EsmModel"), options_(c.options), is_decoder_(c.is_decoder) {
    const std::string kind = c.file.text_or("position_embedding_type", "absolute");
    embeddings = &child<EsmEmbeddings>("embeddings", c, kind == "absolute");
    if (kind == "rotary") rotary_embeddings = &child<EsmRotaryEmbedding>("rotary_embeddings", c.head_dim);
    encoder = &child<EsmEncoder>("encoder", c);
    if (pools) pooler_ = register_module("pooler", make_pooler("EsmPooler", c.hidden, c.hidden, "tanh"));
    auto& contact_head = child<Base>("contact_head", "EsmContactPredictionHead");
    contact_head.register_module("regression", std::make_shared<Linear>(checked_mul(c.layers, c.heads), 1));
  }

 protected:
  EncoderOutput forward(X input_ids, bool) override {
    X inputs_embeds = (*embeddings)(input_ids);
    X attention_mask = is_decoder_ ? create_causal_mask({options_, inputs_embeds}) : create_bidirectional_mask();
    X position_ids;
    Pair position_embeddings;
    if (rotary_embeddings) {
      position_ids = arange(inputs_embeds.size(1)).unsqueeze(0);
      position_embeddings = (*rotary_embeddings)(inputs_embeds, position_ids);
    }
    X sequence_output = (*encoder)(inputs_embeds, {attention_mask, position_embeddings, {}});
    X pooled_output;
    if (pooler_) pooled_output = (*pooler_)(sequence_output);
    return {sequence_output, pooled_output};
  }

 private:
  const Options options_;
  bool is_decoder_;
  EsmEmbeddings* embeddings;
  EsmRotaryEmbedding* rotary_embeddings = nullptr;
  EsmEncoder* encoder;
  UnaryPtr pooler_;
};

class EsmLMHead final : public Unary {
 public:
  explicit EsmLMHead(const EncoderConfig& c)
      : Unary("EsmLMHead"),
        dense(child<Linear>("dense", c.hidden, c.hidden)),
        layer_norm(child<LayerNorm>("layer_norm", c.hidden)),
        decoder(child<Linear>("decoder", c.hidden, c.vocab, false)) {
    new_parameter("bias", {c.vocab});
  }

 protected:
  X forward(X features) override {
    X x = dense(features);
    x = gelu(x);
    x = layer_norm(x);
    x = decoder(x).add(X(parameter(0)));
    return x;
  }

 private:
  Linear& dense;
  LayerNorm& layer_norm;
  Linear& decoder;
};

NetworkPtr esm(const Config& config, const Options& o) {
  if (config.boolean_or("is_folding_model", false))
    throw config.error("is_folding_model", "memest builds ESM's language model, not its folding model");
  if (config.boolean_or("add_cross_attention", false)) throw config.error("add_cross_attention", "memest does not build cross-attention");
  EncoderForm f;
  f.prefix = "Esm";
  f.base_prefix = "esm";
  f.adjust = [](EncoderConfig& c) { c.classifier_dropout = c.hidden_dropout; };
  f.body = [](const EncoderConfig& c, bool pools) { return std::make_shared<EsmModel>(c, pools); };
  f.lm_head = [](const EncoderConfig& c) { return EncoderForm::Heads{{"lm_head", std::make_shared<EsmLMHead>(c)}}; };
  f.ties = {{"lm_head.decoder.weight", "esm.embeddings.word_embeddings.weight"}};
  f.classifier = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"classifier", make_classification_head("EsmClassificationHead", c, "tanh")}};
  };
  return make_encoder(config, o, std::move(f));
}
const Family esm_family{{"esm"},
                        {{Task::masked_lm, "EsmForMaskedLM", esm},
                         {Task::seq_cls, "EsmForSequenceClassification", esm},
                         {Task::token_cls, "EsmForTokenClassification", esm},
                         {Task::base, "EsmModel", esm}}};

}  // namespace
}  // namespace memest::hf
