#include "models/hf/encoder.h"

#include <algorithm>
#include <array>

#include "models/hf/loss.h"
#include "models/hf/padding.h"

namespace memest::hf {

EncoderConfig::EncoderConfig(const Config& f, const Options& o) : file(f), options(o) {
  vocab = f.size("vocab_size");
  hidden = f.size("hidden_size");
  embedding = hidden;
  intermediate = f.size_or("intermediate_size", 0);
  layers = layer_count(f);
  heads = f.size("num_attention_heads");
  positions = f.size("max_position_embeddings");
  types = f.integer_or("type_vocab_size", 0) == 0 ? 0 : f.size("type_vocab_size");
  if (hidden % heads != 0)
    throw f.error("num_attention_heads",
                  "expected a divisor of the hidden_size " + std::to_string(hidden) + ", found " + std::to_string(heads));
  head_dim = hidden / heads;
  pad_token = f.integer_if("pad_token_id");
  act = f.text_or("hidden_act", "gelu");
  hidden_dropout = f.number_or("hidden_dropout_prob", 0.1);
  attention_dropout = f.number_or("attention_probs_dropout_prob", 0.1);
  classifier_dropout = f.number_or("classifier_dropout", hidden_dropout);
  is_decoder = f.boolean_or("is_decoder", false);
  tie = f.boolean_or("tie_word_embeddings", true);
}

X position_ids_of(const X& input_ids, bool cached) {
  X mask = aten("ne", {Tensor(input_ids), I{1}}).to(DType::int32);
  X incremental_indices = aten("cumsum", {Tensor(mask), I{1}}).to(DType::int32);
  if (cached) incremental_indices = incremental_indices.add(0);
  incremental_indices = std::move(incremental_indices).mul(mask);
  X position_ids = incremental_indices.to(DType::int64).add(1);
  return leave(position_ids, mask, incremental_indices);
}

Pair bert_eager_attention_forward(X query, X key, X value, AttentionCall call) {
  X attn_weights = query.matmul(key.transpose(2, 3)).mul(1.0);
  if (call.mask) attn_weights = attn_weights.add(call.mask);
  attn_weights = attn_weights.softmax(-1);
  attn_weights = ops::dropout(attn_weights, call.dropout, call.training);
  X attn_output = attn_weights.matmul(value);
  attn_output = attn_output.transpose(1, 2).contiguous();
  return {attn_output, attn_weights};
}
Pair bert_attention_interface(const Options& options, X query, X key, X value, AttentionCall call) {
  if (options.attention == Attention::eager)
    return bert_eager_attention_forward(std::move(query), std::move(key), std::move(value), std::move(call));
  if (options.attention == Attention::flash)
    return flash_attention_forward(options, std::move(query), std::move(key), std::move(value), std::move(call));
  return sdpa_attention_forward(std::move(query), std::move(key), std::move(value), std::move(call));
}

namespace {

class SelfAttention final : public Mixer {
 public:
  SelfAttention(const EncoderConfig& c, I layer, std::string type)
      : Mixer(std::move(type)),
        options_(c.options),
        layer_(layer),
        head_dim_(c.head_dim),
        dropout_(c.attention_dropout),
        causal_(c.is_decoder) {
    query_ = &child<Linear>("query", c.hidden, c.hidden);
    key_ = &child<Linear>("key", c.hidden, c.hidden);
    value_ = &child<Linear>("value", c.hidden, c.hidden);
    child<Dropout>("dropout", c.attention_dropout);
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1);
    const Dims hidden_shape = input_shape + Dims{-1, head_dim_};
    X query_layer = (*query_)(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_layer = (*key_)(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_layer = (*value_)(hidden_states).view(hidden_shape).transpose(1, 2);
    if (call.cache) std::tie(key_layer, value_layer) = call.cache->update(key_layer, value_layer, layer_);
    auto [attn_output, attn_weights] =
        bert_attention_interface(options_, query_layer, key_layer, value_layer,
                                 {.mask = call.mask, .dropout = training ? dropout_ : 0.0, .training = training, .causal = causal_});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    return {attn_output, attn_weights};
  }

 private:
  const Options options_;
  I layer_, head_dim_;
  double dropout_;
  bool causal_;
  Linear *query_, *key_, *value_;
};

class Intermediate final : public Unary {
 public:
  Intermediate(std::string type, const EncoderConfig& c)
      : Unary(std::move(type)),
        dense(child<Linear>("dense", c.hidden, c.intermediate)),
        intermediate_act_fn(child<Activation>("intermediate_act_fn", c.act)) {}

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

class Pooler final : public Unary {
 public:
  Pooler(std::string type, I hidden, I out, const std::string& act)
      : Unary(std::move(type)), dense(child<Linear>("dense", hidden, out)), activation(child<Activation>("activation", act)) {}

