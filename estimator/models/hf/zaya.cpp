// models/zaya: attention over compressed convolutions, experts behind routers that hand their states on.
#include "fake/checkpoint.h"
#include "models/hf/linear_attention.h"
#include "models/hf/moe.h"
#include "models/hf/rotate.h"
#include "ops/indexing.h"

namespace memest::hf {
namespace {

/// number / x
X over(X x) { return aten("reciprocal", {Tensor(x)}).mul(1.0); }
X pad_left(const X& x, I count) { return aten("constant_pad_nd", {Tensor(x), list_of(Dims{count, 0}), I{0}}); }

class ZayaCCAProjection final : public Base {
 public:
  ZayaCCAProjection(const DecoderConfig& c, I layer)
      : Base("ZayaCCAProjection"),
        layer_(layer),
        hidden_(c.hidden),
        head_dim_(c.head_dim),
        groups_(c.heads / c.kv_heads),
        query_width_(checked_mul(c.heads, c.head_dim)) {
    const I time0 = c.file.size("cca_time0"), time1 = c.file.size("cca_time1"), key_width = checked_mul(c.kv_heads, c.head_dim);
    if (key_width % 2 != 0) throw c.file.error("head_dim", "the values' width " + std::to_string(key_width) + " has no halves");
    kernel_ = checked_add(time0 - 1, time1 - 1);
    q_proj = &child<Linear>("q_proj", c.hidden, query_width_, c.attention_bias);
    k_proj = &child<Linear>("k_proj", c.hidden, key_width, c.attention_bias);
    v_proj_current = &child<Linear>("v_proj_current", c.hidden, key_width / 2, c.attention_bias);
    v_proj_delayed = &child<Linear>("v_proj_delayed", c.hidden, key_width / 2, c.attention_bias);
    const I channels = checked_add(key_width, query_width_);
    conv_qk_depthwise = &child<Conv1d>("conv_qk_depthwise", channels, channels, time0, 1, 0, true, channels);
    conv_qk_grouped = &child<Conv1d>("conv_qk_grouped", channels, channels, time1, 1, 0, true, c.kv_heads + c.heads);
  }
  struct Projected {
    X query, key, value;
  };
  Projected operator()(const X& hidden_states, Cache* cache) {
    Entered scope(*this);
    const X cached_qk_states = cached_state(cache, layer_, kConvState);
    X recurrent_v_state = cached_state(cache, layer_, kRecurrentState);
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1), hidden_shape = input_shape + Dims{-1, head_dim_};
    X projected_queries = (*q_proj)(hidden_states);
    X projected_keys = (*k_proj)(hidden_states);
    X qk_states = cat({projected_queries, projected_keys}, -1);
    X query_residual = projected_queries.view(hidden_shape);
    X key_residual = projected_keys.view(hidden_shape).transpose(1, 2);
    key_residual = repeat_kv(key_residual, groups_).transpose(1, 2);
    query_residual = query_residual.add(key_residual).mul(0.5);
    key_residual = query_residual.view(input_shape + Dims{-1, groups_, head_dim_}).mean(-2);
    qk_states = qk_states.transpose(1, 2);
    qk_states = cached_qk_states ? cat({cached_qk_states, qk_states}, -1) : pad_left(qk_states, kernel_);
    X new_conv_state;
    if (cache) {
      new_conv_state = qk_states.slice(-1, -kernel_, std::nullopt);
      new_conv_state = pad_left(new_conv_state, kernel_ - new_conv_state.size(-1));
      update_conv_state(*cache, layer_, new_conv_state, new_conv_state.size(-1));
    }
    qk_states = (*conv_qk_depthwise)(qk_states);
    qk_states = (*conv_qk_grouped)(qk_states).transpose(1, 2);
    X query = qk_states.slice(-1, std::nullopt, query_width_).view(hidden_shape).add(query_residual);
    X key = qk_states.slice(-1, query_width_, std::nullopt).view(hidden_shape).add(key_residual);
    X value_current = (*v_proj_current)(hidden_states);
    X delayed_v_state = (*v_proj_delayed)(hidden_states);
    if (recurrent_v_state)
      recurrent_v_state = recurrent_v_state.unsqueeze(1);
    else
      recurrent_v_state = (*v_proj_delayed)(zeros({hidden_states.size(0), 1, hidden_}, hidden_states.dtype()));
    X value_delayed = cat({recurrent_v_state, delayed_v_state.whole_slices(1).slice(1, std::nullopt, -1)}, 1);
    if (cache) update_recurrent_state(*cache, layer_, delayed_v_state.whole_slices(1).select(1, -1));
    X value = cat({value_current, value_delayed}, -1).view(hidden_shape);
    return {query, key, value};
  }

