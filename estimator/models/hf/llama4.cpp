// models/llama4, the text model: every expert sees every token, scaled by its score; chunked attention with a complex rotary embedding.
#include <algorithm>

#include "models/hf/llama4.h"
#include "models/hf/moe.h"

namespace memest::hf {
namespace {

/// Llama4TextRMSNorm: the type comes back before the weight.
class Llama4Norm final : public Unary {
 public:
  explicit Llama4Norm(I width) : Unary("Llama4TextRMSNorm") { new_parameter("weight", {width}); }

 protected:
  X forward(X x) override {
    X output = normed(x.to_float()).to(x.dtype());
    return output.mul(X(parameter(0)));
  }

 private:
  static X normed(X x) { return x.mul(x.pow(2).mean(-1, true).add(1e-5).rsqrt()); }
};

class Llama4Experts final : public Module<Llama4Experts>, public RoutedExperts {
 public:
  Llama4Experts(const DecoderConfig& c, const MoeSizes& sizes)
      : Module("Llama4TextExperts"), RoutedExperts(sizes.experts, sizes.top_k), sizes_(sizes) {
    new_parameter("gate_up_proj", {sizes.experts, sizes.hidden, checked_mul(I{2}, sizes.intermediate)});
    new_parameter("down_proj", {sizes.experts, sizes.intermediate, sizes.hidden});
    act_fn_ = &child<Activation>("act_fn", c.act);
  }
  X forward(X hidden_states) {
    hidden_states = hidden_states.view({sizes_.experts, -1, sizes_.hidden});
    X gate_up = hidden_states.bmm(X(parameter(0)));
    std::vector<X> halves = gate_up.chunk(2, -1);
    X gate = halves[0], up = halves[1];
    halves.clear();
    X next_states = up.mul((*act_fn_)(gate)).bmm(X(parameter(1)));
    next_states = next_states.view({-1, sizes_.hidden});
    return next_states;
  }

 private:
  MoeSizes sizes_;
  Activation* act_fn_;
};

/// Scores of all experts, [tokens, experts]: zero for those that are not chosen; and the logits.
class Llama4Router final : public Module<Llama4Router> {
 public:
  Llama4Router(const DecoderConfig& c, const MoeSizes& sizes) : Module("Llama4Router"), top_k_(sizes.top_k), record_(c.router_logits) {
    new_parameter("weight", {sizes.experts, sizes.hidden});
  }
  Pair forward(const X& hidden_states) {
    X router_logits = ops::linear(hidden_states, parameter(0), {});
    auto [router_top_value, router_indices] = topk(router_logits, top_k_);
    X router_scores = aten("full_like", {Tensor(router_logits), -1e30});
    router_scores = aten("scatter_", {Tensor(router_scores), I{1}, Tensor(router_indices), Tensor(router_top_value)});
    router_scores = router_scores.to_float().sigmoid().to(router_scores.dtype());
    if (record_ && !runtime().recomputing) record_->push_back(router_logits);
    return {router_scores, router_logits};
  }

 private:
  I top_k_;
  std::shared_ptr<std::vector<X>> record_;
};

UnaryPtr mlp_of(const DecoderConfig& c, I width) { return make_gated_mlp("Llama4TextMLP", c.hidden, width, false, c.act); }

class Llama4Moe final : public Module<Llama4Moe> {
 public:
  Llama4Moe(const DecoderConfig& c, const MoeSizes& sizes)
      : Module("Llama4TextMoe"),
        hidden_(sizes.hidden),
        experts(child<Llama4Experts>("experts", c, sizes)),
        router(child<Llama4Router>("router", c, sizes)),
        shared_expert_(register_module("shared_expert", mlp_of(c, c.intermediate))) {}
  Pair forward(X hidden_states) {
    hidden_states = hidden_states.reshape({-1, hidden_});
    auto [router_scores, router_logits] = router(hidden_states);
    const I count = router_scores.size(1);
    X routed_in = aten("repeat", {Tensor(hidden_states), list_of(Dims{count, 1})});
    routed_in = routed_in.mul(router_scores.transpose(0, 1).reshape({-1, 1}));
    X routed_out = experts(routed_in);
    X out = (*shared_expert_)(hidden_states);
    ops::add_(out, routed_out.reshape({count, -1, routed_out.size(-1)}).sum(0), 1);
    return {out, router_logits};
  }

