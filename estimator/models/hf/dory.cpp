// models/dory: layers with learned rates for norms (nGPT), the middle ones run several times.
#include "models/hf/decoder.h"
#include "models/hf/loss.h"

namespace memest::hf {
namespace {

/// x * rsqrt(sum(x^2) + eps), from x.float().
class DoryL2Norm final : public Unary {
 public:
  DoryL2Norm() : Unary("DoryL2Norm") {}

 protected:
  X forward(X x) override {
    X output = normed(x.to_float());
    return std::move(output).to(x.dtype());
  }

 private:
  static X normed(const X& x) { return x.mul(x.pow(2).sum(-1, true).add(1e-6).rsqrt()); }
};

class DoryAttention final : public DecoderAttention {
 public:
  DoryAttention(const DecoderConfig& c, I layer) : DecoderAttention(c, layer, "DoryAttention"), first_(layer) {
    const bool b = c.attention_bias;
    q_proj_ = &child<Linear>("q_proj", c.hidden, heads_ * head_dim_, b);
    k_proj_ = &child<Linear>("k_proj", c.hidden, kv_heads_ * head_dim_, b);
    v_proj_ = &child<Linear>("v_proj", c.hidden, kv_heads_ * head_dim_, b);
    o_proj_ = &child<Linear>("o_proj", heads_ * head_dim_, c.hidden, b);
    q_norm = &child<DoryL2Norm>("q_norm");
    k_norm = &child<DoryL2Norm>("k_norm");
    gate_proj = &child<Linear>("gate_proj", c.hidden, heads_ * head_dim_, false);
    attn_sub_norm = &child<DoryL2Norm>("attn_sub_norm");
    new_parameter("sqk", {heads_ * head_dim_});
    new_parameter("s_gate", {heads_ * head_dim_});
  }
  void set_cache_offset(I offset) { layer_ = first_ + offset; }

 protected:
  void project(Frame& f) override {
    f.query = (*q_proj_)(f.hidden_states).view(f.hidden_shape);
    f.key = (*k_proj_)(f.hidden_states).view(f.hidden_shape);
    f.value = (*v_proj_)(f.hidden_states).view(f.hidden_shape);
    gate_states_ = (*gate_proj)(f.hidden_states);
    f.query = (*q_norm)(f.query).transpose(1, 2);
    f.key = (*k_norm)(f.key).transpose(1, 2);
    f.value = f.value.transpose(1, 2);
  }
  void rotate(Frame& f, const LayerCall& call) override {
    DecoderAttention::rotate(f, call);
    X query_scale = X(parameter(0)).mul(1.0).view({-1, 1, head_dim_});
    X square = query_scale.pow(2);
    f.query = f.query.mul(std::move(square));
    f.locals = {std::move(gate_states_), query_scale};
    gate_states_.reset();
  }
  Pair attend(Frame& f, AttentionCall call) override {
    Pair result = DecoderAttention::attend(f, std::move(call));
    X output = result.first.view(f.input_shape + Dims{-1}).contiguous();
    X rate = X(parameter(1)).mul(1.0).pow(2);
    X gate = f.locals[0].mul(std::move(rate)).sigmoid();
    result.first = output.mul(std::move(gate));
    return result;
  }
  X output(X attn_output) override { return (*o_proj_)((*attn_sub_norm)(attn_output)); }

 private:
  I first_;
  DoryL2Norm *q_norm, *k_norm, *attn_sub_norm;
  Linear* gate_proj;
  X gate_states_;  ///< between project and rotate
};

class DoryMLP final : public Unary {
 public:
  explicit DoryMLP(const DecoderConfig& c)
      : Unary("DoryMLP"),
        gate_proj(child<Linear>("gate_proj", c.hidden, c.intermediate, c.mlp_bias)),
        up_proj(child<Linear>("up_proj", c.hidden, c.intermediate, c.mlp_bias)),
        down_proj(child<Linear>("down_proj", c.intermediate, c.hidden, c.mlp_bias)),
        act_fn(child<Activation>("act_fn", c.act)),
        ffn_sub_norm(child<DoryL2Norm>("ffn_sub_norm")) {
    new_parameter("suv_gate", {c.intermediate});
    new_parameter("suv_up", {c.intermediate});
  }

