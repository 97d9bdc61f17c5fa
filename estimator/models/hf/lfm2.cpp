// models/lfm2, lfm2_moe and lfm3: short convolutions, with attention in some layers.
#include "models/hf/decoder.h"
#include "models/hf/linear_attention.h"
#include "models/hf/moe.h"
#include "models/hf/rotate.h"
#include "ops/indexing.h"

namespace memest::hf {
namespace {

class Lfm2Attention final : public DecoderAttention {
 public:
  Lfm2Attention(const DecoderConfig& c, I layer, const std::string& prefix)
      : DecoderAttention(c, layer, prefix + "Attention", {}, "out_proj") {
    dropout_ = 0;
    q_layernorm_ = register_module("q_layernorm", make_norm(Norm::llama, head_dim_, prefix + "RMSNorm"));
    k_layernorm_ = register_module("k_layernorm", make_norm(Norm::llama, head_dim_, prefix + "RMSNorm"));
  }

 protected:
  void project(Frame& f) override {
    f.query = (*q_layernorm_)((*q_proj_)(f.hidden_states).view(f.hidden_shape)).transpose(1, 2);
    f.key = (*k_layernorm_)((*k_proj_)(f.hidden_states).view(f.hidden_shape)).transpose(1, 2);
    f.value = (*v_proj_)(f.hidden_states).view(f.hidden_shape).transpose(1, 2);
  }

 private:
  UnaryPtr q_layernorm_, k_layernorm_;
};

class ShortConv final : public Mixer {
 public:
  ShortConv(const DecoderConfig& c, I layer, std::string type)
      : Mixer(std::move(type)), layer_(layer), width_(c.hidden), kernel_(c.file.size_or("conv_L_cache", 3)) {
    const bool bias = c.file.boolean_or("conv_bias", false);
    conv = &child<Conv1d>("conv", width_, width_, kernel_, 1, kernel_ - 1, bias, width_);
    in_proj = &child<Linear>("in_proj", width_, 3 * width_, bias);
    out_proj = &child<Linear>("out_proj", width_, width_, bias);
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const I seq_len = hidden_states.size(1);
    X BCx = (*in_proj)(hidden_states).transpose(-1, -2);
    std::vector<X> parts = BCx.chunk(3, -2);
    X B = parts[0], C = parts[1], x = parts[2];
    parts.clear();
    hidden_states = B.mul(x);
    const X conv_state = cached_state(call.cache, layer_, kConvState);
    if (conv_state && seq_len == 1) {
      hidden_states = causal_conv1d_update(hidden_states, conv_state, conv->weight(), conv->bias(), nullptr);
    } else {
      if (call.cache) hidden_states = update_conv_state(*call.cache, layer_, hidden_states, kernel_);
      hidden_states = causal_conv1d_fn(hidden_states, conv->weight(), conv->bias(), nullptr);
      if (call.cache) hidden_states = hidden_states.slice(2, -seq_len, std::nullopt);
    }
    X y = C.mul(hidden_states);
    y = y.transpose(-1, -2).contiguous();
    y = (*out_proj)(y);
    return {leave(y, hidden_states, BCx, B, C, x), {}};
  }

 private:
  I layer_, width_, kernel_;
  Conv1d* conv;
  Linear *in_proj, *out_proj;
};

class LfmMLP final : public Unary {
 public:
  LfmMLP(std::string type, I width, I intermediate)
      : Unary(std::move(type)),
        w1(child<Linear>("w1", width, intermediate, false)),
        w3(child<Linear>("w3", width, intermediate, false)),
        w2(child<Linear>("w2", intermediate, width, false)) {}

 protected:
  X forward(X x) override {
    X gate = w1(x);
    gate = X(ops::silu(std::move(gate)));
    X gated = std::move(gate).mul(w3(x));
    return w2(std::move(gated));
  }