 protected:
  X forward(X hidden_states) override {
    X first_token_tensor = hidden_states.whole_slices(1).select(1, 0);
    X pooled_output = dense(first_token_tensor);
    pooled_output = activation(pooled_output);
    return pooled_output;
  }

 private:
  Linear& dense;
  Activation& activation;
};

/// BertAttention.
class AttentionBlock final : public Mixer {
 public:
  AttentionBlock(const EncoderConfig& c, MixerPtr self, const std::string& prefix) : Mixer(prefix + "Attention") {
    self_ = register_module("self", std::move(self));
    output_ = register_module("output", make_residual_output(prefix + "SelfOutput", c, c.hidden));
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    auto [attention_output, attn_weights] = (*self_)(hidden_states, call);
    attention_output = (*output_)(attention_output, hidden_states);
    return {attention_output, attn_weights};
  }

 private:
  MixerPtr self_;
  JointPtr output_;
};

class EncoderLayer final : public DecoderLayer {
 public:
  EncoderLayer(const EncoderConfig& c, MixerPtr self, const std::string& prefix) : DecoderLayer(prefix + "Layer", c.options) {
    attention_ = register_module("attention", std::make_shared<AttentionBlock>(c, std::move(self), prefix));
    intermediate_ = register_module("intermediate", make_intermediate(prefix + "Intermediate", c));
    output_ = register_module("output", make_residual_output(prefix + "Output", c, c.intermediate));
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    auto [self_attention_output, weights] = (*attention_)(hidden_states, call);
    X intermediate_output = (*intermediate_)(self_attention_output);
    X layer_output = (*output_)(intermediate_output, self_attention_output);
    return layer_output;
  }

 private:
  MixerPtr attention_;
  UnaryPtr intermediate_;
  JointPtr output_;
};

class WordEmbeddings final : public Unary {
 public:
  WordEmbeddings(std::string type, const EncoderConfig& c, EmbeddingsForm form) : Unary(std::move(type)), form_(form) {
    new_buffer("position_ids", {1, c.positions}, DType::int64);
    new_buffer("token_type_ids", {1, c.positions}, DType::int64);
    word_embeddings = &child<Embedding>("word_embeddings", c.vocab, c.embedding, c.pad_token);
    if (!form.skip_padding) position_embeddings = &child<Embedding>("position_embeddings", c.positions, c.embedding);
    token_type_embeddings = &child<Embedding>("token_type_embeddings", c.types, c.embedding);
    if (form.norm) norm = &child<LayerNorm>("LayerNorm", c.embedding);
    dropout = &child<Dropout>("dropout", c.hidden_dropout);
    if (form.skip_padding) position_embeddings = &child<Embedding>("position_embeddings", c.positions, c.embedding, c.pad_token);
    if (form.task_types) task_type_embeddings = &child<Embedding>("task_type_embeddings", form.task_types, c.embedding);
  }

 protected:
  X forward(X input_ids) override {
    const I batch_size = input_ids.size(0), seq_length = input_ids.size(1);
    X position_ids = form_.skip_padding ? position_ids_of(input_ids) : X(buffer(0)).whole_slices(1).slice(1, 0, seq_length);
    X buffered_token_type_ids = X(buffer(1)).expand({position_ids.size(0), -1});
    buffered_token_type_ids = aten("gather", {Tensor(buffered_token_type_ids), I{1}, Tensor(position_ids)});
    X token_type_ids = buffered_token_type_ids.expand({batch_size, seq_length});
    X inputs_embeds = (*word_embeddings)(input_ids);
    X types = (*token_type_embeddings)(token_type_ids);
    X embeddings = inputs_embeds.add(types);
    X positions = (*position_embeddings)(position_ids);
    embeddings = embeddings.add(positions);
    X task_type_ids, tasks;
    if (task_type_embeddings) {
      task_type_ids = zeros({batch_size, seq_length}, DType::int64);
      tasks = (*task_type_embeddings)(task_type_ids);
      embeddings = embeddings.add_(tasks);
    }
    if (norm) embeddings = (*norm)(embeddings);
    embeddings = (*dropout)(embeddings);
    return embeddings;
  }

