// models/dbrx: one projection for queries, keys and values; experts whose weights lie in three matrices, run one after the other.
#include <algorithm>

#include "models/hf/moe.h"
#include "ops/indexing.h"

namespace memest::hf {
namespace {

struct DbrxSizes {
  explicit DbrxSizes(const Config& config) {
    const auto attention = config.section_if("attn_config"), ffn = config.section_if("ffn_config");
    const Config none;
    const Config &a = attention ? *attention : none, &f = ffn ? *ffn : none;
    kv_heads = a.size_or("kv_n_heads", 1);
    clip = a.has("clip_qkv");
    attention_dropout = a.number_or("attn_pdrop", 0.0);
    width = f.size_or("ffn_hidden_size", 3584);
    experts = f.size_or("moe_num_experts", 4);
    top_k = f.size_or("moe_top_k", 1);
    if (top_k > experts)
      throw f.error("moe_top_k", "each token takes " + std::to_string(top_k) + " experts, but there are " + std::to_string(experts));
    jitter = f.has("moe_jitter_eps");
    // the class's own is 1.0, which null takes away
    normalize = !f.given("moe_normalize_expert_weights") || f.has("moe_normalize_expert_weights");
    if (auto act_fn = f.section_if("ffn_act_fn")) act = act_fn->text_or("name", "silu");
    residual_dropout = config.number_or("resid_pdrop", 0.0);
  }
  I kv_heads, width, experts, top_k;
  bool clip, jitter, normalize;
  double attention_dropout, residual_dropout;
  std::string act = "silu";
};

class DbrxAttention final : public Mixer {
 public:
  DbrxAttention(const DecoderConfig& c, const DbrxSizes& s, I layer)
      : Mixer("DbrxAttention"),
        options_(c.options),
        layer_(layer),
        hidden_(c.hidden),
        kv_width_(s.kv_heads * c.head_dim),
        head_dim_(c.head_dim),
        groups_(c.heads / s.kv_heads),
        clip_(s.clip),
        dropout_(s.attention_dropout),
        Wqkv(child<Linear>("Wqkv", c.hidden, c.hidden + 2 * kv_width_, false)),
        out_proj(child<Linear>("out_proj", c.hidden, c.hidden, false)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1), hidden_shape = input_shape + Dims{-1, head_dim_};
    X qkv_states = Wqkv(hidden_states);
    if (!clip_) throw Error("torch.clamp: At least one of 'min' or 'max' must not be None", "give attn_config a clip_qkv");
    qkv_states = aten("clamp", {Tensor(qkv_states), -8.0, 8.0});
    std::vector<X> parts = qkv_states.split(Dims{hidden_, kv_width_, kv_width_}, 2);
    X query_states = parts[0], key_states = parts[1], value_states = parts[2];
    parts.clear();
    query_states = query_states.view(hidden_shape).transpose(1, 2);
    key_states = key_states.view(hidden_shape).transpose(1, 2);
    value_states = value_states.view(hidden_shape).transpose(1, 2);
    std::tie(query_states, key_states) =
        apply_rotary_pos_emb(query_states, key_states, call.position_embeddings.first, call.position_embeddings.second);
    if (call.cache) std::tie(key_states, value_states) = call.cache->update(key_states, value_states, layer_);
    auto [attn_output, attn_weights] =
        attention_interface(options_, query_states, key_states, value_states,
                            {.mask = call.mask, .groups = groups_, .dropout = training ? dropout_ : 0.0, .training = training});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = out_proj(attn_output);
    return {attn_output, attn_weights};
  }

 private:
  const Options options_;
  I layer_, hidden_, kv_width_, head_dim_, groups_;
  bool clip_;
  double dropout_;
  Linear &Wqkv, &out_proj;
};

class DbrxExpertGLU final : public Module<DbrxExpertGLU> {
 public:
  DbrxExpertGLU(const DecoderConfig& c, const DbrxSizes& s) : Module("DbrxExpertGLU") {
    for (const char* name : {"w1", "v1", "w2"}) new_parameter(name, {checked_mul(s.experts, s.width), c.hidden});
    activation_fn_ = &child<Activation>("activation_fn", s.act);
  }
  X matrix(std::size_t which, const Dims& shape, I expert) const { return X(parameter(which)).view(shape).select(0, expert); }
  X forward(const X& x, const X& expert_w1, const X& expert_v1, const X& expert_w2) {
    X gate_proj = x.matmul(expert_w1.t());
    X up_proj = x.matmul(expert_v1.t());
    gate_proj = (*activation_fn_)(gate_proj);
    X intermediate_states = gate_proj.mul(up_proj);
    X down_proj = intermediate_states.matmul(expert_w2);
    return down_proj;
  }