 private:
  Linear &w1, &w3, &w2;
};

class Lfm2DecoderLayer final : public DecoderLayer {
 public:
  Lfm2DecoderLayer(const DecoderConfig& c, I layer, const std::string& prefix, UnaryPtr feed_forward)
      : DecoderLayer(prefix + "DecoderLayer", c.options) {
    if (c.layer_types[std::size_t(layer)] != "conv")
      operator_ = register_module("self_attn", std::make_shared<Lfm2Attention>(c, layer, prefix));
    else
      operator_ = register_module("conv", std::make_shared<ShortConv>(c, layer, prefix + "ShortConv"));
    feed_forward_ = register_module("feed_forward", std::move(feed_forward));
    operator_norm_ = register_module("operator_norm", make_norm(Norm::llama, c.hidden, prefix + "RMSNorm"));
    ffn_norm_ = register_module("ffn_norm", make_norm(Norm::llama, c.hidden, prefix + "RMSNorm"));
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states, weights;
    std::tie(hidden_states, weights) = (*operator_)((*operator_norm_)(hidden_states), call);
    hidden_states = hidden_states.add(residual);
    X fed = (*feed_forward_)((*ffn_norm_)(hidden_states));
    hidden_states = hidden_states.add(std::move(fed));
    return leave(hidden_states, residual, weights);
  }

 private:
  MixerPtr operator_;
  UnaryPtr feed_forward_, operator_norm_, ffn_norm_;
};

/// The width of lfm2's MLPs, as its layers adjust it.
I adjusted_width(const DecoderConfig& c) {
  I width = c.intermediate;
  if (c.file.boolean_or("block_auto_adjust_ff_dim", true)) {
    width = 2 * width / 3;
    if (auto multiplier = c.file.number_if("block_ffn_dim_multiplier")) {
      const I unit = c.file.size_or("block_multiple_of", 256);
      width = I(*multiplier * double(width));
      width = unit * ceil_div(width, unit);
    }
  }
  if (width < 1) throw c.file.error("intermediate_size", "the layers' width comes to " + std::to_string(width));
  return width;
}

/// Lfm2MoeTopKRouter, which gets the block's bias.
class Lfm2MoeRouter final : public Module<Lfm2MoeRouter> {
 public:
  Lfm2MoeRouter(const DecoderConfig& c, const MoeSizes& sizes)
      : Module("Lfm2MoeTopKRouter"), top_k_(sizes.top_k), normalize_(c.file.boolean_or("norm_topk_prob", true)), record_(c.router_logits) {
    new_parameter("weight", {sizes.experts, sizes.hidden});
  }
  Routing forward(const X& hidden_states, const X& expert_bias) {
    X router_logits = ops::linear(hidden_states, parameter(0), {});
    X routing_weights = router_logits.sigmoid();
    X scores_for_routing, unused, selected_experts;
    if (expert_bias) {
      scores_for_routing = routing_weights.add(expert_bias);
      std::tie(unused, selected_experts) = topk(scores_for_routing, top_k_);
      routing_weights = X(ops::gather(routing_weights, 1, selected_experts, false)).to(router_logits.dtype());
    } else {
      std::tie(routing_weights, selected_experts) = topk(routing_weights, top_k_);
    }
    if (normalize_) routing_weights = routing_weights.div(routing_weights.sum(-1, true).add(1e-6));
    routing_weights = routing_weights.mul(1.0);
    if (record_ && !runtime().recomputing) record_->push_back(router_logits);
    return leave(Routing{router_logits, routing_weights, selected_experts}, scores_for_routing, unused);
  }

 private:
  I top_k_;
  bool normalize_;
  std::shared_ptr<std::vector<X>> record_;
};
class Lfm2MoeBlock final : public Unary {
 public:
  Lfm2MoeBlock(const DecoderConfig& c, const MoeSizes& sizes)
      : Unary("Lfm2MoeSparseMoeBlock"),
        biased_(c.file.boolean_or("use_expert_bias", true)),
        experts_(register_module("experts", std::make_shared<Experts>(ExpertsForm{.type = "Lfm2MoeExperts",
                                                                                  .count = sizes.experts,
                                                                                  .per_token = sizes.top_k,
                                                                                  .hidden = sizes.hidden,
                                                                                  .intermediate = sizes.intermediate,
                                                                                  .act = "silu",
                                                                                  .act_in_call = false},
                                                                      c.options))),
        gate(child<Lfm2MoeRouter>("gate", c, sizes)) {
    if (biased_) new_buffer("expert_bias", {sizes.experts}, DType::float32);
  }