 private:
  EmbeddingsForm form_;
  Embedding *word_embeddings, *position_embeddings = nullptr, *token_type_embeddings, *task_type_embeddings = nullptr;
  LayerNorm* norm = nullptr;
  Dropout* dropout;
};

class UnaryLinear final : public Unary {
 public:
  UnaryLinear(I in, I out, bool bias) : Unary("Linear") {
    new_parameter("weight", {out, in});
    new_parameter("bias", {out}, bias);
  }

 protected:
  X forward(X input) override { return ops::linear(input, parameter(0), parameter(1)); }
};

class UnaryActivation final : public Unary {
 public:
  explicit UnaryActivation(const std::string& name) : Unary(Activation(name).type()), activation_(name) {}

 protected:
  X forward(X x) override { return activation_.forward(x); }

 private:
  Activation activation_;
};

class UnaryDropout final : public Unary {
 public:
  explicit UnaryDropout(double p) : Unary("Dropout"), p_(p) {}

 protected:
  X forward(X x) override { return ops::dropout(x, p_, training); }

 private:
  double p_;
};

class FirstToken final : public Unary {
 public:
  FirstToken() : Unary("FirstToken") {}

 protected:
  X forward(X x) override { return x.whole_slices(1).select(1, 0); }
};

class SequenceMean final : public Unary {
 public:
  SequenceMean() : Unary("SequenceMean") {}

 protected:
  X forward(X x) override { return x.mean(1); }
};

class SequenceSummary final : public Unary {
 public:
  SequenceSummary(std::string type, const Config& f, I hidden) : Unary(std::move(type)), kind_(f.text_or("summary_type", "last")) {
    static constexpr std::array kKinds{"last", "first", "mean", "cls_index"};
    if (std::find(kKinds.begin(), kKinds.end(), kind_) == kKinds.end())
      throw f.error("summary_type", "expected last, first, mean or cls_index, found '" + kind_.substr(0, 40) + "'");
    if (f.boolean_or("summary_use_proj", false))
      summary_ = &child<Linear>("summary", hidden, f.boolean_or("summary_proj_to_labels", false) ? num_labels(f) : hidden);
    const std::string act = f.text_or("summary_activation", "");
    if (!act.empty()) activation_ = &child<Activation>("activation", act);
    if (const double p = f.number_or("summary_first_dropout", 0.0); p > 0) first_dropout_ = &child<Dropout>("first_dropout", p);
    if (const double p = f.number_or("summary_last_dropout", 0.0); p > 0) last_dropout_ = &child<Dropout>("last_dropout", p);
  }

 protected:
  X forward(X hidden_states) override {
    X output, cls_index;
    if (kind_ == "last") {
      output = hidden_states.whole_slices(1).select(1, -1);
    } else if (kind_ == "first") {
      output = hidden_states.whole_slices(1).select(1, 0);
    } else if (kind_ == "mean") {
      output = hidden_states.mean(1);
    } else {
      cls_index = full({hidden_states.size(0), 1, hidden_states.size(2)}, hidden_states.size(1) - 1, DType::int64);
      output = X(aten("gather", {Tensor(hidden_states), I{-2}, Tensor(cls_index)})).squeeze(-2);
    }
    if (first_dropout_) output = (*first_dropout_)(output);
    if (summary_) output = (*summary_)(output);
    if (activation_) output = (*activation_)(output);
    if (last_dropout_) output = (*last_dropout_)(output);
    return output;
  }

 private:
  std::string kind_;
  Linear* summary_ = nullptr;
  Activation* activation_ = nullptr;
  Dropout *first_dropout_ = nullptr, *last_dropout_ = nullptr;
};

class ClassificationHead final : public Unary {
 public:
  ClassificationHead(std::string type, const EncoderConfig& c, const std::string& act)
      : Unary(std::move(type)),
        dense(child<Linear>("dense", c.hidden, c.hidden)),
        dropout(child<Dropout>("dropout", c.classifier_dropout)),
        activation(child<Activation>("activation", act)),
        out_proj(child<Linear>("out_proj", c.hidden, num_labels(c.file))) {}

 protected:
  X forward(X features) override {
    X x = features.whole_slices(1).select(1, 0);
    if (runtime().settings.torch.full_slice_records_node()) x = x.slice(1, std::nullopt, std::nullopt);
    x = dropout(x);
    x = dense(x);
    x = activation(x);
    x = dropout(x);
    x = out_proj(x);
    return x;
  }

