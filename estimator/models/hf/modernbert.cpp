// models/modernbert/modeling_modernbert.py and models/modernbert_decoder.
#include <map>
#include <set>

#include "models/hf/loss.h"
#include "models/hf/rotary_encoder.h"
#include "models/hf/weights.h"

namespace memest::hf {
namespace {

struct ModernConfig {
  explicit ModernConfig(const EncoderConfig& config)
      : c(config),
        norm_bias(c.file.boolean_or("norm_bias", false)),
        attention_bias(c.file.boolean_or("attention_bias", false)),
        attention_dropout(c.file.number_or("attention_dropout", 0.0)),
        window(c.file.given("sliding_window") ? c.file.size_or("sliding_window", 64) : c.file.size_or("local_attention", 128) / 2) {
    if (c.file.has("layer_types")) {
      layer_types = c.file.texts("layer_types");
      if (I(layer_types.size()) != c.layers)
        throw c.file.error("layer_types", "expected " + std::to_string(c.layers) + " entries, one for each layer, found " +
                                              std::to_string(layer_types.size()));
      return;
    }
    const I every = c.file.size_or("global_attn_every_n_layers", 3);
    for (I i = 0; i < c.layers; ++i) layer_types.emplace_back(i % every ? "sliding_attention" : "full_attention");
  }
  bool sliding(I layer) const { return layer_types[std::size_t(layer)] == "sliding_attention"; }
  RotaryEmbedding::Form rotary() const {
    RotaryEmbedding::Form form;
    for (auto& type : std::set<std::string>(layer_types.begin(), layer_types.end()))
      form.layer_types.emplace_back(type, c.file.size_or("head_dim", c.head_dim));
    return form;
  }
  EncoderConfig c;
  bool norm_bias, attention_bias;
  double attention_dropout;
  I window;
  std::vector<std::string> layer_types = {};
};

/// apply_rotary_pos_emb of modernbert: in fp32.
Pair rotate_in_float(const X& q, const X& k, X cos, X sin) {
  const DType original_dtype = q.dtype();
  cos = cos.unsqueeze(1);
  sin = sin.unsqueeze(1);
  auto embed = [&](const X& x) {
    X straight = x.to_float().mul(cos);
    X rotated = rotate_half(x.to_float());
    rotated = std::move(rotated).mul(sin);
    return std::move(straight).add(std::move(rotated));
  };
  X q_embed = embed(q);
  X k_embed = embed(k);
  X query = q_embed.to(original_dtype);
  X key = k_embed.to(original_dtype);
  return leave(Pair(query, key), cos, sin, q_embed, k_embed);
}

class ModernEmbeddings final : public Unary {
 public:
  ModernEmbeddings(const ModernConfig& m, const std::string& prefix)
      : Unary(prefix + "Embeddings"),
        tok_embeddings(child<Embedding>("tok_embeddings", m.c.vocab, m.c.hidden, m.c.pad_token)),
        norm(child<LayerNorm>("norm", m.c.hidden, 1e-5, true, m.norm_bias)),
        drop(child<Dropout>("drop", m.c.file.number_or("embedding_dropout", 0.0))) {}

 protected:
  /// Of input_ids, or of inputs_embeds.
  X forward(X input) override { return drop(norm(is_floating(input.dtype()) ? input : tok_embeddings(input))); }

 public:
  X words(const X& input_ids) { return tok_embeddings(input_ids); }

 private:
  Embedding& tok_embeddings;
  LayerNorm& norm;
  Dropout& drop;
};

class ModernMLP final : public Unary {
 public:
  ModernMLP(const ModernConfig& m, const std::string& prefix)
      : Unary(prefix + "MLP"),
        Wi(child<Linear>("Wi", m.c.hidden, 2 * m.c.intermediate, m.c.file.boolean_or("mlp_bias", false))),
        act(child<Activation>("act", m.c.file.text_or("hidden_activation", "gelu"))),
        drop(child<Dropout>("drop", m.c.file.number_or("mlp_dropout", 0.0))),
        Wo(child<Linear>("Wo", m.c.intermediate, m.c.hidden, m.c.file.boolean_or("mlp_bias", false))) {}