 protected:
  X forward(X hidden_states) override {
    const Dims shape = hidden_states.sizes();
    X hidden_states_reshaped = hidden_states.view({-1, hidden_states.size(-1)});
    auto [logits, routing_weights, selected_experts] = gate(hidden_states_reshaped, biased_ ? X(buffer(0)) : X());
    X final_hidden_states = (*experts_)(hidden_states_reshaped, selected_experts, routing_weights);
    X result = final_hidden_states.reshape(shape);
    return leave(result, hidden_states_reshaped, logits, routing_weights, selected_experts);
  }

 private:
  bool biased_;
  std::shared_ptr<Experts> experts_;
  Lfm2MoeRouter& gate;
};

/// Lfm2Model and Lfm2MoeModel, which makes its mask for the cache's first layer, and its frequencies before the norm.
class Lfm2Model final : public DecoderBody {
 public:
  explicit Lfm2Model(std::shared_ptr<const DecoderConfig> config, bool moe)
      : DecoderBody(moe ? "Lfm2MoeModel" : "Lfm2Model"), c_(std::move(config)) {
    const std::string prefix = moe ? "Lfm2Moe" : "Lfm2";
    const I width = moe ? c_->intermediate : adjusted_width(*c_), dense = moe ? c_->file.integer_or("num_dense_layers", 2) : c_->layers;
    embed_tokens = &child<Embedding>("embed_tokens", c_->vocab, c_->hidden);
    layers_ = add_layers("layers", c_->layers, [&](I i) {
      UnaryPtr feed_forward;
      if (i < dense)
        feed_forward = std::make_shared<LfmMLP>(prefix + "MLP", c_->hidden, width);
      else
        feed_forward = std::make_shared<Lfm2MoeBlock>(*c_, MoeSizes(*c_, {}));
      return std::make_shared<Lfm2DecoderLayer>(*c_, i, prefix, std::move(feed_forward));
    });
    rotary_emb = register_module(moe ? "pos_emb" : "rotary_emb",
                                 std::make_shared<RotaryEmbedding>(prefix + "RotaryEmbedding", c_->file, c_->head_dim));
    embedding_norm_ = register_module("embedding_norm", make_norm(Norm::llama, c_->hidden, prefix + "RMSNorm"));
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*embed_tokens)(input_ids);
    CachePtr cache = new_cache(*c_, training);
    X position_ids = default_position_ids(inputs_embeds);
    I first = 0;
    while (first + 1 < c_->layers && c_->layer_types[std::size_t(first)] == "conv") ++first;
    X causal_mask = create_causal_mask({c_->options, inputs_embeds, cache.get(), position_ids, first});
    X hidden_states = inputs_embeds;
    Pair position_embeddings = (*rotary_emb)(hidden_states, position_ids);
    for (I i = 0; i < c_->layers; ++i) {
      const bool conv = c_->layer_types[std::size_t(i)] == "conv";
      hidden_states = (*layers_[std::size_t(i)])(hidden_states, {conv ? X() : causal_mask, position_embeddings, position_ids, cache.get()});
    }
    hidden_states = (*embedding_norm_)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  Embedding* embed_tokens;
  std::vector<DecoderLayerPtr> layers_;
  std::shared_ptr<RotaryEmbedding> rotary_emb;
  UnaryPtr embedding_norm_;
};

void check_layer_types(const Config& config) {
  for (auto& type : config.texts("layer_types"))
    if (type != "full_attention" && type != "conv")
      throw config.error("layer_types", "the types are full_attention and conv, found '" + type.substr(0, 60) + "'");
}
NetworkPtr lfm2(const Config& given, const Options& o) {
  Config config = given;
  if (given.has("tie_embedding")) config.set("tie_word_embeddings", *given.find("tie_embedding"));
  if (given.has("block_ff_dim")) config.set("intermediate_size", *given.find("block_ff_dim"));
  std::vector<std::int64_t> full;
  const bool some = config.has("full_attn_idxs");
  if (some) full = config.integers("full_attn_idxs");
  default_layer_types(config,
                      [&](I i) { return !some || std::find(full.begin(), full.end(), i) != full.end() ? "full_attention" : "conv"; });
  check_layer_types(config);
  DecoderForm f;
  f.prefix = "Lfm2";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<Lfm2Model>(std::move(c), false);
  };
  return make_decoder(config, o, std::move(f));
}
const Family lfm2_family{{"lfm2"}, {{Task::causal_lm, "Lfm2ForCausalLM", lfm2}, {Task::base, "Lfm2Model", lfm2}}};

NetworkPtr lfm2_moe(const Config& given, const Options& o) {
  Config config = given;
  if (given.has("tie_embedding")) config.set("tie_word_embeddings", *given.find("tie_embedding"));
  check_layer_types(config);
  DecoderForm f;
  f.prefix = "Lfm2Moe";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<Lfm2Model>(std::move(c), true);
  };
  return make_decoder(config, o, std::move(f));
}
const Family lfm2_moe_family{{"lfm2_moe"}, {{Task::causal_lm, "Lfm2MoeForCausalLM", lfm2_moe}, {Task::base, "Lfm2MoeModel", lfm2_moe}}};