 private:
  Linear& dense;
  Dropout& dropout;
  Activation& activation;
  Linear& out_proj;
};

class HeadTransform final : public Unary {
 public:
  HeadTransform(std::string type, I hidden, I out, const std::string& act)
      : Unary(std::move(type)),
        dense(child<Linear>("dense", hidden, out)),
        transform_act_fn(child<Activation>("transform_act_fn", act)),
        norm(child<LayerNorm>("LayerNorm", out)) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = dense(hidden_states);
    hidden_states = transform_act_fn(hidden_states);
    hidden_states = norm(hidden_states);
    return hidden_states;
  }

 private:
  Linear& dense;
  Activation& transform_act_fn;
  LayerNorm& norm;
};

class LMPredictionHead final : public Unary {
 public:
  LMPredictionHead(const EncoderConfig& c, const std::string& prefix) : Unary(prefix + "LMPredictionHead") {
    new_parameter("bias", {c.vocab});
    transform = &child<HeadTransform>("transform", prefix + "PredictionHeadTransform", c.hidden, c.hidden, c.act);
    decoder = &child<Linear>("decoder", c.hidden, c.vocab);
  }

 protected:
  X forward(X hidden_states) override {
    hidden_states = (*transform)(hidden_states);
    hidden_states = (*decoder)(hidden_states);
    return hidden_states;
  }

 private:
  HeadTransform* transform;
  Linear* decoder;
};

class OnlyMLMHead final : public Unary {
 public:
  OnlyMLMHead(const EncoderConfig& c, const std::string& prefix)
      : Unary(prefix + "OnlyMLMHead"), predictions(child<LMPredictionHead>("predictions", c, prefix)) {}

 protected:
  X forward(X sequence_output) override {
    X prediction_scores = predictions(sequence_output);
    return prediction_scores;
  }

 private:
  LMPredictionHead& predictions;
};

class RobertaLMHead final : public Unary {
 public:
  RobertaLMHead(const EncoderConfig& c, const std::string& prefix) : Unary(prefix + "LMHead") {
    new_parameter("bias", {c.vocab});
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

struct Shared {
  EncoderConfig c;
  EncoderForm form;
};
using SharedPtr = std::shared_ptr<const Shared>;

/// Modules called one after another, registered with their owner.
class Chain {
 public:
  void add(nn::Module& owner, const EncoderForm::Heads& heads) {
    for (auto& [name, module] : heads) {
      modules_.push_back(module);
      if (!name.empty()) owner.register_module(name, module);
    }
  }
  bool empty() const { return modules_.empty(); }
  X operator()(X x) const {
    for (auto& module : modules_) x = (*module)(x);
    return x;
  }
  /// `x` is the name under which the frame keeps what the last module gets.
  X last_of(X& x) const {
    for (std::size_t i = 0; i + 1 < modules_.size(); ++i) x = (*modules_[i])(x);
    return (*modules_.back())(x);
  }

 private:
  std::vector<UnaryPtr> modules_;
};

class EncoderStack final : public Base {
 public:
  explicit EncoderStack(const Shared& s)
      : Base(s.form.prefix + "Encoder"), layers_(*this, "layer", s.c.layers, [&](I i) {
          return s.form.layer ? s.form.layer(s.c, i) : make_encoder_layer(s.c, i, s.form.prefix);
        }) {
    if (!s.form.encoder_norm.empty()) norm_ = &child<LayerNorm>(s.form.encoder_norm, s.c.hidden);
  }
  X operator()(X hidden_states, const LayerCall& call) {
    Entered scope(*this);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, call);
    if (norm_) hidden_states = (*norm_)(hidden_states);
    return hidden_states;
  }

 private:
  Layers<DecoderLayer> layers_;
  LayerNorm* norm_ = nullptr;
};

class EncoderModel final : public EncoderBody {
 public:
  EncoderModel(SharedPtr s, bool pools) : EncoderBody(s->form.prefix + "Model"), s_(s) {
    if (s->form.typed_embeddings)
      typed_embeddings_ = register_module("embeddings", s->form.typed_embeddings(s->c));
    else
      embeddings_ = register_module("embeddings", s->form.embeddings(s->c));
    if (s->form.project && s->c.embedding != s->c.hidden) project_ = &child<Linear>("embeddings_project", s->c.embedding, s->c.hidden);
    if (s->form.masked_encoder)
      masked_encoder_ = register_module(s->form.encoder_name, s->form.masked_encoder(s->c));
    else if (s->form.encoder)
      own_encoder_ = register_module(s->form.encoder_name, s->form.encoder(s->c));
    else
      encoder_ = register_module(s->form.encoder_name, std::make_shared<EncoderStack>(*s));
    if (!s->form.norm_after.empty()) norm_ = &child<LayerNorm>(s->form.norm_after, s->c.hidden);
    if (pools && s->form.pools)
      pooler_.add(*this, s->form.pooler
                             ? s->form.pooler(s->c)
                             : EncoderForm::Heads{{"pooler", make_pooler(s->form.prefix + "Pooler", s->c.hidden, s->c.hidden, "tanh")}});
  }