 protected:
  X forward(X hidden_states) override {
    X gate = scaled(gate_proj, hidden_states, 0);
    X up = scaled(up_proj, hidden_states, 1);
    X product = act_fn(gate).mul(up);
    return down_proj(ffn_sub_norm(std::move(product)));
  }

 private:
  X scaled(Linear& projection, const X& x, std::size_t factor) {
    X projected = projection(x);
    X factors = X(parameter(factor)).mul(1.0);
    return std::move(projected).mul(std::move(factors));
  }
  Linear &gate_proj, &up_proj, &down_proj;
  Activation& act_fn;
  DoryL2Norm& ffn_sub_norm;
};

class DoryDecoderLayer final : public DecoderLayer {
 public:
  DoryDecoderLayer(const DecoderConfig& c, std::shared_ptr<DoryAttention> attention) : DecoderLayer("DoryDecoderLayer", c.options) {
    self_attn_ = register_module("self_attn", std::move(attention));
    mlp_ = register_module("mlp", std::make_shared<DoryMLP>(c));
    input_layernorm = &child<DoryL2Norm>("input_layernorm");
    post_attention_layernorm = &child<DoryL2Norm>("post_attention_layernorm");
    pre_feedforward_layernorm = &child<DoryL2Norm>("pre_feedforward_layernorm");
    post_feedforward_layernorm = &child<DoryL2Norm>("post_feedforward_layernorm");
    new_parameter("lambda_1", {c.hidden});
    new_parameter("lambda_2", {c.hidden});
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    hidden_states = (*input_layernorm)(hidden_states);
    auto [attn_output, weights] = (*self_attn_)(hidden_states, call);
    attn_output = (*post_attention_layernorm)(attn_output);
    X attention_rate = aten("abs", {Tensor(X(parameter(0)).mul(1.0))});
    hidden_states = moved(hidden_states, attention_rate, attn_output);
    hidden_states = (*pre_feedforward_layernorm)(hidden_states);
    X mlp_output = (*post_feedforward_layernorm)((*mlp_)(hidden_states));
    X mlp_rate = aten("abs", {Tensor(X(parameter(1)).mul(1.0))});
    hidden_states = moved(hidden_states, mlp_rate, mlp_output);
    return leave(hidden_states, attn_output, weights, attention_rate, mlp_output, mlp_rate);
  }