// ---- lfm3
class Lfm3Attention final : public Mixer {
 public:
  Lfm3Attention(const DecoderConfig& c, I layer)
      : Mixer("Lfm3Attention"),
        options_(c.options),
        layer_(layer),
        head_dim_(c.head_dim),
        groups_(c.heads / c.kv_heads),
        dropout_(c.attention_dropout),
        q_proj(child<Linear>("q_proj", c.hidden, checked_mul(c.heads, c.head_dim), c.attention_bias)),
        k_proj(child<Linear>("k_proj", c.hidden, checked_mul(c.kv_heads, c.head_dim), c.attention_bias)),
        v_proj(child<Linear>("v_proj", c.hidden, checked_mul(c.kv_heads, c.head_dim), c.attention_bias)),
        o_proj(child<Linear>("o_proj", checked_mul(c.heads, c.head_dim), c.hidden, c.attention_bias)),
        q_norm_(register_module("q_norm", make_norm(Norm::llama, c.head_dim, "Lfm3RMSNorm"))),
        k_norm_(register_module("k_norm", make_norm(Norm::llama, c.head_dim, "Lfm3RMSNorm"))) {
    if (c.file.boolean_or("use_attention_gate", true)) g_proj = &child<Linear>("g_proj", c.hidden, c.heads, false);
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1), hidden_shape = input_shape + Dims{-1, head_dim_};
    X query_states = (*q_norm_)(q_proj(hidden_states).view(hidden_shape)).transpose(1, 2);
    X key_states = (*k_norm_)(k_proj(hidden_states).view(hidden_shape)).transpose(1, 2);
    X value_states = v_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    std::tie(query_states, key_states) =
        apply_rotary_cast(query_states, key_states, call.position_embeddings.first, call.position_embeddings.second);
    if (call.cache) std::tie(key_states, value_states) = call.cache->update(key_states, value_states, layer_);
    auto [attn_output, attn_weights] =
        attention_interface(options_, query_states, key_states, value_states,
                            {.mask = call.mask, .groups = groups_, .dropout = training ? dropout_ : 0.0, .training = training});
    if (g_proj) attn_output = attn_output.mul((*g_proj)(hidden_states).sigmoid().unsqueeze(-1));
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = o_proj(attn_output);
    return {attn_output, attn_weights};
  }

 private:
  const Options options_;
  I layer_, head_dim_, groups_;
  double dropout_;
  Linear &q_proj, &k_proj, &v_proj, &o_proj;
  UnaryPtr q_norm_, k_norm_;
  Linear* g_proj = nullptr;
};

class Lfm3DecoderLayer final : public DecoderLayer {
 public:
  Lfm3DecoderLayer(const DecoderConfig& c, I layer) : DecoderLayer("Lfm3DecoderLayer", c.options) {
    if (c.layer_types[std::size_t(layer)] != "conv")
      operator_ = register_module("self_attn", std::make_shared<Lfm3Attention>(c, layer));
    else
      operator_ = register_module("conv", std::make_shared<ShortConv>(c, layer, "Lfm3ShortConv"));
    feed_forward_ = register_module("feed_forward", std::make_shared<LfmMLP>("Lfm3MLP", c.hidden, c.intermediate));
    auto norm = [&](const char* name) { return register_module(name, make_norm(Norm::llama, c.hidden, "Lfm3RMSNorm")); };
    operator_norm_ = norm("operator_norm");
    ffn_norm_ = norm("ffn_norm");
    if (!c.file.boolean_or("use_sandwich_norm", true)) return;
    post_operator_norm_ = norm("post_operator_norm");
    post_ffn_norm_ = norm("post_ffn_norm");
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states, weights;
    std::tie(hidden_states, weights) = (*operator_)((*operator_norm_)(hidden_states), call);
    if (post_operator_norm_) hidden_states = (*post_operator_norm_)(hidden_states);
    hidden_states = residual.add(hidden_states);
    residual = hidden_states;
    hidden_states = (*ffn_norm_)(hidden_states);
    hidden_states = (*feed_forward_)(hidden_states);
    if (post_ffn_norm_) hidden_states = (*post_ffn_norm_)(hidden_states);
    hidden_states = residual.add(hidden_states);
    return hidden_states;
  }