 protected:
  EncoderOutput forward(X input_ids, bool use_cache) override {
    const Options& o = s_->c.options;
    CachePtr cache;
    if (s_->c.is_decoder && use_cache && o.use_cache && !(o.checkpoint && training && runtime().grad_mode))
      cache = std::make_shared<Cache>(std::vector<I>(std::size_t(s_->c.layers), 0));
    X attention_mask, token_type_ids;
    if (s_->form.ones_mask) {
      warn_if_padding(s_->c.file, input_ids);
      attention_mask = ones({input_ids.size(0), input_ids.size(1)}, DType::float32);
    }
    if (typed_embeddings_) token_type_ids = zeros({input_ids.size(0), input_ids.size(1)}, DType::int64);
    X embedding_output = typed_embeddings_ ? (*typed_embeddings_)(input_ids, token_type_ids) : (*embeddings_)(input_ids);
    if (project_) embedding_output = (*project_)(embedding_output);
    if (s_->form.ones_mask) {
      const MaskArguments arguments{.options = o, .inputs_embeds = embedding_output, .attention_mask = attention_mask};
      attention_mask = s_->c.is_decoder ? create_causal_mask(arguments) : create_bidirectional_mask(arguments);
    } else {
      attention_mask = s_->c.is_decoder ? create_causal_mask({o, embedding_output, cache.get()}) : create_bidirectional_mask();
    }
    const LayerCall call{attention_mask, {}, {}, cache.get()};
    X encoder_output = masked_encoder_ ? (*masked_encoder_)(embedding_output, call).first
                       : own_encoder_  ? (*own_encoder_)(embedding_output)
                                       : (*encoder_)(embedding_output, call);
    X sequence_output = encoder_output;
    if (norm_) sequence_output = (*norm_)(sequence_output);
    X pooled_output;
    if (!pooler_.empty()) pooled_output = pooler_(sequence_output);
    return {sequence_output, pooled_output, cache};
  }

 private:
  SharedPtr s_;
  UnaryPtr embeddings_, own_encoder_;
  JointPtr typed_embeddings_;
  MixerPtr masked_encoder_;
  Chain pooler_;
  Linear* project_ = nullptr;
  std::shared_ptr<EncoderStack> encoder_;
  LayerNorm* norm_ = nullptr;
};

class EncoderNetwork : public Network {
 public:
  EncoderNetwork(SharedPtr s, const std::string& suffix) : Network(s->form.prefix + suffix, s->c.options), s_(s) {}

 protected:
  /// The model, and what `add_head` registers beside it.
  template <class F>
  void add_model(bool pools, F add_head) {
    if (s_->form.heads_first) add_head();
    add_model(pools);
    if (!s_->form.heads_first) add_head();
  }
  void add_model(bool pools) {
    model_ = register_module(s_->form.base_prefix, s_->form.body ? s_->form.body(s_->c, pools) : std::make_shared<EncoderModel>(s_, pools));
  }

  SharedPtr s_;
  std::shared_ptr<EncoderBody> model_;
};

class EncoderForLM final : public EncoderNetwork {
 public:
  EncoderForLM(SharedPtr s, const std::string& suffix) : EncoderNetwork(s, suffix) {
    add_model(false, [&] { head_.add(*this, s->form.lm_head(s->c)); });
    if (!s->c.tie) return;
    for (auto& [from, to] : s->form.ties) tie(from, to);
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    const bool causal = options_.task == Task::causal_lm;
    auto outputs = (*model_)(batch.input, !batch.labels);
    X hidden_states = causal ? outputs.last_hidden_state.whole_slices(3) : outputs.last_hidden_state;
    X logits = head_(hidden_states);
    X loss;
    if (batch.labels)
      loss = (causal                   ? causal_lm_loss
              : s_->form.language_loss ? s_->form.language_loss
                                       : flat_cross_entropy)(logits, batch.labels, s_->c.vocab);
    return {model_output({loss, logits}, outputs.cache.get()), loss};
  }

