#include "models/hf/decoder.h"

#include "fake/checkpoint.h"
#include "models/hf/liger.h"
#include "models/hf/loss.h"

namespace memest::hf {

I layer_count(const Config& config) {
  constexpr I kMost = 10'000;
  const I layers = config.size("num_hidden_layers");
  if (layers > kMost)
    throw config.error("num_hidden_layers", "expected at most " + std::to_string(kMost) + " layers, found " + std::to_string(layers));
  return layers;
}

DecoderConfig::DecoderConfig(const Config& f, const Options& o) : file(f), options(o) {
  vocab = f.size("vocab_size");
  hidden = f.size("hidden_size");
  const ConfigValue* widths = f.find("intermediate_size");  // of some families a list
  intermediate = widths && !widths->list() && f.integer_if("intermediate_size") ? f.size("intermediate_size") : 0;
  layers = layer_count(f);
  heads = f.size("num_attention_heads");
  kv_heads = f.size_or("num_key_value_heads", heads);
  if (!f.has("head_dim") && hidden % heads != 0)
    throw f.error("num_attention_heads", "the hidden size " + std::to_string(hidden) + " is not a multiple of " + std::to_string(heads) +
                                             " attention heads, and no head_dim is given");
  head_dim = f.size_or("head_dim", hidden / heads);
  if (heads % kv_heads != 0)
    throw f.error("num_key_value_heads",
                  std::to_string(heads) + " attention heads are not a multiple of " + std::to_string(kv_heads) + " key-value heads");
  act = f.text_or("hidden_act", f.text_or("hidden_activation", "silu"));
  attention_dropout = f.number_or("attention_dropout", 0.0);
  attention_bias = f.boolean_or("attention_bias", false);
  mlp_bias = f.boolean_or("mlp_bias", false);
  tie = f.boolean_or("tie_word_embeddings", true);
  sliding_window = f.integer_if("sliding_window");
  if (f.has("layer_types")) layer_types = f.texts("layer_types");
  if (f.boolean_or("output_router_logits", false)) router_logits = std::make_shared<std::vector<X>>();
  if (f.has("layer_types") && I(layer_types.size()) != layers)
    throw f.error("layer_types",
                  "expected " + std::to_string(layers) + " entries, one for each layer, found " + std::to_string(layer_types.size()));
}

X DecoderLayer::operator()(X hidden_states, LayerCall call) {
  Entered scope(*this);
  if (checkpoint_ && training && runtime().grad_mode) {
    call.cache = nullptr;
    Tensors inputs{hidden_states};
    if (mask_by_position()) inputs.push_back(std::move(call.mask));
    Region region = [this, call](const Tensors& given) {
      if (given.size() == 1) return Tensors{forward(X(given[0]), call)};
      LayerCall with_mask = call;
      with_mask.mask = given[1];
      return Tensors{forward(X(given[0]), with_mask)};
    };
    return reentrant_ ? checkpoint_reentrant(std::move(region), inputs)[0] : memest::checkpoint(std::move(region), inputs)[0];
  }
  X result = forward(hidden_states, call);
  hidden_states.reset();
  return result;
}

// ---- attention -------------------------------------------------------------------------------------------------------------

DecoderAttention::DecoderAttention(const DecoderConfig& c, I layer, std::string type)
    : Mixer(std::move(type)),
      options_(c.options),
      layer_(layer),
      heads_(c.heads),
      kv_heads_(c.kv_heads),
      head_dim_(c.head_dim),
      groups_(c.heads / c.kv_heads),
      dropout_(c.attention_dropout) {}
DecoderAttention::DecoderAttention(const DecoderConfig& c, I layer, std::string type, Biases biases, const char* output)
    : DecoderAttention(c, layer, std::move(type)) {
  q_proj_ = &child<Linear>("q_proj", c.hidden, heads_ * head_dim_, biases.q);
  k_proj_ = &child<Linear>("k_proj", c.hidden, kv_heads_ * head_dim_, biases.k);
  v_proj_ = &child<Linear>("v_proj", c.hidden, kv_heads_ * head_dim_, biases.v);
  o_proj_ = &child<Linear>(output, heads_ * head_dim_, c.hidden, biases.o);
}

void DecoderAttention::project(Frame& f) {
  f.query = (*q_proj_)(f.hidden_states).view(f.hidden_shape).transpose(1, 2);
  f.key = (*k_proj_)(f.hidden_states).view(f.hidden_shape).transpose(1, 2);
  f.value = (*v_proj_)(f.hidden_states).view(f.hidden_shape).transpose(1, 2);
}
void DecoderAttention::rotate(Frame& f, const LayerCall& call) {
  std::tie(f.query, f.key) = apply_rotary_pos_emb(f.query, f.key, call.position_embeddings.first, call.position_embeddings.second);
}
Pair DecoderAttention::attend(Frame& f, AttentionCall call) {
  return attention_interface(options_, f.query, f.key, f.value, std::move(call));
}

Pair DecoderAttention::forward(X hidden_states, const LayerCall& call) {
  const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1);
  Frame f{hidden_states, input_shape, input_shape + Dims{-1, head_dim_}, {}, {}, {}};
  project(f);
  rotate(f, call);
  if (call.cache) std::tie(f.key, f.value) = call.cache->update(f.key, f.value, layer_);
  auto [attn_output, attn_weights] =
      attend(f, {.mask = call.mask, .groups = groups_, .dropout = training ? dropout_ : 0.0, .training = training});
  attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
  attn_output = output(std::move(attn_output));
  return leave(Pair(attn_output, attn_weights), f.query, f.key, f.value);
}