 private:
  MixerPtr operator_;
  UnaryPtr feed_forward_, operator_norm_, ffn_norm_, post_operator_norm_, post_ffn_norm_;
};

class Lfm3Model final : public DecoderBody {
 public:
  explicit Lfm3Model(std::shared_ptr<const DecoderConfig> config) : DecoderBody("Lfm3Model"), c_(std::move(config)) {
    embed_tokens = &child<Embedding>("embed_tokens", c_->vocab, c_->hidden);
    layers_ = add_layers("layers", c_->layers, [&](I i) { return std::make_shared<Lfm3DecoderLayer>(*c_, i); });
    RotaryEmbedding::Form form;
    form.cast = false;
    for (const char* type : {"full_attention", "sliding_attention"})
      if (has(type)) form.layer_types.emplace_back(type, c_->head_dim);
    if (!form.layer_types.empty())  // else it has no frequencies
      rotary_emb = register_module("rotary_emb", std::make_shared<RotaryEmbedding>("Lfm3RotaryEmbedding", c_->file, c_->head_dim, form));
    embedding_norm_ = register_module("embedding_norm", make_norm(Norm::llama, c_->hidden, "Lfm3RMSNorm"));
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*embed_tokens)(input_ids);
    CachePtr cache = new_cache(*c_, training);
    X position_ids = default_position_ids(inputs_embeds);
    const MaskArguments arguments{c_->options, inputs_embeds, cache.get(), position_ids};
    X full_mask, sliding_mask;
    if (has("full_attention")) full_mask = create_causal_mask(arguments);
    if (has("sliding_attention")) sliding_mask = create_sliding_window_causal_mask(arguments, c_->file.size("sliding_window"));
    X hidden_states = inputs_embeds;
    Pair full, sliding;
    if (has("full_attention")) full = (*rotary_emb)(hidden_states, position_ids, "full_attention");
    if (has("sliding_attention")) sliding = (*rotary_emb)(hidden_states, position_ids, "sliding_attention");
    for (I i = 0; i < c_->layers; ++i) {
      LayerCall call{{}, {}, position_ids, cache.get()};
      if (c_->sliding(i))
        call.mask = sliding_mask, call.position_embeddings = sliding;
      else if (c_->layer_types[std::size_t(i)] == "full_attention")
        call.mask = full_mask, call.position_embeddings = full;
      hidden_states = (*layers_[std::size_t(i)])(hidden_states, std::move(call));
    }
    hidden_states = (*embedding_norm_)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  bool has(const std::string& type) const {
    return std::find(c_->layer_types.begin(), c_->layer_types.end(), type) != c_->layer_types.end();
  }

  std::shared_ptr<const DecoderConfig> c_;
  Embedding* embed_tokens;
  std::vector<DecoderLayerPtr> layers_;
  std::shared_ptr<RotaryEmbedding> rotary_emb;
  UnaryPtr embedding_norm_;
};

NetworkPtr lfm3(const Config& given, const Options& o) {
  Config config = given;
  default_layer_types(config, [](I i) { return i % 4 == 2 ? "full_attention" : i % 4 == 0 && i > 0 ? "sliding_attention" : "conv"; });
  for (auto& type : config.texts("layer_types"))
    if (type != "full_attention" && type != "sliding_attention" && type != "conv")
      throw config.error("layer_types", "the types are full_attention, sliding_attention and conv, found '" + type.substr(0, 60) + "'");
  DecoderForm f;
  f.prefix = "Lfm3";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<Lfm3Model>(std::move(c));
  };
  return make_decoder(config, o, std::move(f));
}
const Family lfm3_family{{"lfm3"}, {{Task::causal_lm, "Lfm3ForCausalLM", lfm3}, {Task::base, "Lfm3Model", lfm3}}};

}  // namespace
}  // namespace memest::hf