 private:
  Chain head_;
};

class EncoderForSequenceClassification final : public EncoderNetwork {
 public:
  explicit EncoderForSequenceClassification(SharedPtr s) : EncoderNetwork(s, "ForSequenceClassification") {
    add_model(!s->form.classifier, [&] {
      if (s->form.classifier) {
        head_.add(*this, s->form.classifier(s->c));
      } else {
        dropout_ = &child<Dropout>("dropout", s->c.classifier_dropout);
        classifier_ = &child<Linear>("classifier", s->c.hidden, num_labels(s->c.file));
      }
    });
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto outputs = (*model_)(batch.input);
    X pooled_output = head_.empty() ? outputs.pooler_output : outputs.last_hidden_state;
    if (dropout_) pooled_output = (*dropout_)(pooled_output);
    X logits = head_.empty() ? (*classifier_)(pooled_output) : head_(pooled_output);
    X loss;
    if (batch.labels)
      loss = (s_->form.sequence_loss ? s_->form.sequence_loss : sequence_classification_loss)(batch.labels, logits, num_labels(s_->c.file));
    return {model_output({loss, logits}), loss};
  }

 private:
  Chain head_;
  Dropout* dropout_ = nullptr;
  Linear* classifier_ = nullptr;
};

class EncoderForTokenClassification final : public EncoderNetwork {
 public:
  explicit EncoderForTokenClassification(SharedPtr s) : EncoderNetwork(s, "ForTokenClassification") {
    add_model(false, [&] {
      head_.add(*this, s->form.token_classifier ? s->form.token_classifier(s->c)
                                                : EncoderForm::Heads{{"dropout", make_dropout(s->c.classifier_dropout)},
                                                                     {"classifier", make_linear(s->c.hidden, num_labels(s->c.file))}});
    });
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto outputs = (*model_)(batch.input);
    X sequence_output = outputs.last_hidden_state;
    X logits = head_.last_of(sequence_output);
    X loss;
    if (batch.labels) loss = flat_cross_entropy(logits, batch.labels, num_labels(s_->c.file));
    return {model_output({loss, logits}), loss};
  }

 private:
  Chain head_;
};

class EncoderForQuestionAnswering final : public EncoderNetwork {
 public:
  explicit EncoderForQuestionAnswering(SharedPtr s) : EncoderNetwork(s, "ForQuestionAnswering") {
    add_model(false, [&] {
      qa_outputs = &child<Linear>(s->form.answers_name, s->c.hidden, num_labels(s->c.file));
      if (s->form.before_answers) before_.add(*this, s->form.before_answers(s->c));
    });
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto outputs = (*model_)(batch.input);
    X sequence_output = before_(outputs.last_hidden_state);
    X logits = (*qa_outputs)(sequence_output);
    return answer_questions(logits, batch, !s_->form.answers_are_views);
  }

 private:
  Chain before_;
  Linear* qa_outputs;
};

class EncoderForMultipleChoice final : public EncoderNetwork {
 public:
  explicit EncoderForMultipleChoice(SharedPtr s) : EncoderNetwork(s, "ForMultipleChoice") {
    add_model(!s->form.choice, [&] {
      head_.add(*this, s->form.choice ? s->form.choice(s->c)
                                      : EncoderForm::Heads{{"dropout", make_dropout(s->c.classifier_dropout)},
                                                           {"classifier", make_linear(s->c.hidden, 1)}});
    });
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    const I num_choices = batch.input.size(1);
    X input_ids = batch.input.view({-1, batch.input.size(-1)});
    auto outputs = (*model_)(input_ids);
    X pooled_output = s_->form.choice ? outputs.last_hidden_state : outputs.pooler_output;
    X logits = head_(pooled_output);
    X reshaped_logits = logits.view({-1, num_choices});
    X loss;
    if (batch.labels) loss = cross_entropy(reshaped_logits, batch.labels);
    return {model_output({loss, reshaped_logits}), loss};
  }