 private:
  I layer_, hidden_, head_dim_, groups_, query_width_, kernel_;
  Linear *q_proj, *k_proj, *v_proj_current, *v_proj_delayed;
  Conv1d *conv_qk_depthwise, *conv_qk_grouped;
};

class ZayaQKNorm final : public Base {
 public:
  explicit ZayaQKNorm(I kv_heads) : Base("ZayaQKNorm") { new_parameter("temp", {kv_heads}); }
  Pair operator()(X query_states, X key_states) {
    Entered scope(*this);
    query_states = scaled(query_states);
    key_states = scaled(key_states);
    key_states = key_states.mul(X(parameter(0)).unsqueeze(0).unsqueeze(0).unsqueeze(3));
    return {query_states, key_states};
  }

 private:
  static X scaled(const X& states) {
    X norm = aten("linalg_vector_norm", {Tensor(states), 2.0, list_of(Dims{-1}), true});
    norm = aten("clamp_min", {Tensor(std::move(norm)), 1e-6});
    return states.mul(over(std::move(norm)));
  }
};

class ZayaAttention final : public Mixer {
 public:
  ZayaAttention(const DecoderConfig& c, I layer)
      : Mixer("ZayaAttention"),
        options_(c.options),
        layer_(layer),
        groups_(c.heads / c.kv_heads),
        dropout_(c.attention_dropout),
        o_proj(child<Linear>("o_proj", checked_mul(c.heads, c.head_dim), c.hidden, c.attention_bias)),
        qkv_proj(child<ZayaCCAProjection>("qkv_proj", c, layer)),
        qk_norm(child<ZayaQKNorm>("qk_norm", c.kv_heads)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    auto [query_states, key_states, value_states] = qkv_proj(hidden_states, call.cache);
    std::tie(query_states, key_states) = qk_norm(query_states, key_states);
    query_states = query_states.transpose(1, 2);
    key_states = key_states.transpose(1, 2);
    value_states = value_states.transpose(1, 2);
    std::tie(query_states, key_states) =
        apply_rotary_named(query_states, key_states, call.position_embeddings.first, call.position_embeddings.second);
    if (call.cache) std::tie(key_states, value_states) = call.cache->update(key_states, value_states, layer_);
    auto [attn_output, attn_weights] =
        attention_interface(options_, query_states, key_states, value_states,
                            {.mask = call.mask, .groups = groups_, .dropout = training ? dropout_ : 0.0, .training = training});
    attn_output = attn_output.reshape({hidden_states.size(0), hidden_states.size(1), -1});
    attn_output = o_proj(attn_output);
    return {attn_output, attn_weights};
  }

 private:
  const Options options_;
  I layer_, groups_;
  double dropout_;
  Linear& o_proj;
  ZayaCCAProjection& qkv_proj;
  ZayaQKNorm& qk_norm;
};

class ZayaResidualScaling final : public Module<ZayaResidualScaling> {
 public:
  explicit ZayaResidualScaling(I width) : Module("ZayaResidualScaling") {
    for (const char* name : {"hidden_states_scale", "hidden_states_bias", "residual_scale", "residual_bias"}) new_parameter(name, {width});
  }
  X forward(X hidden_states, X residual) {
    hidden_states = hidden_states.add(X(parameter(1))).mul(X(parameter(0)));
    residual = residual.add(X(parameter(3))).mul(X(parameter(2)));
    return hidden_states.add(residual);
  }
};

class ZayaRouterMLP final : public Unary {
 public:
  ZayaRouterMLP(I width, I classes)
      : Unary("ZayaRouterMLP"),
        norm_(register_module("norm", make_norm(Norm::llama, width, "ZayaRMSNorm"))),
        fc1(child<Linear>("fc1", width, width)),
        fc2(child<Linear>("fc2", width, width)),
        out_proj(child<Linear>("out_proj", width, classes, false)),
        act_fn(child<Activation>("act_fn", "gelu")) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = (*norm_)(hidden_states);
    hidden_states = act_fn(fc1(hidden_states));
    hidden_states = act_fn(fc2(hidden_states));
    return out_proj(hidden_states);
  }

 private:
  UnaryPtr norm_;
  Linear &fc1, &fc2, &out_proj;
  Activation& act_fn;
};