 protected:
  X forward(X hidden_states) override {
    std::vector<X> parts = Wi(hidden_states).chunk(2, -1);
    return Wo(drop(act(parts[0]).mul(parts[1])));
  }

 private:
  Linear& Wi;
  Activation& act;
  Dropout& drop;
  Linear& Wo;
};

/// Of the encoder: one projection for queries, keys and values.
class ModernAttention final : public Mixer {
 public:
  explicit ModernAttention(const ModernConfig& m)
      : Mixer("ModernBertAttention"),
        options_(m.c.options),
        head_dim_(m.c.head_dim),
        dropout_(m.attention_dropout),
        Wqkv(child<Linear>("Wqkv", m.c.hidden, 3 * m.c.hidden, m.attention_bias)),
        Wo(child<Linear>("Wo", m.c.hidden, m.c.hidden, m.attention_bias)) {
    if (m.attention_dropout > 0) out_drop = &child<Dropout>("out_drop", m.attention_dropout);
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1);
    X qkv = Wqkv(hidden_states);
    qkv = qkv.view(input_shape + Dims{3, -1, head_dim_});
    std::vector<X> states = qkv.unbind(-3);
    X query_states = states[0].transpose(1, 2);
    X key_states = states[1].transpose(1, 2);
    X value_states = states[2].transpose(1, 2);
    states.clear();
    std::tie(query_states, key_states) =
        rotate_in_float(query_states, key_states, call.position_embeddings.first, call.position_embeddings.second);
    auto [attn_output, attn_weights] =
        attention_interface(options_, query_states, key_states, value_states,
                            {.mask = call.mask, .dropout = training ? dropout_ : 0.0, .training = training, .causal = false});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = Wo(attn_output);
    if (out_drop) attn_output = (*out_drop)(attn_output);
    return leave(Pair(attn_output, attn_weights), qkv, query_states, key_states, value_states);
  }

 private:
  const Options options_;
  I head_dim_;
  double dropout_;
  Linear &Wqkv, &Wo;
  Dropout* out_drop = nullptr;
};

class ModernDecoderAttention final : public Mixer {
 public:
  ModernDecoderAttention(const ModernConfig& m, I layer)
      : Mixer("ModernBertDecoderAttention"),
        options_(m.c.options),
        layer_(layer),
        head_dim_(m.c.head_dim),
        dropout_(m.attention_dropout),
        q_proj(child<Linear>("q_proj", m.c.hidden, m.c.hidden, m.attention_bias)),
        k_proj(child<Linear>("k_proj", m.c.hidden, m.c.hidden, m.attention_bias)),
        v_proj(child<Linear>("v_proj", m.c.hidden, m.c.hidden, m.attention_bias)),
        Wo(child<Linear>("Wo", m.c.hidden, m.c.hidden, m.attention_bias)),
        out_drop(child<Dropout>("out_drop", m.attention_dropout)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1);
    const Dims hidden_shape = input_shape + Dims{-1, head_dim_};
    X query_states = q_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_states = k_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_states = v_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    std::tie(query_states, key_states) =
        rotate_in_float(query_states, key_states, call.position_embeddings.first, call.position_embeddings.second);
    if (call.cache) std::tie(key_states, value_states) = call.cache->update(key_states, value_states, layer_);
    auto [attn_output, attn_weights] = attention_interface(options_, query_states, key_states, value_states,
                                                           {.mask = call.mask, .dropout = training ? dropout_ : 0.0, .training = training});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = out_drop(Wo(attn_output));
    return leave(Pair(attn_output, attn_weights), query_states, key_states, value_states);
  }