 private:
  Chain head_;
};

class EncoderForPreTraining final : public EncoderNetwork {
 public:
  explicit EncoderForPreTraining(SharedPtr s) : EncoderNetwork(s, "ForPreTraining") {
    add_model(!s->form.discriminator);
    if (s->form.discriminator) {
      discriminator_.add(*this, s->form.discriminator(s->c));
    } else {
      const auto heads = s->form.pretraining(s->c);
      nn::Module& owner =
          heads.name.empty() ? *this : static_cast<nn::Module&>(child<Base>(heads.name, s->form.prefix + "PreTrainingHeads"));
      language_.add(owner, heads.language);
      relation_.add(owner, heads.relation);
      if (s->c.tie)
        for (auto& [from, to] : s->form.ties) tie(from, to);
    }
  }
  std::vector<nn::InputSpec> inputs() const override {
    auto list = EncoderNetwork::inputs();
    if (options_.labels && !s_->form.discriminator) list.push_back({"next_sentence_label", {nn::SizeExpression("batch")}, DType::int64});
    return list;
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto outputs = (*model_)(batch.input);
    X loss;
    if (language_.empty()) {
      X logits = discriminator_(outputs.last_hidden_state);
      if (batch.labels)
        loss = aten("binary_cross_entropy_with_logits",
                    {Tensor(logits.view({-1, outputs.last_hidden_state.size(1)})), Tensor(batch.labels.to_float())});
      return {model_output({loss, logits}), loss};
    }
    X prediction_scores = language_(outputs.last_hidden_state);
    X seq_relationship_score = relation_(outputs.pooler_output);
    if (batch.labels) {
      X masked_lm_loss = flat_cross_entropy(prediction_scores, batch.labels, s_->c.vocab);
      X next_sentence_loss = flat_cross_entropy(seq_relationship_score, batch.next_sentence_label, 2);
      loss = masked_lm_loss.add(next_sentence_loss);
    }
    return {model_output({loss, prediction_scores, seq_relationship_score}), loss};
  }