 private:
  static X moved(const X& hidden_states, const X& rate, const X& output) {
    X step = output.sub(hidden_states);
    step = rate.mul(std::move(step));
    return hidden_states.add(std::move(step));
  }
  MixerPtr self_attn_;
  UnaryPtr mlp_;
  DoryL2Norm *input_layernorm, *post_attention_layernorm, *pre_feedforward_layernorm, *post_feedforward_layernorm;
};

class DoryModel final : public DecoderBody {
 public:
  explicit DoryModel(std::shared_ptr<const DecoderConfig> config) : DecoderBody("DoryModel"), c_(std::move(config)) {
    first_ = c_->file.integer("n_input_layers");
    recurrent_ = c_->file.integer("n_recurrent_layers");
    last_ = c_->file.integer("n_output_layers");
    loops_ = c_->file.size_or("n_recurrent_loops", 2);
    last_loop_only_ = c_->file.text_or("recurrent_kv_cache_mode", "per_loop") == "last_loop";
    embed_tokens = &child<Embedding>("embed_tokens", c_->vocab, c_->hidden);
    layers_ = add_layers("layers", c_->layers, [this](I i) {
      attentions_.push_back(std::make_shared<DoryAttention>(*c_, i));
      return std::make_shared<DoryDecoderLayer>(*c_, attentions_.back());
    });
    norm = &child<DoryL2Norm>("norm");
    RotaryEmbedding::Form form;
    for (const char* type : {"full_attention", "sliding_attention"})
      if (has(type)) form.layer_types.emplace_back(type, c_->head_dim);
    rotary_emb = register_module("rotary_emb", std::make_shared<RotaryEmbedding>("DoryRotaryEmbedding", c_->file, c_->head_dim, form));
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*embed_tokens)(input_ids);
    CachePtr cache = new_cache(*c_, training);
    X position_ids = default_position_ids(inputs_embeds);
    const MaskArguments arguments{
        .options = c_->options, .inputs_embeds = inputs_embeds, .cache = cache.get(), .position_ids = position_ids};
    X full = create_causal_mask(arguments);
    X sliding = create_sliding_window_causal_mask(arguments, c_->sliding_window.value_or(1024));
    Pair full_embeddings, sliding_embeddings;
    if (has("full_attention")) full_embeddings = (*rotary_emb)(inputs_embeds, position_ids, "full_attention");
    if (has("sliding_attention")) sliding_embeddings = (*rotary_emb)(inputs_embeds, position_ids, "sliding_attention");
    const auto [recurrent_start, recurrent_end] = range(first_, first_ + recurrent_);
    if (cache && !last_loop_only_) {  // a cache for each loop
      std::vector<I> windows;
      for (I i = 0; i < c_->layers; ++i) windows.push_back(window(i));
      for (I loop = 1; loop < loops_; ++loop)
        for (I i = recurrent_start; i < recurrent_end; ++i) windows.push_back(window(i));
      cache = std::make_shared<Cache>(windows);
    }
    X hidden_states = inputs_embeds;
    auto run = [&](std::pair<I, I> layers, I offset, Cache* used) {
      for (I i = layers.first; i < layers.second; ++i) {
        attentions_[std::size_t(i)]->set_cache_offset(offset);
        hidden_states = (*layers_[std::size_t(i)])(
            hidden_states, {c_->sliding(i) ? sliding : full, c_->sliding(i) ? sliding_embeddings : full_embeddings, {}, used});
      }
    };
    run(range(0, first_), 0, cache.get());
    const I offset = c_->layers - first_ - recurrent_;
    X input_hidden_states = (*norm)(hidden_states);
    for (I loop = 0; loop < loops_; ++loop) {
      X normed = (*norm)(hidden_states);
      hidden_states = std::move(normed).add(input_hidden_states);
      const bool shared = last_loop_only_ && loop < loops_ - 1;
      run({recurrent_start, recurrent_end}, loop == 0 || last_loop_only_ ? 0 : offset + loop * recurrent_, shared ? nullptr : cache.get());
    }
    run(range(c_->layers - last_, c_->layers), 0, cache.get());
    hidden_states = (*norm)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  bool has(const char* type) const { return std::find(c_->layer_types.begin(), c_->layer_types.end(), type) != c_->layer_types.end(); }
  I window(I layer) const { return c_->sliding(layer) ? c_->sliding_window.value_or(0) : 0; }
  /// self.layers[from:to], with Python's negative bounds.
  std::pair<I, I> range(I from, I to) const {
    auto bound = [n = c_->layers](I v) { return std::clamp<I>(v < 0 ? v + n : v, 0, n); };
    return {bound(from), std::max(bound(from), bound(to))};
  }