namespace {

class NormedAttention final : public DecoderAttention {
 public:
  NormedAttention(const DecoderConfig& c, I layer, std::string type, Biases biases, QkNorm where, Norm norm, const char* q_norm,
                  const char* k_norm)
      : DecoderAttention(c, layer, std::move(type), biases), where_(where) {
    const bool full = where == QkNorm::full;
    q_norm_ = register_module(q_norm, make_norm(norm, full ? heads_ * head_dim_ : head_dim_, "RMSNorm"));
    k_norm_ = register_module(k_norm, make_norm(norm, full ? kv_heads_ * head_dim_ : head_dim_, "RMSNorm"));
  }

 protected:
  void project(Frame& f) override {
    switch (where_) {
      case QkNorm::before_transpose:
        f.query = (*q_norm_)((*q_proj_)(f.hidden_states).view(f.hidden_shape)).transpose(1, 2);
        f.key = (*k_norm_)((*k_proj_)(f.hidden_states).view(f.hidden_shape)).transpose(1, 2);
        f.value = (*v_proj_)(f.hidden_states).view(f.hidden_shape).transpose(1, 2);
        break;
      case QkNorm::after_transpose:
        DecoderAttention::project(f);
        f.query = (*q_norm_)(f.query);
        f.key = (*k_norm_)(f.key);
        break;
      case QkNorm::full:
        f.query = (*q_norm_)((*q_proj_)(f.hidden_states));
        f.key = (*k_norm_)((*k_proj_)(f.hidden_states));
        f.value = (*v_proj_)(f.hidden_states);
        for (X* x : {&f.query, &f.key, &f.value}) *x = x->view(f.hidden_shape).transpose(1, 2);
        break;
    }
  }

 private:
  QkNorm where_;
  UnaryPtr q_norm_, k_norm_;
};

class GatedMLP final : public Unary {
 public:
  GatedMLP(std::string type, I hidden, I intermediate, bool bias, const std::string& act, double dropout)
      : Unary(std::move(type)),
        gate_proj(child<Linear>("gate_proj", hidden, intermediate, bias)),
        up_proj(child<Linear>("up_proj", hidden, intermediate, bias)),
        down_proj(child<Linear>("down_proj", intermediate, hidden, bias)),
        act_fn(child<Activation>("act_fn", act)),
        dropout_(dropout) {}

 protected:
  X forward(X x) override {
    X result = down_proj(act_fn(gate_proj(x)).mul(up_proj(x)));
    if (dropout_ > 0) result = ops::dropout(result, dropout_, training);
    return result;
  }