 private:
  Activation* activation_fn_;
};

class DbrxExperts final : public Module<DbrxExperts>, public RoutedExperts {
 public:
  DbrxExperts(const DecoderConfig& c, const DbrxSizes& s)
      : Module("DbrxExperts"),
        RoutedExperts(s.experts, s.top_k),
        hidden_(c.hidden),
        width_(s.width),
        count_(s.experts),
        mlp(child<DbrxExpertGLU>("mlp", c, s)) {}
  X forward(X hidden_states, X top_k_index, X top_k_weights) {
    const I batch_size = hidden_states.size(0), pairs = top_k_index.numel();
    ops::note_data_dependent("the experts' inputs", "tokens are spread evenly over the experts");
    hidden_states = hidden_states.reshape({-1, hidden_});
    X next_states = aten("zeros_like", {Tensor(hidden_states)});
    X expert_mask, expert_hit;
    {
      NoGrad no_grad;
      expert_mask = aten("one_hot", {Tensor(top_k_index), count_ + 1}).permute({2, 1, 0});
      ops::AssumedSelection hit(std::min(count_, pairs));
      expert_hit = aten("nonzero", {Tensor(aten("gt", {Tensor(aten("sum", {Tensor(expert_mask), list_of(Dims{-1, -2})})), I{0}}))});
    }
    const Dims split_expert_shape{-1, width_, hidden_};
    const std::vector<X> rows = expert_hit.unbind(0);
    X expert_idx, idx, token_idx, v1, w1, w2, states;
    I i = 0;
    for (auto& row : rows) {
      I tokens = 0;
      while (tokens == 0 && i < count_) tokens = tokens_of_expert(i++, count_, pairs);
      const I expert = i - 1;
      expert_idx = row.select(0, 0);
      ops::AssumedSelection share(tokens);
      {
        NoGrad no_grad;
        std::vector<X> where = aten_list("where", {Tensor(expert_mask.select(0, expert))});
        idx = where[0], token_idx = where[1];
      }
      v1 = mlp.matrix(1, split_expert_shape, expert);
      w1 = mlp.matrix(0, split_expert_shape, expert);
      w2 = mlp.matrix(2, split_expert_shape, expert);
      states = mlp(X(ops::index(hidden_states, Tensors{token_idx})), w1, v1, w2);
      states = states.view({-1, hidden_}).mul(X(ops::index(top_k_weights.unsqueeze(2), Tensors{token_idx, idx})));
      aten("index_add_", {Tensor(next_states), I{0}, Tensor(token_idx), Tensor(states)});
    }
    next_states = next_states.view({batch_size, -1, hidden_});
    return next_states;
  }

 private:
  I hidden_, width_, count_;
  DbrxExpertGLU& mlp;
};

class DbrxRouter final : public Module<DbrxRouter> {
 public:
  DbrxRouter(const DecoderConfig& c, const DbrxSizes& s)
      : Module("DbrxRouter"), jitter_(s.jitter), layer(child<Linear>("layer", c.hidden, s.experts, false)) {}
  X forward(X hidden_states) {
    if (training && jitter_) {
      X noise = aten("uniform_", {Tensor(aten("empty_like", {Tensor(hidden_states)})), 0.9, 1.1});
      hidden_states = aten("mul_", {Tensor(hidden_states), Tensor(std::move(noise))});
    }
    hidden_states = hidden_states.view({-1, hidden_states.size(-1)});
    return layer(hidden_states);
  }

 private:
  bool jitter_;
  Linear& layer;
};

class DbrxFFN final : public Module<DbrxFFN> {
 public:
  DbrxFFN(const DecoderConfig& c, const DbrxSizes& s)
      : Module("DbrxFFN"),
        top_k_(s.top_k),
        normalize_(s.normalize),
        record_(c.router_logits),
        router(child<DbrxRouter>("router", c, s)),
        experts(child<DbrxExperts>("experts", c, s)) {}
  X forward(const X& hidden_states) {
    X router_logits = router(hidden_states);
    if (record_ && !runtime().recomputing) record_->push_back(router_logits);
    auto [top_k_weights, top_k_index] = route(router_logits);
    return experts(hidden_states, top_k_index, top_k_weights);
  }