  std::shared_ptr<const DecoderConfig> c_;
  I first_, recurrent_, last_, loops_;
  bool last_loop_only_;
  Embedding* embed_tokens;
  std::vector<std::shared_ptr<DoryAttention>> attentions_;
  std::vector<DecoderLayerPtr> layers_;
  DoryL2Norm* norm;
  std::shared_ptr<RotaryEmbedding> rotary_emb;
};

/// A linear layer whose logits are scaled one by one, in fp32.
class DoryLMHead final : public Module<DoryLMHead> {
 public:
  DoryLMHead(I in, I out) : Module("DoryLMHead") {
    new_parameter("weight", {out, in});
    new_parameter("logit_scale", {out});
  }
  X forward(const X& hidden_states) {
    X logits = ops::linear(hidden_states, parameter(0), Tensor());
    logits = logits.to_float();
    X scale = X(parameter(1)).to_float().mul(1.0);
    return logits.mul(std::move(scale));
  }
};

class DoryForCausalLM final : public Network {
 public:
  explicit DoryForCausalLM(const std::shared_ptr<const DecoderConfig>& c)
      : Network("DoryForCausalLM", c->options),
        c_(c),
        model_(register_module("model", std::make_shared<DoryModel>(c))),
        lm_head(child<DoryLMHead>("lm_head", c->hidden, c->vocab)) {
    if (c->tie) tie("lm_head.weight", "model.embed_tokens.weight");
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto [last_hidden_state, cache] = (*model_)(batch.input);
    X hidden_states = last_hidden_state.whole_slices(3);
    X logits = lm_head(hidden_states);
    X loss;
    if (batch.labels) loss = causal_lm_loss(logits, batch.labels, c_->vocab);
    return {model_output({loss, logits}, cache.get()), loss};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  std::shared_ptr<DoryModel> model_;
  DoryLMHead& lm_head;
};

/// DoryConfig.__post_init__: a file that lists attention and MLP as layers of their own has two for each.
NetworkPtr dory(const Config& given, const Options& o) {
  Config config = given;
  auto halve = [&config](const char* key) {
    ConfigValue v;
    const I value = config.integer(key);
    v.value = value >= 0 ? value / 2 : (value - 1) / 2;
    config.set(key, std::move(v));
  };
  if (config.has("layer_types")) {
    const std::vector<std::string> types = config.texts("layer_types");
    if (std::find(types.begin(), types.end(), "mlp") != types.end()) {
      ConfigValue::List list;
      for (std::size_t i = 0; i < types.size(); i += 2) {
        ConfigValue name;
        name.value = types[i];
        list.push_back(std::move(name));
      }
      ConfigValue all;
      all.value = std::move(list);
      config.set("layer_types", std::move(all));
      halve("num_hidden_layers");
      halve("n_input_layers");
      halve("n_output_layers");
      if (config.has("n_recurrent_layers")) halve("n_recurrent_layers");
    }
  }
  default_layer_types(config, [](I i) { return (i + 1) % 4 ? "sliding_attention" : "full_attention"; });
  if (!config.has("n_recurrent_layers")) {
    ConfigValue v;
    v.value = layer_count(config) - config.integer("n_input_layers") - config.integer("n_output_layers");
    config.set("n_recurrent_layers", std::move(v));
  }
  if (config.integer("n_input_layers") + config.integer("n_recurrent_layers") + config.integer("n_output_layers") != layer_count(config))
    throw config.error("n_recurrent_layers", "the input, recurrent and output layers must be num_hidden_layers together");
  if (config.size_or("n_recurrent_loops", 2) > 1'000) throw config.error("n_recurrent_loops", "expected at most 1000 loops");
  auto c = std::make_shared<const DecoderConfig>(config, o);
  for (auto& type : c->layer_types)
    if (type != "full_attention" && type != "sliding_attention")
      throw config.error("layer_types", "the types are full_attention and sliding_attention, found '" + type.substr(0, 60) + "'");
  if (o.task != Task::base) return std::make_shared<DoryForCausalLM>(c);
  DecoderForm f;
  f.prefix = "Dory";
  f.body = [](std::shared_ptr<const DecoderConfig> made, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<DoryModel>(std::move(made));
  };
  return make_decoder(config, o, std::move(f));
}
const Family dory_family{{"dory"}, {{Task::causal_lm, "DoryForCausalLM", dory}, {Task::base, "DoryModel", dory}}};

}  // namespace
}  // namespace memest::hf