 private:
  const Options options_;
  I layer_, head_dim_;
  double dropout_;
  Linear &q_proj, &k_proj, &v_proj, &Wo;
  Dropout& out_drop;
};

class ModernLayer final : public DecoderLayer {
 public:
  ModernLayer(const ModernConfig& m, I layer, bool decoder)
      : DecoderLayer(decoder ? "ModernBertDecoderLayer" : "ModernBertEncoderLayer", m.c.options), decoder_(decoder) {
    if (layer > 0) attn_norm = &child<LayerNorm>("attn_norm", m.c.hidden, 1e-5, true, m.norm_bias);
    attn_ = decoder ? register_module("attn", MixerPtr(std::make_shared<ModernDecoderAttention>(m, layer)))
                    : register_module("attn", MixerPtr(std::make_shared<ModernAttention>(m)));
    mlp_norm = &child<LayerNorm>("mlp_norm", m.c.hidden, 1e-5, true, m.norm_bias);
    mlp = &child<ModernMLP>("mlp", m, decoder ? "ModernBertDecoder" : "ModernBert");
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    if (decoder_) return decoder_forward(std::move(hidden_states), call);
    auto [attn_output, weights] = (*attn_)(attn_norm ? (*attn_norm)(hidden_states) : hidden_states, call);
    hidden_states = hidden_states.add(attn_output);
    hidden_states = hidden_states.add((*mlp)((*mlp_norm)(hidden_states)));
    return leave(hidden_states, attn_output, weights);
  }

 private:
  X decoder_forward(X hidden_states, const LayerCall& call) {
    X residual = hidden_states;
    if (attn_norm) hidden_states = (*attn_norm)(hidden_states);
    Pair attn_outputs = (*attn_)(hidden_states, call);
    hidden_states = attn_outputs.first;
    hidden_states = residual.add(hidden_states);
    residual = hidden_states;
    hidden_states = (*mlp_norm)(hidden_states);
    X mlp_output = (*mlp)(hidden_states);
    hidden_states = residual.add(mlp_output);
    return leave(hidden_states, residual, attn_outputs.first, attn_outputs.second, mlp_output);
  }

  bool decoder_;
  LayerNorm *attn_norm = nullptr, *mlp_norm;
  MixerPtr attn_;
  ModernMLP* mlp;
};

class ModernModel final : public EncoderBody {
 public:
  ModernModel(const ModernConfig& m, bool decoder, const std::string& prefix)
      : EncoderBody(prefix + "Model"),
        m_(m),
        decoder_(decoder),
        embeddings(child<ModernEmbeddings>("embeddings", m, prefix)),
        layers_(*this, "layers", m.c.layers, [&](I i) { return std::make_shared<ModernLayer>(m, i, decoder); }),
        final_norm(child<LayerNorm>("final_norm", m.c.hidden, 1e-5, true, m.norm_bias)),
        rotary_emb(child<RotaryEmbedding>("rotary_emb", prefix + "RotaryEmbedding", m.c.file, m.c.head_dim, m.rotary())) {}
  /// get_input_embeddings()(input_ids).
  X embed(const X& input_ids) { return embeddings.words(input_ids); }

 protected:
  EncoderOutput forward(X input_ids, bool) override {
    const Options& o = m_.c.options;
    X position_ids, full, sliding, hidden_states;
    CachePtr cache;
    if (decoder_) {
      hidden_states = embeddings(input_ids);
      cache = new_cache();
      position_ids = arange(hidden_states.size(1)).add(0);
      position_ids = position_ids.unsqueeze(0).expand({hidden_states.size(0), -1});
      const MaskArguments arguments{.options = o, .inputs_embeds = hidden_states, .cache = cache.get(), .position_ids = position_ids};
      full = create_causal_mask(arguments);
      sliding = create_sliding_window_causal_mask(arguments, m_.window);
    } else {
      position_ids = arange(input_ids.size(1)).unsqueeze(0);
      hidden_states = embeddings(input_ids);
      sliding = create_bidirectional_sliding_window_mask({o, hidden_states}, m_.window);
    }
    const X inputs_embeds = hidden_states;  // mask_kwargs holds it
    std::map<std::string, Pair> position_embeddings;
    for (auto& type : std::set<std::string>(m_.layer_types.begin(), m_.layer_types.end()))
      position_embeddings[type] = rotary_emb(hidden_states, position_ids, type);
    for (I i = 0; i < layers_.size(); ++i)
      hidden_states = layers_[i](
          hidden_states, {m_.sliding(i) ? sliding : full, position_embeddings[m_.layer_types[std::size_t(i)]], position_ids, cache.get()});
    hidden_states = final_norm(hidden_states);
    return {hidden_states, {}, cache};
  }