 private:
  Linear &gate_proj, &up_proj, &down_proj;
  Activation& act_fn;
  double dropout_;
};

class PlainMLP final : public Unary {
 public:
  PlainMLP(std::string type, const char* first, const char* second, I hidden, I intermediate, bool bias, const std::string& act,
           double dropout)
      : Unary(std::move(type)),
        first_(child<Linear>(first, hidden, intermediate, bias)),
        second_(child<Linear>(second, intermediate, hidden, bias)),
        act_(child<Activation>("act", act)),
        dropout_(dropout) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = first_(hidden_states);
    hidden_states = act_(hidden_states);
    hidden_states = second_(hidden_states);
    if (dropout_ > 0) hidden_states = ops::dropout(hidden_states, dropout_, training);
    return hidden_states;
  }

 private:
  Linear &first_, &second_;
  Activation& act_;
  double dropout_;
};

class FusedGatedMLP final : public Unary {
 public:
  FusedGatedMLP(std::string type, I hidden, I intermediate, const std::string& act)
      : Unary(std::move(type)),
        gate_up_proj(child<Linear>("gate_up_proj", hidden, 2 * intermediate, false)),
        down_proj(child<Linear>("down_proj", intermediate, hidden, false)),
        activation_fn(child<Activation>("activation_fn", act)) {}

 protected:
  X forward(X hidden_states) override {
    X up_states = gate_up_proj(hidden_states);
    std::vector<X> parts = up_states.chunk(2, -1);
    X gate = parts[0];
    up_states = parts[1];
    parts.clear();
    up_states = up_states.mul(activation_fn(gate));
    return down_proj(up_states);
  }

 private:
  Linear &gate_up_proj, &down_proj;
  Activation& activation_fn;
};

}  // namespace

MixerPtr make_attention(const DecoderConfig& c, I layer, std::string type, Biases biases) {
  return std::make_shared<DecoderAttention>(c, layer, std::move(type), biases);
}
MixerPtr make_attention_with_qk_norm(const DecoderConfig& c, I layer, std::string type, Biases biases, QkNorm where, Norm norm,
                                     const char* q_norm, const char* k_norm) {
  return std::make_shared<NormedAttention>(c, layer, std::move(type), biases, where, norm, q_norm, k_norm);
}
UnaryPtr make_gated_mlp(std::string type, I hidden, I intermediate, bool bias, const std::string& act, double dropout) {
  return std::make_shared<GatedMLP>(std::move(type), hidden, intermediate, bias, act, dropout);
}
UnaryPtr make_gated_mlp(std::string type, I hidden, I intermediate, bool bias, const std::string& act) {
  return make_gated_mlp(std::move(type), hidden, intermediate, bias, act, 0.0);
}
UnaryPtr make_plain_mlp(std::string type, const char* first, const char* second, I hidden, I intermediate, bool bias,
                        const std::string& act, double dropout) {
  return std::make_shared<PlainMLP>(std::move(type), first, second, hidden, intermediate, bias, act, dropout);
}
UnaryPtr make_fused_gated_mlp(std::string type, I hidden, I intermediate, const std::string& act) {
  return std::make_shared<FusedGatedMLP>(std::move(type), hidden, intermediate, act);
}

// ---- layers ------------------------------------------------------------------------------------------------------------------
namespace {

class StandardLayer final : public DecoderLayer {
 public:
  StandardLayer(const DecoderConfig& c, const LayerForm& form, MixerPtr attention, UnaryPtr mlp)
      : DecoderLayer(form.type, c.options), form_(form), self_attn_(std::move(attention)), mlp_(std::move(mlp)) {
    register_module(form.attention, self_attn_);
    register_module(form.mlp, mlp_);
    for (auto* name : form.norms) norms_.push_back(register_module(name, make_norm(form.norm, c.hidden, form.norm_type)));
    if (form.order == LayerForm::Order::glm4)
      norms_ = {norms_[0], norms_[2], norms_[1], norms_[3]};  // registered: input, post_attention, post_self_attn, post_mlp
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    using Order = LayerForm::Order;
    const bool before = form_.order != Order::post, after = form_.order != Order::pre;
    std::size_t n = 0;
    X residual = hidden_states;
    if (before) hidden_states = (*norms_[n++])(hidden_states);
    X weights;
    std::tie(hidden_states, weights) = (*self_attn_)(hidden_states, call);
    if (after) hidden_states = (*norms_[n++])(hidden_states);
    hidden_states = joined(residual, hidden_states);
    residual = hidden_states;
    if (before) hidden_states = (*norms_[n++])(hidden_states);
    hidden_states = (*mlp_)(hidden_states);
    if (after) hidden_states = (*norms_[n++])(hidden_states);
    hidden_states = joined(residual, hidden_states);
    return hidden_states;
  }

