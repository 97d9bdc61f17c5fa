// models/nomic_bert/modeling_nomic_bert.py, and what was made of it: gte and jina_embeddings_v3.
#include "models/hf/rotary_encoder.h"

namespace memest::hf {
namespace {

enum class Kind { nomic, gte, jina };
struct NomicForm {
  Kind kind;
  std::string prefix;
};

class NomicEmbeddings final : public Unary {
 public:
  NomicEmbeddings(const EncoderConfig& c, const NomicForm& form)
      : Unary(form.prefix + "Embeddings"),
        named_(form.kind != Kind::gte),
        word_embeddings(child<Embedding>("word_embeddings", c.vocab, c.hidden, c.pad_token)) {
    if (c.types > 0) token_type_embeddings = &child<Embedding>("token_type_embeddings", c.types, c.hidden);
    norm = &child<LayerNorm>("LayerNorm", c.hidden);
    dropout = &child<Dropout>("dropout", c.hidden_dropout);
    if (!named_) return;
    new_buffer("position_ids", {1, c.positions}, DType::int64);
    new_buffer("token_type_ids", {1, c.positions}, DType::int64);
  }

 protected:
  X forward(X input_ids) override {
    X embeddings = (word_embeddings)(input_ids), token_type_ids, types;
    if (token_type_embeddings) {
      token_type_ids = zeros(input_ids.sizes(), DType::int64);
      types = (*token_type_embeddings)(token_type_ids);
      embeddings = embeddings.add(types);
      if (!named_) types.reset();
    }
    embeddings = (*norm)(embeddings);
    embeddings = (*dropout)(embeddings);
    return leave(embeddings, token_type_ids, types);
  }

 private:
  bool named_;
  Embedding &word_embeddings, *token_type_embeddings = nullptr;
  LayerNorm* norm;
  Dropout* dropout;
};

/// down(dropout(act(gate(x)) * up(x))), a bias in the last.
class GteMLP final : public Unary {
 public:
  explicit GteMLP(const EncoderConfig& c)
      : Unary("GteMLP"),
        gate_proj(child<Linear>("gate_proj", c.hidden, c.intermediate, false)),
        up_proj(child<Linear>("up_proj", c.hidden, c.intermediate, false)),
        down_proj(child<Linear>("down_proj", c.intermediate, c.hidden)),
        act_fn(child<Activation>("act_fn", c.act)),
        dropout(child<Dropout>("dropout", c.hidden_dropout)) {}

 protected:
  X forward(X x) override {
    X hidden_states = act_fn(gate_proj(x)).mul(up_proj(x));
    hidden_states = dropout(hidden_states);
    return down_proj(hidden_states);
  }

 private:
  Linear &gate_proj, &up_proj, &down_proj;
  Activation& act_fn;
  Dropout& dropout;
};

UnaryPtr make_mlp(const EncoderConfig& c, const NomicForm& form) {
  const std::string type = form.prefix + "MLP";
  switch (form.kind) {
    case Kind::gte: return std::make_shared<GteMLP>(c);
    case Kind::jina: return make_plain_mlp(type, "fc1", "fc2", c.hidden, c.intermediate, true, c.act);
    default: return make_gated_mlp(type, c.hidden, c.intermediate, false, c.act);
  }
}

class NomicLayer final : public DecoderLayer {
 public:
  NomicLayer(const EncoderConfig& c, const NomicForm& form)
      : DecoderLayer(form.prefix + "Layer", c.options),
        post_attention_layernorm(child<LayerNorm>("post_attention_layernorm", c.hidden)),
        post_attention_dropout(child<Dropout>("post_attention_dropout", c.hidden_dropout)),
        post_mlp_dropout(child<Dropout>("post_mlp_dropout", c.hidden_dropout)),
        mlp_(register_module("mlp", make_mlp(c, form))),
        self_attn_(register_module("self_attn", make_rotary_attention(c.options, {.type = form.prefix + "Attention",
                                                                                  .hidden = c.hidden,
                                                                                  .heads = c.heads,
                                                                                  .kv_heads = c.heads,
                                                                                  .head_dim = c.file.size_or("head_dim", c.head_dim),
                                                                                  .bias = form.kind != Kind::nomic,
                                                                                  .dropout = c.attention_dropout}))),
        post_mlp_layernorm(child<LayerNorm>("post_mlp_layernorm", c.hidden)) {}

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states;
    auto [attention_output, weights] = (*self_attn_)(hidden_states, call);
    hidden_states = residual.add(post_attention_dropout(attention_output));
    hidden_states = post_attention_layernorm(hidden_states);
    residual = hidden_states;
    hidden_states = (*mlp_)(hidden_states);
    hidden_states = residual.add(post_mlp_dropout(hidden_states));
    hidden_states = post_mlp_layernorm(hidden_states);
    return leave(hidden_states, residual, attention_output, weights);
  }