 private:
  CachePtr new_cache() const {
    const Options& o = m_.c.options;
    if (!o.use_cache || (o.checkpoint && training && runtime().grad_mode)) return {};
    std::vector<I> windows;
    for (I i = 0; i < m_.c.layers; ++i) windows.push_back(m_.sliding(i) ? m_.window : 0);
    return std::make_shared<Cache>(windows);
  }

  ModernConfig m_;
  bool decoder_;
  ModernEmbeddings& embeddings;
  Layers<ModernLayer> layers_;
  LayerNorm& final_norm;
  RotaryEmbedding& rotary_emb;
};

/// norm(act(dense(x))).
class PredictionHead final : public Unary {
 public:
  PredictionHead(const EncoderConfig& c, const std::string& prefix)
      : Unary(prefix + "PredictionHead"),
        dense(child<Linear>("dense", c.hidden, c.hidden, c.file.boolean_or("classifier_bias", false))),
        act(child<Activation>("act", c.file.text_or("classifier_activation", "gelu"))),
        norm(child<LayerNorm>("norm", c.hidden, 1e-5, true, c.file.boolean_or("norm_bias", false))) {}

 protected:
  X forward(X hidden_states) override { return norm(act(dense(hidden_states))); }

 private:
  Linear& dense;
  Activation& act;
  LayerNorm& norm;
};

/// last_hidden_state[arange(batch), 0].
class IndexedFirst final : public Unary {
 public:
  IndexedFirst() : Unary("IndexedFirst") {}

 protected:
  X forward(X last_hidden_state) override {
    X indices_0 = arange(last_hidden_state.size(0));
    X cls_mask = full({}, 0, DType::int64);
    return aten("index", {Tensor(last_hidden_state), make_list({Tensor(indices_0), Tensor(cls_mask)})});
  }
};

void adjust(EncoderConfig& c) {
  c.classifier_dropout = c.file.number_or("classifier_dropout", 0.0);
  c.is_decoder = false;
}
EncoderForm::Heads head(const EncoderConfig& c) {
  return {{"head", std::make_shared<PredictionHead>(c, "ModernBert")}, {"drop", make_dropout(c.classifier_dropout)}};
}
EncoderForm::Heads classified(const EncoderConfig& c, UnaryPtr pooling, I outputs) {
  EncoderForm::Heads heads = head(c);
  if (pooling) heads.insert(heads.begin(), {"", std::move(pooling)});
  heads.push_back({"classifier", make_linear(c.hidden, outputs)});
  return heads;
}