 private:
  X joined(const X& residual, const X& x) {
    if (form_.multiplier) return residual.add(x.mul(1.0));
    if (form_.dropout) return residual.add(X(ops::dropout(x, *form_.dropout, training)));
    return residual.add(x);
  }
  const LayerForm form_;
  MixerPtr self_attn_;
  UnaryPtr mlp_;
  std::vector<UnaryPtr> norms_;
};

class PlainEmbedding final : public Unary, public nn::InputEmbedding {
 public:
  PlainEmbedding(I count, I width) : Unary("Embedding") { new_parameter("weight", {count, width}); }

 protected:
  X forward(X indices) override { return hooked(ops::embedding(parameter(0), indices, -1, false, false)); }
};

}  // namespace

void default_layer_types(Config& config, const std::function<const char*(I)>& type) {
  if (config.has("layer_types")) return;
  ConfigValue::List list;
  for (I i = 0; i < layer_count(config); ++i) {
    ConfigValue s;
    s.value = std::string(type(i));
    list.push_back(std::move(s));
  }
  ConfigValue all;
  all.value = std::move(list);
  config.set("layer_types", std::move(all));
}

DecoderLayerPtr make_layer(const DecoderConfig& c, const LayerForm& form, MixerPtr attention, UnaryPtr mlp) {
  return std::make_shared<StandardLayer>(c, form, std::move(attention), std::move(mlp));
}

// ---- the model -----------------------------------------------------------------------------------------------------------------