 private:
  LayerNorm& post_attention_layernorm;
  Dropout &post_attention_dropout, &post_mlp_dropout;
  UnaryPtr mlp_;
  MixerPtr self_attn_;
  LayerNorm& post_mlp_layernorm;
};

class NomicModel final : public EncoderBody {
 public:
  NomicModel(const EncoderConfig& c, const NomicForm& form, bool pools)
      : EncoderBody(form.prefix + "Model"),
        layers_get_ids_(form.kind == Kind::nomic),
        embeddings_(register_module("embeddings", std::make_shared<NomicEmbeddings>(c, form))),
        pooler_(pools ? register_module("pooler", make_pooler(form.prefix + "Pooler", c.hidden, c.hidden, "tanh")) : nullptr),
        rotary_emb(child<RotaryEmbedding>("rotary_emb", form.prefix + "RotaryEmbedding", c.file, c.file.size_or("head_dim", c.head_dim))),
        layers_(*this, "layers", c.layers, [&](I) { return std::make_shared<NomicLayer>(c, form); }) {}

 protected:
  EncoderOutput forward(X input_ids, bool) override {
    X position_ids = arange(input_ids.size(1)).unsqueeze(0).whole_slices(1);
    X hidden_states = (*embeddings_)(input_ids);
    X embedding_output = hidden_states;
    Pair position_embeddings = rotary_emb(hidden_states, position_ids);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, {{}, position_embeddings, layers_get_ids_ ? position_ids : X()});
    X pooled_output;
    if (pooler_) pooled_output = (*pooler_)(hidden_states);
    return {hidden_states, pooled_output};
  }

 private:
  bool layers_get_ids_;  ///< position_ids, which only a checkpointed call holds on to
  UnaryPtr embeddings_, pooler_;
  RotaryEmbedding& rotary_emb;
  Layers<NomicLayer> layers_;
};

/// GteLMHead and JinaEmbeddingsV3LMHead; the latter has the decoder's bias as a parameter of its own, too.
class LMHead final : public Unary {
 public:
  LMHead(const EncoderConfig& c, const NomicForm& form) : Unary(form.prefix + "LMHead") {
    if (form.kind == Kind::jina) new_parameter("bias", {c.vocab});
    dense = &child<Linear>("dense", c.hidden, c.hidden);
    layer_norm = &child<LayerNorm>("layer_norm", c.hidden);
    decoder = &child<Linear>("decoder", c.hidden, c.vocab);
  }

 protected:
  X forward(X features) override {
    X x = (*dense)(features);
    x = X(ops::gelu(x, "none"));
    x = (*layer_norm)(x);
    x = (*decoder)(x);
    return x;
  }

 private:
  Linear *dense, *decoder;
  LayerNorm* layer_norm;
};

void adjust_gte(EncoderConfig& c) {
  c.attention_dropout = c.file.number_or("attention_probs_dropout_prob", 0.0);
  c.is_decoder = false;
}
void adjust_nomic(EncoderConfig& c) {
  adjust_gte(c);
  c.act = c.file.text_or("hidden_act", "silu");
  c.hidden_dropout = c.file.number_or("hidden_dropout_prob", 0.0);
  c.classifier_dropout = c.file.number_or("classifier_dropout", c.hidden_dropout);
}

std::function<std::shared_ptr<EncoderBody>(const EncoderConfig&, bool)> body_of(NomicForm form, bool alone_pools) {
  return [=](const EncoderConfig& c, bool pools) {
    return std::make_shared<NomicModel>(c, form, c.options.task == Task::base ? alone_pools : pools);
  };
}

NetworkPtr nomic_bert(const Config& config, const Options& o) {
  EncoderForm f = bert_form("NomicBert", "nomic_bert");
  f.adjust = adjust_nomic;
  f.body = body_of({Kind::nomic, "NomicBert"}, false);
  return make_encoder(config, o, std::move(f));
}
NetworkPtr gte(const Config& config, const Options& o) {
  EncoderForm f = bert_form("Gte", "gte");
  f.adjust = adjust_gte;
  f.body = body_of({Kind::gte, "Gte"}, false);
  f.lm_head = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"lm_head", std::make_shared<LMHead>(c, NomicForm{Kind::gte, "Gte"})}};
  };
  f.ties = {{"lm_head.decoder.weight", "gte.embeddings.word_embeddings.weight"}};
  return make_encoder(config, o, std::move(f));
}
NetworkPtr jina(const Config& config, const Options& o) {
  EncoderForm f = roberta_form("JinaEmbeddingsV3", "roberta");
  f.adjust = [](EncoderConfig& c) { c.is_decoder = false; };
  f.body = body_of({Kind::jina, "JinaEmbeddingsV3"}, true);
  f.lm_head = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"lm_head", std::make_shared<LMHead>(c, NomicForm{Kind::jina, "JinaEmbeddingsV3"})}};
  };
  f.heads_first = true;
  return make_encoder(config, o, std::move(f));
}

std::vector<TaskClass> classes(const std::string& prefix, NetworkPtr (*make)(const Config&, const Options&), bool answers = false) {
  std::vector<TaskClass> list{{Task::masked_lm, prefix + "ForMaskedLM", make},
                              {Task::seq_cls, prefix + "ForSequenceClassification", make},
                              {Task::token_cls, prefix + "ForTokenClassification", make},
                              {Task::base, prefix + "Model", make}};
  if (answers) list.push_back({Task::question_answering, prefix + "ForQuestionAnswering", make});
  return list;
}
const Family nomic_bert_family{{"nomic_bert"}, classes("NomicBert", nomic_bert)};
const Family gte_family{{"gte"}, classes("Gte", gte)};
const Family jina_family{{"jina_embeddings_v3"}, classes("JinaEmbeddingsV3", jina, true)};

}  // namespace
}  // namespace memest::hf