NetworkPtr modernbert(const Config& config, const Options& o) {
  EncoderForm f;
  f.prefix = "ModernBert";
  f.base_prefix = "model";
  f.adjust = adjust;
  f.body = [](const EncoderConfig& c, bool) { return std::make_shared<ModernModel>(ModernConfig(c), false, "ModernBert"); };
  f.lm_head = [](const EncoderConfig& c) {
    if (c.file.boolean_or("sparse_prediction", false))
      throw c.file.error("sparse_prediction", "how many tokens it keeps is read from the labels' values; memest builds false only");
    return EncoderForm::Heads{{"head", std::make_shared<PredictionHead>(c, "ModernBert")},
                              {"decoder", make_linear(c.hidden, c.vocab, c.file.boolean_or("decoder_bias", true))}};
  };
  f.ties = {{"decoder.weight", "model.embeddings.tok_embeddings.weight"}};
  f.language_loss = masked_lm_loss;
  f.classifier = [](const EncoderConfig& c) { return classified(c, make_pooling(c.file), num_labels(c.file)); };
  f.token_classifier = [](const EncoderConfig& c) { return classified(c, nullptr, num_labels(c.file)); };
  f.choice = [](const EncoderConfig& c) {
    if (c.file.text_or("classifier_pooling", "cls") != "cls")
      throw c.file.error("classifier_pooling", "multiple choice without an attention mask needs cls");
    return classified(c, std::make_shared<IndexedFirst>(), 1);
  };
  f.before_answers = head;
  f.answers_name = "classifier";
  return make_encoder(config, o, std::move(f));
}

// ---- models/modernvbert/modeling_modernvbert.py, called without images: of the vision model and the connector only the parameters count.

void add_siglip_vision_model(Weights& model, const Config& file) {
  const I hidden = file.size("hidden_size"), intermediate = file.size("intermediate_size"), patch = file.size("patch_size"),
          positions = (file.size("image_size") / patch) * (file.size("image_size") / patch);
  auto mlp = [&](Weights& owner) {
    Weights& m = owner.part("mlp", "SiglipMLP");
    m.linear("fc1", hidden, intermediate);
    m.linear("fc2", intermediate, hidden);
  };
  Weights& embeddings = model.part("embeddings", "SiglipVisionEmbeddings");
  embeddings.conv("patch_embedding", file.size_or("num_channels", 3), hidden, patch);
  embeddings.embedding("position_embedding", positions, hidden);
  embeddings.new_buffer("position_ids", {1, positions}, DType::int64);
  Weights& layers = model.part("encoder", "SiglipEncoder").part("layers", "ModuleList");
  for (I i = 0; i < file.size("num_hidden_layers"); ++i) {
    Weights& layer = layers.part(std::to_string(i), "SiglipEncoderLayer");
    layer.norm("layer_norm1", hidden);
    Weights& attention = layer.part("self_attn", "SiglipAttention");
    for (const char* name : {"k_proj", "v_proj", "q_proj", "out_proj"}) attention.linear(name, hidden, hidden);
    layer.norm("layer_norm2", hidden);
    mlp(layer);
  }
  model.norm("post_layernorm", hidden);
  if (!file.boolean_or("vision_use_head", true)) return;
  Weights& head = model.part("head", "SiglipMultiheadAttentionPoolingHead");
  head.new_parameter("probe", {1, 1, hidden});
  Weights& attention = head.part("attention", "MultiheadAttention");
  attention.new_parameter("in_proj_weight", {3 * hidden, hidden});
  attention.new_parameter("in_proj_bias", {3 * hidden});
  attention.linear("out_proj", hidden, hidden);
  head.norm("layernorm", hidden);
  mlp(head);
}

class ModernVBertModel final : public EncoderBody {
 public:
  ModernVBertModel(const ModernConfig& m, const Config& file) : EncoderBody("ModernVBertModel") {
    const Config vision = file.section("vision_config");
    const I factor = file.size_or("pixel_shuffle_factor", 4);
    add_siglip_vision_model(child<Weights>("vision_model", "SiglipVisionModel"), vision);
    child<Weights>("connector", "ModernVBertConnector")
        .linear("modality_projection", vision.size("hidden_size") * factor * factor, m.c.hidden, false);
    text_model = &child<ModernModel>("text_model", m, false, "ModernBert");
  }

 protected:
  EncoderOutput forward(X input_ids, bool) override {
    X inputs_embeds = text_model->embed(input_ids);
    return (*text_model)(inputs_embeds);
  }

 private:
  ModernModel* text_model;
};