std::vector<DecoderLayerPtr> DecoderBody::add_layers(const std::string& name, I count, const std::function<DecoderLayerPtr(I)>& make) {
  auto list = register_module(name, std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
  std::vector<DecoderLayerPtr> layers;
  for (I i = 0; i < count; ++i) {
    layers.push_back(make(i));
    list->append(layers.back());
  }
  return layers;
}

CachePtr DecoderBody::new_cache(const DecoderConfig& c, bool is_training) const {
  if (cache_) return cache_;
  if (!c.options.use_cache || (c.options.checkpoint && is_training && runtime().grad_mode)) return {};
  return dynamic_cache(c);
}
X DecoderBody::default_position_ids(const X& inputs_embeds) const {
  return position_ids_ ? position_ids_ : hf::default_position_ids(inputs_embeds);
}
CachePtr DecoderBody::dynamic_cache(const DecoderConfig& c) {
  std::vector<I> windows;
  for (I i = 0; i < c.layers; ++i) {
    const bool sliding = c.layer_types.empty() ? c.sliding_window.has_value() : c.sliding(i);
    windows.push_back(sliding ? c.sliding_window.value_or(0) : 0);
  }
  return std::make_shared<Cache>(windows);
}

X default_position_ids(const X& inputs_embeds) {
  X position_ids = arange(inputs_embeds.size(1)).add(0);
  return position_ids.unsqueeze(0);
}

DecoderModel::DecoderModel(std::shared_ptr<const DecoderConfig> config, std::shared_ptr<const DecoderForm> form)
    : DecoderBody(form->prefix + "Model"), c_(std::move(config)), form_(std::move(form)) {
  embed_tokens_ = register_module(form_->embedding_name,
                                  form_->embedding ? form_->embedding(*c_) : std::make_shared<PlainEmbedding>(c_->vocab, c_->hidden));
  layers_ = add_layers(form_->layers_name, c_->layers, [this](I i) { return form_->layer(*c_, i); });
  if (form_->rotary_before_norm && form_->rotary) rotary_emb_ = register_module("rotary_emb", form_->rotary(*c_));
  norm_ = register_module(form_->norm_name, make_norm(form_->norm, c_->hidden, form_->norm_type));
  if (!form_->rotary_before_norm && form_->rotary) rotary_emb_ = register_module("rotary_emb", form_->rotary(*c_));
}

bool DecoderModel::has_layers(bool sliding) const {
  for (I i = 0; i < c_->layers; ++i)
    if (c_->sliding(i) == sliding) return true;
  return false;
}

DecoderMasks DecoderModel::make_masks(const X& inputs_embeds, const Cache* cache, const X& position_ids) const {
  using Masks = DecoderForm::Masks;
  const MaskArguments arguments{c_->options, inputs_embeds, cache, position_ids};
  DecoderMasks made;
  if (form_->masks == Masks::sliding_if_set && c_->sliding_window) {
    made.full = create_sliding_window_causal_mask(arguments, *c_->sliding_window);
  } else if (form_->masks != Masks::by_layer_type) {
    made.full = create_causal_mask(arguments);
  } else {
    if (!form_->only_used_masks || has_layers(false)) made.full = create_causal_mask(arguments);
    if (form_->both_masks || has_layers(true))
      made.sliding = create_sliding_window_causal_mask(arguments, c_->file.integer("sliding_window"));
  }
  return made;
}

std::pair<X, CachePtr> DecoderModel::forward(X input) {
  X inputs_embeds = is_floating(input.dtype()) ? input : (*embed_tokens_)(input);
  if (form_->after_embedding) inputs_embeds = form_->after_embedding(inputs_embeds, *c_);
  CachePtr cache = new_cache(*c_, training);
  X position_ids = default_position_ids(inputs_embeds);
  const bool prepared = masks() && (masks()->mapping || masks()->full);
  auto [full, sliding, mapping] = prepared ? *masks() : make_masks(inputs_embeds, cache.get(), position_ids);
  X hidden_states = inputs_embeds;
  if (form_->first_hidden) hidden_states = form_->first_hidden(hidden_states, *c_, training);
  Pair embeddings, sliding_embeddings;
  if (rotary_emb_ && !form_->rotary_by_layer_type) embeddings = (*rotary_emb_)(hidden_states, position_ids);
  if (rotary_emb_ && form_->rotary_by_layer_type && has_layers(true))
    sliding_embeddings = (*rotary_emb_)(hidden_states, position_ids, "sliding_attention");
  if (rotary_emb_ && form_->rotary_by_layer_type && has_layers(false))
    embeddings = (*rotary_emb_)(hidden_states, position_ids, "full_attention");
  for (I i = 0; i < c_->layers; ++i) {
    const bool slides = form_->masks == DecoderForm::Masks::by_layer_type && c_->sliding(i);
    const bool linear = i < I(c_->layer_types.size()) && c_->layer_types[std::size_t(i)] == "linear_attention";
    const X& mask = slides ? sliding : full;
    hidden_states = (*layers_[std::size_t(i)])(
        hidden_states,
        {linear ? X() : mask, slides && form_->rotary_by_layer_type ? sliding_embeddings : embeddings, position_ids, cache.get()});
  }
  hidden_states = (*norm_)(hidden_states);
  return {leave(std::move(hidden_states), position_ids, inputs_embeds, full, sliding), cache};
}

X DecoderBody::embed(const X&) { throw Error(type() + " takes no inputs_embeds in memest"); }

std::shared_ptr<DecoderBody> make_decoder_body(const DecoderParts& parts) {
  return parts.form->body ? parts.form->body(parts.config, parts.form) : std::make_shared<DecoderModel>(parts.config, parts.form);
}
X slice_logits_to_keep(const X& hidden_states, std::optional<I> logits_to_keep) {
  return logits_to_keep ? hidden_states.slice(1, -*logits_to_keep, std::nullopt) : hidden_states.whole_slices(3);
}

Value model_output(std::initializer_list<X> tensors, const Cache* cache) {
  Values items;
  for (auto& x : tensors)
    if (x) items.emplace_back(Tensor(x));
  if (cache) cache->collect(items);
  return make_tuple(std::move(items));
}

namespace {

I head_width(const DecoderConfig& c, const DecoderForm& form) { return form.head_width ? form.head_width(c) : c.hidden; }
std::shared_ptr<DecoderBody> make_body(const std::shared_ptr<const DecoderConfig>& c, const std::shared_ptr<const DecoderForm>& form) {
  return make_decoder_body({c, form});
}

class DecoderForCausalLM final : public Network, public ChunksLoss {
 public:
  DecoderForCausalLM(std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm> form)
      : Network(form->prefix + form->causal_suffix, c->options),
        c_(c),
        form_(form),
        model_(register_module(form->base_prefix, make_body(c, form))),
        lm_head(child<Linear>(form->head_name, head_width(*c, *form), c->vocab, form->head_bias)) {
    if (c->tie) tie(std::string(form->head_name) + ".weight", std::string(form->base_prefix) + "." + form->embedding_name + ".weight");
  }
  bool generates() const override { return true; }
  CachePtr new_generation_cache() const override { return model_->new_generation_cache(*c_); }
  Step step(Batch batch) override {
    Entered scope(*this);
    auto [last_hidden_state, cache] = (*model_)(batch.input, batch.position_ids, batch.cache);
    X hidden_states = slice_logits_to_keep(last_hidden_state, batch.logits_to_keep);
    X logits = lm_head(hidden_states);
    if (form_->logits) logits = form_->logits(logits, *c_);
    if (!batch.logits_to_keep) logits = logits.to_float();
    return {logits, cache};
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto [last_hidden_state, cache] = (*model_)(batch.input);
    X hidden_states = slice_logits_to_keep(last_hidden_state, c_->options.logits_to_keep);
    X logits, loss;
    if (c_->options.chunked_loss && training && batch.labels) {  // lce_forward of liger_kernel
      loss = liger_causal_lm_loss(hidden_states, lm_head.weight(), lm_head.bias(), batch.labels);
    } else {
      logits = lm_head(hidden_states);
      if (form_->logits) logits = form_->logits(std::move(logits), *c_);
      if (batch.labels) loss = causal_lm_loss(logits, batch.labels, c_->vocab);
    }
    if (!c_->router_logits) return {model_output({loss, logits}, cache.get()), loss};
    const std::vector<X> router_logits = std::exchange(*c_->router_logits, {});
    X aux_loss;
    if (form_->aux_loss) aux_loss = form_->aux_loss(router_logits, *c_);
    if (aux_loss && loss) loss = ops::add_(loss, aux_loss.mul(1.0), 1);
    Values items;
    for (auto& x : {loss, aux_loss, logits})
      if (x) items.emplace_back(Tensor(x));
    if (cache) cache->collect(items);
    for (auto& x : router_logits) items.emplace_back(Tensor(x));
    return {make_tuple(std::move(items)), loss};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  std::shared_ptr<const DecoderForm> form_;
  std::shared_ptr<DecoderBody> model_;
  Linear& lm_head;
};

/// GenericForSequenceClassification (modeling_layers.py).
class DecoderForSequenceClassification final : public Network {
 public:
  DecoderForSequenceClassification(std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm> form)
      : Network(form->prefix + "ForSequenceClassification", c->options),
        c_(c),
        model_(register_module(form->base_prefix, make_body(c, form))),
        score(child<Linear>("score", head_width(*c, *form), num_labels(c->file), false)) {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto [hidden_states, cache] = (*model_)(batch.input);
    X logits = score(hidden_states);
    return classify_last_token(c_->file, batch.input, logits, batch.labels, cache.get());
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  std::shared_ptr<DecoderBody> model_;
  Linear& score;
};

/// GenericForQuestionAnswering.
class DecoderForQuestionAnswering final : public Network {
 public:
  DecoderForQuestionAnswering(std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm> form)
      : Network(form->prefix + "ForQuestionAnswering", c->options),
        model_(register_module(form->base_prefix, make_body(c, form))),
        qa_outputs(child<Linear>("qa_outputs", head_width(*c, *form), 2)) {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto [sequence_output, cache] = (*model_)(batch.input);
    X logits = qa_outputs(sequence_output);
    return answer_questions(logits, batch);
  }

 private:
  std::shared_ptr<DecoderBody> model_;
  Linear& qa_outputs;
};

/// GenericForTokenClassification.
class DecoderForTokenClassification final : public Network {
 public:
  DecoderForTokenClassification(std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm> form)
      : Network(form->prefix + "ForTokenClassification", c->options),
        c_(c),
        form_(form),
        model_(register_module(form->base_prefix, make_body(c, form))),
        dropout(child<Dropout>("dropout", c->file.number_or("classifier_dropout", c->file.number_or("hidden_dropout", 0.1)))),
        score(child<Linear>(form->token_classifier_name, c->hidden, num_labels(c->file),
                            c->file.boolean_or("token_classification_bias", true))) {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto [last_hidden_state, cache] = (*model_)(batch.input);
    X sequence_output = dropout(last_hidden_state);
    X logits = score(sequence_output);
    X loss;
    if (batch.labels)
      loss = form_->token_classification_loss ? form_->token_classification_loss(logits, batch.labels, num_labels(c_->file))
                                              : token_classification_loss(logits, batch.labels, num_labels(c_->file));
    return {model_output({loss, logits}), loss};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  std::shared_ptr<const DecoderForm> form_;
  std::shared_ptr<DecoderBody> model_;
  Dropout& dropout;
  Linear& score;
};

class DecoderAlone final : public Network {
 public:
  DecoderAlone(std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm> form)
      : Network(form->prefix + "Model", c->options), model_(register_module(form->base_prefix, make_body(c, form))) {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto [hidden_states, cache] = (*model_)(batch.input);
    return {model_output({hidden_states}, cache.get()), {}};
  }

 private:
  std::shared_ptr<DecoderBody> model_;
};

}  // namespace

nn::Outcome classify_last_token(const Config& config, const X& input_ids, const X& logits, const X& labels, const Cache* cache) {
  const I batch_size = input_ids.size(0);
  const bool padded = config.has("pad_token_id");
  if (!padded && batch_size != 1)
    throw Error("Cannot handle batch sizes > 1 if no padding token is defined.", "give the config a pad_token_id, or use --batch 1");
  X last_non_pad_token, pooled_logits, non_pad_mask, token_indices;
  if (padded) {
    non_pad_mask = aten("ne", {Tensor(input_ids), I{0}}).to(DType::int32);
    token_indices = arange(input_ids.size(-1), DType::int32);
    last_non_pad_token = aten("argmax", {Tensor(token_indices.mul(non_pad_mask)), I{-1}});
    pooled_logits = aten("index", {Tensor(logits), make_list({Tensor(arange(batch_size)), Tensor(last_non_pad_token)})});
  } else {
    pooled_logits = aten("index", {Tensor(logits.select(1, -1)), make_list({Tensor(arange(batch_size))})});
  }
  X loss;
  if (labels) loss = sequence_classification_loss(labels, pooled_logits, num_labels(config));
  return {model_output({loss, pooled_logits}, cache), loss};
}

nn::Outcome answer_questions(const X& logits, const Batch& batch, bool contiguous) {
  std::vector<X> parts = logits.split(1, -1);
  X start_logits = std::move(parts[0]), end_logits = std::move(parts[1]);
  start_logits = std::move(start_logits).squeeze(-1);
  if (contiguous) start_logits = start_logits.contiguous();
  end_logits = std::move(end_logits).squeeze(-1);
  if (contiguous) end_logits = end_logits.contiguous();
  X loss;
  if (batch.labels) loss = question_answering_loss(start_logits, end_logits, batch.labels, batch.end_positions);
  return {model_output({loss, start_logits, end_logits}), loss};
}

NetworkPtr make_decoder(const Config& config, const Options& options, DecoderForm form) {
  Options own = options;
  own.parts = nullptr;
  auto c = std::make_shared<const DecoderConfig>(config, own);
  auto f = std::make_shared<const DecoderForm>(std::move(form));
  if (options.parts) {
    *options.parts = {c, f};
    return nullptr;
  }
  switch (options.task) {
    case Task::seq_cls: return std::make_shared<DecoderForSequenceClassification>(c, f);
    case Task::question_answering: return std::make_shared<DecoderForQuestionAnswering>(c, f);
    case Task::token_cls: return std::make_shared<DecoderForTokenClassification>(c, f);
    case Task::base: return std::make_shared<DecoderAlone>(c, f);
    default: return std::make_shared<DecoderForCausalLM>(c, f);
  }
}

std::vector<TaskClass> decoder_classes(const std::string& prefix, NetworkPtr (*make)(const Config& config, const Options& options),
                                       std::initializer_list<Task> more) {
  std::vector<TaskClass> classes{{Task::causal_lm, prefix + "ForCausalLM", make},
                                 {Task::seq_cls, prefix + "ForSequenceClassification", make},
                                 {Task::base, prefix + "Model", make}};
  for (Task task : more)
    classes.push_back({task, prefix + (task == Task::token_cls ? "ForTokenClassification" : "ForQuestionAnswering"), make});
  return classes;
}

}  // namespace memest::hf