 private:
  I hidden_;
  Llama4Experts& experts;
  Llama4Router& router;
  UnaryPtr shared_expert_;
};

/// apply_rotary_emb: heads stand before the transpose.
Pair apply_rotary(X xq, X xk, const X& freqs_cis) {
  auto paired = [](const X& x) {
    return aten("view_as_complex", {Tensor(x.to_float().reshape(x.sizes().slice(0, x.dim() - 1) + Dims{-1, 2}))});
  };
  X xq_ = paired(xq), xk_ = paired(xk);
  auto rotated = [&](const X& x) { return aten("view_as_real", {Tensor(x.mul(freqs_cis.whole_slices(2).unsqueeze(2)))}).flatten(3); };
  X xq_out = rotated(xq_), xk_out = rotated(xk_);
  X q = xq_out.to(xq.dtype());
  X k = xk_out.to(xk.dtype());
  return {q, k};
}

class Llama4Attention final : public DecoderAttention {
 public:
  Llama4Attention(const DecoderConfig& c, I layer, bool rope)
      : DecoderAttention(c, layer, "Llama4TextAttention", {c.attention_bias, c.attention_bias, c.attention_bias, c.attention_bias}),
        rope_(rope),
        temperature_(c.file.boolean_or("attn_temperature_tuning", true)) {
    if (c.file.boolean_or("use_qk_norm", true) && rope)
      qk_norm_ = register_module("qk_norm", make_norm(Norm::weightless, head_dim_, "Llama4TextL2Norm"));
  }

 protected:
  void project(Frame& f) override {
    f.query = (*q_proj_)(f.hidden_states).view(f.hidden_shape);
    f.key = (*k_proj_)(f.hidden_states).view(f.hidden_shape);
    f.value = (*v_proj_)(f.hidden_states).view(f.hidden_shape).transpose(1, 2);
  }
  void rotate(Frame& f, const LayerCall& call) override {
    if (rope_) std::tie(f.query, f.key) = apply_rotary(f.query, f.key, call.position_embeddings.first);
    if (qk_norm_) {
      f.query = (*qk_norm_)(f.query);
      f.key = (*qk_norm_)(f.key);
    }
    if (temperature_ && !rope_) {
      X positions = arange(f.hidden_states.size(1)).add(0);
      X floored = aten("floor", {Tensor(positions.to_float().add(1.0).div(1.0))});
      X attn_scales = aten("log1p", {Tensor(std::move(floored))}).mul(1.0).add(1.0);
      attn_scales = attn_scales.view({1, f.input_shape[-1], 1, 1}).expand(f.input_shape + Dims{1, 1});
      f.query = f.query.mul(attn_scales).to(f.query.dtype());
      f.locals = {positions, attn_scales};
    }
    f.query = f.query.transpose(1, 2);
    f.key = f.key.transpose(1, 2);
  }
  Pair attend(Frame& f, AttentionCall call) override {
    if (options_.attention == Attention::sdpa) return DecoderAttention::attend(f, std::move(call));
    X key_states = repeat_kv(f.key, call.groups);
    X value_states = repeat_kv(f.value, call.groups);
    X attn_weights = f.query.matmul(key_states.transpose(2, 3)).mul(1.0);
    if (call.mask) attn_weights = attn_weights.add(call.mask);
    attn_weights = attn_weights.softmax(-1);
    attn_weights = ops::dropout(attn_weights, call.dropout, call.training);
    X attn_output = attn_weights.matmul(value_states);
    attn_output = attn_output.transpose(1, 2).contiguous();
    return {attn_output, attn_weights};
  }

 private:
  bool rope_, temperature_;
  UnaryPtr qk_norm_;
};

class Llama4Layer final : public DecoderLayer {
 public:
  Llama4Layer(const DecoderConfig& c, I layer, bool rope, bool sparse) : DecoderLayer("Llama4TextDecoderLayer", c.options) {
    self_attn_ = register_module("self_attn", std::make_shared<Llama4Attention>(c, layer, rope));
    if (sparse)
      moe_ = register_module(
          "feed_forward", std::make_shared<Llama4Moe>(c, MoeSizes(c, {"num_local_experts", "num_experts_per_tok", "intermediate_size"})));
    else
      mlp_ = register_module("feed_forward", mlp_of(c, c.file.size("intermediate_size_mlp")));
    input_layernorm_ = register_module("input_layernorm", std::make_shared<Llama4Norm>(c.hidden));
    post_attention_layernorm_ = register_module("post_attention_layernorm", std::make_shared<Llama4Norm>(c.hidden));
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states;
    hidden_states = (*input_layernorm_)(hidden_states);
    auto [attention_states, second] = (*self_attn_)(hidden_states, call);
    hidden_states = residual.add(attention_states);
    residual = hidden_states;
    hidden_states = (*post_attention_layernorm_)(hidden_states);
    if (moe_)
      std::tie(hidden_states, second) = (*moe_)(hidden_states);
    else
      hidden_states = (*mlp_)(hidden_states);
    hidden_states = residual.add(hidden_states.view(residual.sizes()));
    return hidden_states;
  }

 private:
  MixerPtr self_attn_;
  std::shared_ptr<Llama4Moe> moe_;
  UnaryPtr mlp_, input_layernorm_, post_attention_layernorm_;
};

class TokenEmbedding final : public Unary, public nn::InputEmbedding {
 public:
  TokenEmbedding(I count, I width) : Unary("Embedding") { new_parameter("weight", {count, width}); }