NetworkPtr modernvbert(const Config& config, const Options& o) {
  Config text = config.section("text_config");
  if (text.model_type() != "modernbert") throw config.error("text_config", "memest builds ModernVBERT with a modernbert only");
  if (config.section("vision_config").model_type() != "siglip_vision_model")
    throw config.error("vision_config", "memest builds ModernVBERT with a siglip_vision_model only");
  EncoderForm f;
  f.prefix = "ModernVBert";
  f.base_prefix = "model";
  f.adjust = [config](EncoderConfig& c) {
    adjust(c);
    c.classifier_dropout = config.number_or("classifier_dropout", 0.0);
    c.tie = config.boolean_or("tie_word_embeddings", false);
  };
  f.body = [config](const EncoderConfig& c, bool) { return std::make_shared<ModernVBertModel>(ModernConfig(c), config); };
  f.lm_head = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"projection_head", std::make_shared<PredictionHead>(c, "ModernVBert")},
                              {"lm_head", make_linear(c.hidden, c.vocab, c.file.boolean_or("decoder_bias", true))}};
  };
  f.ties = {{"lm_head.weight", "model.text_model.embeddings.tok_embeddings.weight"}};
  return make_encoder(text, o, std::move(f));
}

class ModernDecoderForSequenceClassification final : public Network {
 public:
  explicit ModernDecoderForSequenceClassification(const EncoderConfig& c)
      : Network("ModernBertDecoderForSequenceClassification", c.options),
        file_(c.file),
        model(child<ModernModel>("model", ModernConfig(c), true, "ModernBertDecoder")),
        head(child<PredictionHead>("head", c, "ModernBertDecoder")),
        classifier(child<Linear>("classifier", c.hidden, num_labels(c.file), c.file.boolean_or("classifier_bias", false))),
        drop(child<Dropout>("drop", c.classifier_dropout)) {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    EncoderOutput outputs = model(batch.input);
    X hidden_states = drop(head(outputs.last_hidden_state));
    X logits = classifier(hidden_states);
    return classify_last_token(file_, batch.input, logits, batch.labels, outputs.cache.get());
  }

 private:
  Config file_;
  ModernModel& model;
  PredictionHead& head;
  Linear& classifier;
  Dropout& drop;
};

NetworkPtr modernbert_decoder(const Config& config, const Options& o) {
  if (o.task == Task::seq_cls) {
    EncoderConfig c(config, o);
    adjust(c);
    return std::make_shared<ModernDecoderForSequenceClassification>(c);
  }
  EncoderForm f;
  f.prefix = "ModernBertDecoder";
  f.base_prefix = "model";
  f.adjust = adjust;
  f.body = [](const EncoderConfig& c, bool) { return std::make_shared<ModernModel>(ModernConfig(c), true, "ModernBertDecoder"); };
  f.lm_head = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"lm_head", std::make_shared<PredictionHead>(c, "ModernBertDecoder")},
                              {"decoder", make_linear(c.hidden, c.vocab, c.file.boolean_or("decoder_bias", true))}};
  };
  f.ties = {{"decoder.weight", "model.embeddings.tok_embeddings.weight"}};
  return make_encoder(config, o, std::move(f));
}

const Family modernbert_family{{"modernbert"}, bidirectional_classes("ModernBert", modernbert)};
const Family modernvbert_family{{"modernvbert"},
                                {{Task::masked_lm, "ModernVBertForMaskedLM", modernvbert}, {Task::base, "ModernVBertModel", modernvbert}}};
const Family modernbert_decoder_family{{"modernbert-decoder"},
                                       {{Task::causal_lm, "ModernBertDecoderForCausalLM", modernbert_decoder},
                                        {Task::seq_cls, "ModernBertDecoderForSequenceClassification", modernbert_decoder},
                                        {Task::base, "ModernBertDecoderModel", modernbert_decoder}}};

}  // namespace
}  // namespace memest::hf