class ZayaRouter final : public Base {
 public:
  ZayaRouter(const DecoderConfig& c, I layer, const MoeSizes& sizes)
      : Base("ZayaRouter"), top_k_(sizes.top_k), classes_(sizes.experts + 1), use_eda_(layer != 0), record_(c.router_logits) {
    const I width = c.file.size("router_hidden_size");
    down_proj = &child<Linear>("down_proj", c.hidden, width);
    new_parameter("router_states_scale", {width}, use_eda_);
    router_mlp = &child<ZayaRouterMLP>("router_mlp", width, classes_);
    new_buffer("balancing_biases", {classes_}, DType::float32);
  }
  /// The experts' weights and indices, and the states for the next layer's router.
  struct Routed {
    X weights, indices, states;
  };
  Routed operator()(const X& hidden_states, const X& router_states) {
    Entered scope(*this);
    X router_hidden_states = (*down_proj)(hidden_states);
    if (use_eda_ && router_states) router_hidden_states = router_hidden_states.add(router_states.mul(X(parameter(0))));
    X router_hidden_states_next = router_hidden_states.slice(1, -hidden_states.size(1), std::nullopt).clone();
    X router_logits = (*router_mlp)(router_hidden_states);
    X router_probs = router_logits.softmax(-1);
    X biased_router_probs = router_probs.detach().to_float().add(X(buffer(0)));
    auto [unused, router_indices] = topk(biased_router_probs, top_k_);
    router_probs = ops::gather(router_probs, 2, router_indices, false);
    X skip_expert = aten("eq", {Tensor(router_indices), I{0}});
    router_probs = aten("masked_fill", {Tensor(router_probs), Tensor(skip_expert), 0.0});
    router_indices = aten("masked_fill", {Tensor(router_indices), Tensor(skip_expert), I{0}});
    if (record_ && !runtime().recomputing) record_->push_back(router_logits.reshape({-1, classes_}));
    return {router_probs.reshape({-1, top_k_}), router_indices.reshape({-1, top_k_}), router_hidden_states_next};
  }

 private:
  I top_k_, classes_;
  bool use_eda_;
  std::shared_ptr<std::vector<X>> record_;
  Linear* down_proj;
  ZayaRouterMLP* router_mlp;
};

class ZayaSparseMoeBlock final : public Base {
 public:
  ZayaSparseMoeBlock(const DecoderConfig& c, I layer) : Base("ZayaSparseMoeBlock") {
    const MoeSizes sizes(c, {});
    gate = &child<ZayaRouter>("gate", c, layer, sizes);
    experts_ = register_module("experts", make_experts(c, "ZayaExperts", sizes));
  }
  Pair operator()(const X& hidden_states, X prev_router_hidden_states) {
    Entered scope(*this);
    X router_probs, router_indices;
    {
      ZayaRouter::Routed routed = (*gate)(hidden_states, prev_router_hidden_states);
      router_probs = routed.weights, router_indices = routed.indices, prev_router_hidden_states = routed.states;
    }
    X hidden_states_flat = hidden_states.view({-1, hidden_states.size(-1)});
    X expert_output = (*experts_)(hidden_states_flat, router_indices, router_probs);
    expert_output = expert_output.view(hidden_states.sizes());
    return {expert_output, prev_router_hidden_states};
  }

 private:
  ZayaRouter* gate;
  std::shared_ptr<Experts> experts_;
};

class ZayaDecoderLayer final : public Base {
 public:
  ZayaDecoderLayer(const DecoderConfig& c, I layer)
      : Base("ZayaDecoderLayer"), checkpoint_(c.options.checkpoint), reentrant_(c.options.reentrant) {
    self_attn = &child<ZayaAttention>("self_attn", c, layer);
    mlp = &child<ZayaSparseMoeBlock>("mlp", c, layer);
    input_layernorm = register_module("input_layernorm", make_norm(Norm::llama, c.hidden, "ZayaRMSNorm"));
    post_attention_layernorm = register_module("post_attention_layernorm", make_norm(Norm::llama, c.hidden, "ZayaRMSNorm"));
    post_attention_residual_scale = &child<ZayaResidualScaling>("post_attention_residual_scale", c.hidden);
    post_mlp_residual_scale = &child<ZayaResidualScaling>("post_mlp_residual_scale", c.hidden);
  }
  Pair operator()(X hidden_states, X prev_router_hidden_states, LayerCall call) {
    Entered scope(*this);
    if (!checkpoint_ || !training || !runtime().grad_mode) return forward(hidden_states, prev_router_hidden_states, call);
    call.cache = nullptr;
    Region region = [this, call](const Tensors& inputs) {
      Pair result = forward(X(inputs[0]), X(inputs[1]), call);
      return Tensors{result.first, result.second};
    };
    const Tensors inputs{hidden_states, prev_router_hidden_states};
    Tensors made = reentrant_ ? checkpoint_reentrant(std::move(region), inputs) : memest::checkpoint(std::move(region), inputs);
    return {X(made[0]), X(made[1])};
  }