 protected:
  X forward(X indices) override { return hooked(ops::embedding(parameter(0), indices, -1, false, false)); }
};

class Llama4TextModel final : public DecoderBody {
 public:
  explicit Llama4TextModel(std::shared_ptr<const DecoderConfig> config) : DecoderBody("Llama4TextModel"), c_(std::move(config)) {
    const Config& f = c_->file;
    chunk_ = f.has("attention_chunk_size") ? f.size("attention_chunk_size") : 0;
    const I step = f.size_or("no_rope_layer_interval", 4), every = f.size_or("interleave_moe_layer_step", 1);
    const auto given_rope = f.has("no_rope_layers") ? f.integers("no_rope_layers") : std::vector<I>{};
    if (!given_rope.empty() && I(given_rope.size()) < c_->layers)
      throw f.error("no_rope_layers",
                    "expected " + std::to_string(c_->layers) + " entries, one for each layer, found " + std::to_string(given_rope.size()));
    const auto given_moe = f.has("moe_layers") ? std::optional(f.integers("moe_layers")) : std::nullopt;
    for (I i = 0; i < c_->layers; ++i) {
      const bool rope = given_rope.empty() ? (i + 1) % step != 0 : given_rope[std::size_t(i)] != 0;
      rope_.push_back(rope);
      const bool chunked = c_->layer_types.empty() ? rope && chunk_ > 0 : c_->layer_types[std::size_t(i)] == "chunked_attention";
      if (chunked && chunk_ == 0) throw f.error("attention_chunk_size", "chunked attention needs it");
      chunked_.push_back(chunked);
      sparse_.push_back(given_moe ? std::find(given_moe->begin(), given_moe->end(), i) != given_moe->end()
                                  : i >= every - 1 && (i + 1 - every) % every == 0);
    }
    embed_tokens_ = register_module("embed_tokens", std::make_shared<TokenEmbedding>(c_->vocab, c_->hidden));
    layers_ = add_layers("layers", c_->layers, [this](I i) -> DecoderLayerPtr {
      return std::make_shared<Llama4Layer>(*c_, i, rope_[std::size_t(i)], sparse_[std::size_t(i)]);
    });
    norm_ = register_module("norm", std::make_shared<Llama4Norm>(c_->hidden));
    rotary_emb_ = register_module(
        "rotary_emb", std::make_shared<RotaryEmbedding>("Llama4TextRotaryEmbedding", c_->file, c_->head_dim,
                                                        RotaryEmbedding::Form{.table = RotaryEmbedding::Table::complex, .cast = false}));
  }
  X embed(const X& input_ids) override { return (*embed_tokens_)(input_ids); }
  CachePtr new_generation_cache(const DecoderConfig&) const override {
    std::vector<I> windows;
    for (bool chunked : chunked_) windows.push_back(chunked ? chunk_ : 0);
    const auto cache = std::make_shared<Cache>(windows);
    generation_cache_ = cache;
    return cache;
  }

 protected:
  std::pair<X, CachePtr> forward(X input) override {
    X inputs_embeds = is_floating(input.dtype()) ? input : embed(input);
    CachePtr cache = new_cache(*c_, training);
    if (cache && cache != generation_cache_.lock()) cache = new_generation_cache(*c_);
    X position_ids = default_position_ids(inputs_embeds);
    const MaskArguments arguments{c_->options, inputs_embeds, cache.get(), position_ids};
    X full, chunks;
    if (std::find(chunked_.begin(), chunked_.end(), false) != chunked_.end()) full = create_causal_mask(arguments);
    if (std::find(chunked_.begin(), chunked_.end(), true) != chunked_.end()) chunks = create_chunked_causal_mask(arguments, chunk_);
    X hidden_states = inputs_embeds;
    Pair freqs_cis = (*rotary_emb_)(hidden_states, position_ids);
    for (I i = 0; i < c_->layers; ++i)
      hidden_states =
          (*layers_[std::size_t(i)])(hidden_states, {chunked_[std::size_t(i)] ? chunks : full, freqs_cis, position_ids, cache.get()});
    hidden_states = (*norm_)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  mutable std::weak_ptr<Cache> generation_cache_;  ///< DynamicCache(config) as generate() made it
  I chunk_;
  std::vector<bool> rope_, chunked_, sparse_;
  UnaryPtr embed_tokens_, norm_;
  std::vector<DecoderLayerPtr> layers_;
  std::shared_ptr<RotaryEmbedding> rotary_emb_;
};

}  // namespace

NetworkPtr make_llama4_text(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "Llama4";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) -> std::shared_ptr<DecoderBody> {
    return std::make_shared<Llama4TextModel>(std::move(c));
  };
  return make_decoder(config, o, std::move(f));
}
namespace {
const Family llama4_text_family{
    {"llama4_text"}, {{Task::causal_lm, "Llama4ForCausalLM", make_llama4_text}, {Task::base, "Llama4TextModel", make_llama4_text}}};
}  // namespace

}  // namespace memest::hf