 private:
  Pair route(X router_logits) const {
    router_logits = router_logits.softmax(1, router_logits.dtype());
    auto [router_top_value, router_indices] = topk(router_logits, top_k_);
    if (normalize_) {
      X length = aten("linalg_vector_norm", {Tensor(router_top_value), 1.0, list_of(Dims{-1}), true});
      router_top_value = router_top_value.div(std::move(length));
    }
    return {router_top_value, router_indices};
  }
  I top_k_;
  bool normalize_;
  std::shared_ptr<std::vector<X>> record_;
  DbrxRouter& router;
  DbrxExperts& experts;
};

class DbrxNormAttentionNorm final : public Module<DbrxNormAttentionNorm> {
 public:
  DbrxNormAttentionNorm(const DecoderConfig& c, const DbrxSizes& s, I layer)
      : Module("DbrxNormAttentionNorm"),
        dropout_(s.residual_dropout),
        norm_1_(register_module("norm_1", make_norm(Norm::layer_norm_no_bias, c.hidden, "LayerNorm"))),
        attn_(register_module("attn", std::make_shared<DbrxAttention>(c, s, layer))),
        norm_2_(register_module("norm_2", make_norm(Norm::layer_norm_no_bias, c.hidden, "LayerNorm"))) {}
  Pair forward(X hidden_states, const LayerCall* call) {
    X residual_states = hidden_states, weights;
    hidden_states = (*norm_1_)(hidden_states).to(hidden_states.dtype());
    std::tie(hidden_states, weights) = (*attn_)(hidden_states, *call);
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    hidden_states = hidden_states.add(residual_states);
    residual_states = hidden_states;
    hidden_states = (*norm_2_)(hidden_states).to(hidden_states.dtype());
    return {residual_states, hidden_states};
  }

 private:
  double dropout_;
  UnaryPtr norm_1_;
  MixerPtr attn_;
  UnaryPtr norm_2_;
};

class DbrxBlock final : public DecoderLayer {
 public:
  DbrxBlock(const DecoderConfig& c, const DbrxSizes& s, I layer)
      : DecoderLayer("DbrxBlock", c.options),
        dropout_(s.residual_dropout),
        norm_attn_norm(child<DbrxNormAttentionNorm>("norm_attn_norm", c, s, layer)),
        ffn(child<DbrxFFN>("ffn", c, s)) {}

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X resid_states;
    std::tie(resid_states, hidden_states) = norm_attn_norm(hidden_states, &call);
    hidden_states = ffn(hidden_states);
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    hidden_states = resid_states.add(hidden_states);
    return hidden_states;
  }

 private:
  double dropout_;
  DbrxNormAttentionNorm& norm_attn_norm;
  DbrxFFN& ffn;
};

class DbrxModel final : public DecoderBody {
 public:
  explicit DbrxModel(std::shared_ptr<const DecoderConfig> config) : DecoderBody("DbrxModel"), c_(std::move(config)) {
    const DbrxSizes sizes(c_->file);
    rotary_emb_ = register_module("rotary_emb", std::make_shared<RotaryEmbedding>("DbrxRotaryEmbedding", c_->file, c_->head_dim));
    wte_ = &child<Embedding>("wte", c_->vocab, c_->hidden);
    blocks_ = add_layers("blocks", c_->layers, [&](I i) -> DecoderLayerPtr { return std::make_shared<DbrxBlock>(*c_, sizes, i); });
    norm_f_ = register_module("norm_f", make_norm(Norm::layer_norm_no_bias, c_->hidden, "LayerNorm"));
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    CachePtr cache = new_cache(*c_, training);
    X inputs_embeds = (*wte_)(input_ids);
    X position_ids = default_position_ids(inputs_embeds);
    X causal_mask = create_causal_mask({c_->options, inputs_embeds, cache.get(), position_ids});
    X hidden_states = inputs_embeds;
    Pair position_embeddings = (*rotary_emb_)(hidden_states, position_ids);
    for (auto& layer : blocks_) hidden_states = (*layer)(hidden_states, {causal_mask, position_embeddings, position_ids, cache.get()});
    hidden_states = (*norm_f_)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  std::shared_ptr<RotaryEmbedding> rotary_emb_;
  Embedding* wte_;
  std::vector<DecoderLayerPtr> blocks_;
  UnaryPtr norm_f_;
};

NetworkPtr dbrx(const Config& given, const Options& o) {
  Config config = given;
  const DbrxSizes sizes(given);
  ConfigValue kv_heads;
  kv_heads.value = sizes.kv_heads;
  config.set("num_key_value_heads", std::move(kv_heads));
  DecoderForm f;
  f.prefix = "Dbrx";
  f.base_prefix = "transformer";
  f.embedding_name = "wte";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) -> std::shared_ptr<DecoderBody> {
    return std::make_shared<DbrxModel>(std::move(c));
  };
  f.aux_loss = [sizes](const std::vector<X>& logits, const DecoderConfig&) {
    return load_balancing_loss(logits, sizes.experts, sizes.top_k);
  };
  return make_decoder(config, o, std::move(f));
}
const Family dbrx_family{{"dbrx"}, {{Task::causal_lm, "DbrxForCausalLM", dbrx}, {Task::base, "DbrxModel", dbrx}}};

}  // namespace
}  // namespace memest::hf