 private:
  using Base::forward;
  static DType type_of(const UnaryPtr& norm) { return norm->own_parameters()[0].second.dtype(); }
  Pair forward(X hidden_states, X prev_router_hidden_states, const LayerCall& call) {
    X residual = hidden_states, weights;
    hidden_states = (*input_layernorm)(residual.to(type_of(input_layernorm)));
    std::tie(hidden_states, weights) = (*self_attn)(hidden_states, call);
    residual = (*post_attention_residual_scale)(hidden_states, residual);
    hidden_states = (*post_attention_layernorm)(residual.to(type_of(post_attention_layernorm)));
    std::tie(hidden_states, prev_router_hidden_states) = (*mlp)(hidden_states, prev_router_hidden_states);
    hidden_states = (*post_mlp_residual_scale)(hidden_states, residual);
    return {hidden_states, prev_router_hidden_states};
  }

  bool checkpoint_, reentrant_;
  ZayaAttention* self_attn;
  ZayaSparseMoeBlock* mlp;
  UnaryPtr input_layernorm, post_attention_layernorm;
  ZayaResidualScaling *post_attention_residual_scale, *post_mlp_residual_scale;
};

class ZayaModel final : public DecoderBody {
 public:
  explicit ZayaModel(std::shared_ptr<const DecoderConfig> config) : DecoderBody("ZayaModel"), c_(std::move(config)) {
    embed_tokens = &child<Embedding>("embed_tokens", c_->vocab, c_->hidden, c_->file.integer_if("pad_token_id"));
    layers_ = std::make_unique<Layers<ZayaDecoderLayer>>(*this, "layers", c_->layers,
                                                         [&](I i) { return std::make_shared<ZayaDecoderLayer>(*c_, i); });
    norm = register_module("norm", make_norm(Norm::llama, c_->hidden, "ZayaRMSNorm"));
    rotary_emb = register_module("rotary_emb", rotary_of_types(*c_, "ZayaRotaryEmbedding", 0.5));
    new_parameter("input_hidden_states_scale", {c_->hidden});
    new_parameter("input_hidden_states_bias", {c_->hidden});
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*embed_tokens)(input_ids);
    CachePtr cache = new_cache(*c_, training);
    X position_ids = default_position_ids(inputs_embeds);
    X causal_mask = create_causal_mask({c_->options, inputs_embeds, cache.get(), position_ids});
    X hidden_states = inputs_embeds;
    Pair position_embeddings = (*rotary_emb)(hidden_states, position_ids, "hybrid");
    hidden_states = hidden_states.add(X(parameter(1))).mul(X(parameter(0))).to_float();
    X prev_router_hidden_states;
    for (auto& layer : *layers_)
      std::tie(hidden_states, prev_router_hidden_states) =
          (*layer)(hidden_states, prev_router_hidden_states, {causal_mask, position_embeddings, {}, cache.get()});
    hidden_states = (*norm)(hidden_states.to(norm->own_parameters()[0].second.dtype()));
    return {hidden_states, cache};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  Embedding* embed_tokens;
  std::unique_ptr<Layers<ZayaDecoderLayer>> layers_;
  UnaryPtr norm;
  std::shared_ptr<RotaryEmbedding> rotary_emb;
};

NetworkPtr zaya(const Config& given, const Options& o) {
  Config config = given;
  default_layer_types(config, [](I) { return "hybrid"; });
  for (auto& type : config.texts("layer_types"))
    if (type != "hybrid")
      throw config.error("layer_types", "memest builds zaya with layers of the type hybrid only, found '" + type.substr(0, 60) + "'");
  if (config.integer_or("num_experts_per_tok", 1) != 1)
    throw config.error("num_experts_per_tok",
                       "zaya takes one expert for each token, found " + std::to_string(config.integer("num_experts_per_tok")));
  DecoderForm f;
  f.prefix = "Zaya";
  f.head_bias = config.boolean_or("lm_head_bias", false);
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<ZayaModel>(std::move(c));
  };
  return make_decoder(config, o, std::move(f));
}
const Family zaya_family{{"zaya"}, {{Task::causal_lm, "ZayaForCausalLM", zaya}, {Task::base, "ZayaModel", zaya}}};

}  // namespace
}  // namespace memest::hf