 private:
  Chain discriminator_, language_, relation_;
};

/// The model itself.
class EncoderAlone final : public EncoderNetwork {
 public:
  explicit EncoderAlone(SharedPtr s) : EncoderNetwork(s, "Model") { add_model(true); }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto outputs = (*model_)(batch.input);
    return {model_output({outputs.last_hidden_state, outputs.pooler_output}, outputs.cache.get()), {}};
  }
};

}  // namespace

MixerPtr make_self_attention(const EncoderConfig& c, I layer, const std::string& prefix) {
  return std::make_shared<SelfAttention>(c, layer, prefix + "SelfAttention");
}
JointPtr make_residual_output(std::string type, const EncoderConfig& c, I in) {
  return std::make_shared<ResidualOutput<LayerNorm>>(std::move(type), c, in);
}
UnaryPtr make_intermediate(std::string type, const EncoderConfig& c) { return std::make_shared<Intermediate>(std::move(type), c); }
UnaryPtr make_pooler(std::string type, I hidden, I out, const std::string& act) {
  return std::make_shared<Pooler>(std::move(type), hidden, out, act);
}
DecoderLayerPtr make_encoder_layer(const EncoderConfig& c, I layer, const std::string& prefix) {
  if (c.file.boolean_or("add_cross_attention", false)) throw c.file.error("add_cross_attention", "memest does not build cross-attention");
  return make_encoder_layer(c, make_self_attention(c, layer, prefix), prefix);
}
DecoderLayerPtr make_encoder_layer(const EncoderConfig& c, MixerPtr self_attention, const std::string& prefix) {
  return std::make_shared<EncoderLayer>(c, std::move(self_attention), prefix);
}
UnaryPtr make_embeddings(std::string type, const EncoderConfig& c, EmbeddingsForm form) {
  return std::make_shared<WordEmbeddings>(std::move(type), c, form);
}
UnaryPtr make_linear(I in, I out, bool bias) { return std::make_shared<UnaryLinear>(in, out, bias); }
UnaryPtr make_activation(const std::string& name) { return std::make_shared<UnaryActivation>(name); }
UnaryPtr make_dropout(double p) { return std::make_shared<UnaryDropout>(p); }
UnaryPtr make_sequence_mean() { return std::make_shared<SequenceMean>(); }
UnaryPtr make_first_token() { return std::make_shared<FirstToken>(); }
UnaryPtr make_classification_head(std::string type, const EncoderConfig& c, const std::string& act) {
  return std::make_shared<ClassificationHead>(std::move(type), c, act);
}
UnaryPtr make_sequence_summary(std::string type, const Config& file, I hidden) {
  return std::make_shared<SequenceSummary>(std::move(type), file, hidden);
}
UnaryPtr make_mlm_head(const EncoderConfig& c, const std::string& prefix) { return std::make_shared<OnlyMLMHead>(c, prefix); }
UnaryPtr make_head_transform(std::string type, I hidden, I out, const std::string& act) {
  return std::make_shared<HeadTransform>(std::move(type), hidden, out, act);
}
UnaryPtr make_roberta_lm_head(const EncoderConfig& c, const std::string& prefix) { return std::make_shared<RobertaLMHead>(c, prefix); }

EncoderForm roberta_form(const std::string& prefix, const std::string& base, EmbeddingsForm embeddings) {
  EncoderForm f;
  f.prefix = prefix;
  f.base_prefix = base;
  f.embeddings = [=](const EncoderConfig& c) { return make_embeddings(prefix + "Embeddings", c, embeddings); };
  f.lm_head = [=](const EncoderConfig& c) { return EncoderForm::Heads{{"lm_head", make_roberta_lm_head(c, prefix)}}; };
  f.ties = {{"lm_head.decoder.weight", base + ".embeddings.word_embeddings.weight"}, {"lm_head.decoder.bias", "lm_head.bias"}};
  f.classifier = [=](const EncoderConfig& c) {
    return EncoderForm::Heads{{"classifier", make_classification_head(prefix + "ClassificationHead", c, "tanh")}};
  };
  return f;
}
EncoderForm bert_form(const std::string& prefix, const std::string& base) {
  EncoderForm f;
  f.prefix = prefix;
  f.base_prefix = base;
  f.embeddings = [=](const EncoderConfig& c) { return make_embeddings(prefix + "Embeddings", c, {}); };
  f.lm_head = [=](const EncoderConfig& c) { return EncoderForm::Heads{{"cls", make_mlm_head(c, prefix)}}; };
  f.ties = {{"cls.predictions.decoder.weight", base + ".embeddings.word_embeddings.weight"},
            {"cls.predictions.decoder.bias", "cls.predictions.bias"}};
  f.pretraining = [=](const EncoderConfig& c) {
    return EncoderForm::TwoHeads{
        "cls", {{"predictions", std::make_shared<LMPredictionHead>(c, prefix)}}, {{"seq_relationship", make_linear(c.hidden, 2)}}};
  };
  return f;
}

NetworkPtr make_encoder(const Config& config, const Options& options, EncoderForm form) {
  EncoderConfig c(config, options);
  if (form.project && config.has("embedding_size")) c.embedding = config.size("embedding_size");
  if (form.adjust) form.adjust(c);
  auto s = std::make_shared<const Shared>(Shared{std::move(c), std::move(form)});
  switch (options.task) {
    case Task::seq_cls: return std::make_shared<EncoderForSequenceClassification>(s);
    case Task::token_cls: return std::make_shared<EncoderForTokenClassification>(s);
    case Task::question_answering: return std::make_shared<EncoderForQuestionAnswering>(s);
    case Task::multiple_choice: return std::make_shared<EncoderForMultipleChoice>(s);
    case Task::pretraining: return std::make_shared<EncoderForPreTraining>(s);
    case Task::base: return std::make_shared<EncoderAlone>(s);
    case Task::causal_lm: return std::make_shared<EncoderForLM>(s, s->form.causal_name.empty() ? "ForCausalLM" : s->form.causal_name);
    default: return std::make_shared<EncoderForLM>(s, "ForMaskedLM");
  }
}
std::vector<TaskClass> bidirectional_classes(const std::string& prefix, NetworkPtr (*make)(const Config& config, const Options& options),
                                             bool pretrains) {
  std::vector<TaskClass> classes{{Task::masked_lm, prefix + "ForMaskedLM", make},
                                 {Task::seq_cls, prefix + "ForSequenceClassification", make},
                                 {Task::token_cls, prefix + "ForTokenClassification", make},
                                 {Task::question_answering, prefix + "ForQuestionAnswering", make},
                                 {Task::multiple_choice, prefix + "ForMultipleChoice", make},
                                 {Task::base, prefix + "Model", make}};
  if (pretrains) classes.push_back({Task::pretraining, prefix + "ForPreTraining", make});
  return classes;
}
std::vector<TaskClass> encoder_classes(const std::string& prefix, NetworkPtr (*make)(const Config& config, const Options& options),
                                       const std::string& causal_name, bool pretrains) {
  std::vector<TaskClass> classes = bidirectional_classes(prefix, make, pretrains);
  classes.insert(classes.begin() + 1, {Task::causal_lm, prefix + (causal_name.empty() ? "ForCausalLM" : causal_name), make});
  return classes;
}

}  // namespace memest::hf
