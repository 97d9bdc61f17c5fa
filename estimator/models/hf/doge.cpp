// models/doge/modeling_doge.py.
#include <cmath>

#include "models/hf/decoder.h"
#include "models/hf/moe.h"

namespace memest::hf {
namespace {

/// A mask is made from the values, added onto the causal one, and takes part in the gradient.
class DogeAttention final : public DecoderAttention {
 public:
  DogeAttention(const DecoderConfig& c, I layer)
      : DecoderAttention(c, layer, "DogeAttention"), keep_window_size_(c.file.size_or("keep_window_size", 2048)) {
    const bool bias = c.attention_bias;
    q_proj_ = &child<Linear>("q_proj", c.hidden, heads_ * head_dim_, bias);
    k_proj_ = &child<Linear>("k_proj", c.hidden, kv_heads_ * head_dim_, bias);
    v_proj_ = &child<Linear>("v_proj", c.hidden, kv_heads_ * head_dim_, bias);
    new_parameter("A", {kv_heads_});
    dt_proj_ = &child<Linear>("dt_proj", kv_heads_ * head_dim_, kv_heads_, bias);
    o_proj_ = &child<Linear>("o_proj", heads_ * head_dim_, c.hidden, bias);
    q_norm_ = register_module("q_norm", make_norm(Norm::llama, head_dim_, "DogeRMSNorm"));
    k_norm_ = register_module("k_norm", make_norm(Norm::llama, head_dim_, "DogeRMSNorm"));
  }

 protected:
  void project(Frame& f) override {
    f.query = (*q_norm_)((*q_proj_)(f.hidden_states).view(f.hidden_shape)).transpose(1, 2);
    f.key = (*k_norm_)((*k_proj_)(f.hidden_states).view(f.hidden_shape)).transpose(1, 2);
    f.value = (*v_proj_)(f.hidden_states).view(f.hidden_shape).transpose(1, 2);
  }
  Pair attend(Frame& f, AttentionCall call) override {
    X dt_states = (*dt_proj_)(f.value.transpose(1, 2).reshape({f.value.size(0), f.value.size(-2), -1}));
    dt_states = X(parameter(0)).mul(X(aten("softplus", {Tensor(dt_states)}))).exp().transpose(-1, -2);
    X attn_mask = prepare_dynamic_mask(f.hidden_states, dt_states, call.mask);
    attn_mask = repeat_kv(attn_mask, groups_);
    f.locals = {dt_states, attn_mask};
    call.mask = std::move(attn_mask);
    return attention_interface(options_, f.query, f.key, f.value, std::move(call));
  }

 private:
  X prepare_dynamic_mask(const X& hidden_states, const X& dt_states, X attention_mask) const {
    X attn_mask = dt_states.whole_slices(2).unsqueeze(2).expand({-1, -1, hidden_states.size(1), -1});
    X active_mask, topk_indices;
    if (attention_mask) {
      if (attention_mask.dtype() == DType::boolean) attention_mask = where(attention_mask, full({}, 0.0, hidden_states.dtype()), -1e30);
      X excluded = aten("ne", {Tensor(attention_mask.slice(3, std::nullopt, attn_mask.size(-1))), I{0}});
      attn_mask = aten("masked_fill", {Tensor(attn_mask), Tensor(std::move(excluded)), -1e30});
    }
    if (attn_mask.size(-1) > keep_window_size_) {
      active_mask = aten("zeros_like", {Tensor(attn_mask)}, {{"dtype", hidden_states.dtype()}});
      topk_indices = topk(attn_mask, keep_window_size_, false).second;
      active_mask = aten("scatter", {Tensor(active_mask), I{-1}, Tensor(topk_indices), 1.0});
      attn_mask = aten("masked_fill", {Tensor(attn_mask), Tensor(aten("eq", {Tensor(active_mask), 0.0})), -1e30});
    }
    return leave(attn_mask, attention_mask, active_mask, topk_indices);
  }

  I keep_window_size_;
  Linear* dt_proj_;
  UnaryPtr q_norm_, k_norm_;
};

class DogeCDMoE final : public Unary {
 public:
  explicit DogeCDMoE(const DecoderConfig& c)
      : Unary("DogeCDMoE"),
        keys_(I(std::floor(std::sqrt(double(c.file.size("num_experts")))))),
        top_k_(c.file.size("num_experts_per_tok")),
        normalize_(c.file.boolean_or("norm_topk_prob", false)),
        act_fn(child<Activation>("act_fn", c.act)),
        gate_proj(child<Linear>("gate_proj", c.hidden, c.intermediate, c.mlp_bias)),
        up_proj(child<Linear>("up_proj", c.hidden, c.intermediate, c.mlp_bias)),
        down_proj(child<Linear>("down_proj", c.intermediate, c.hidden, c.mlp_bias)),
        router_gate(child<Linear>("router_gate", c.hidden, keys_ * 2, false)),
        down_embed(child<Embedding>("down_embed", c.file.size("num_experts"), c.hidden)),
        up_embed(child<Embedding>("up_embed", c.file.size("num_experts"), c.hidden)) {
    if (top_k_ > keys_ * keys_)
      throw c.file.error("num_experts_per_tok",
                         "each token takes " + std::to_string(top_k_) + " of " + std::to_string(keys_ * keys_) + " pairs of keys");
  }

 protected:
  X forward(X hidden_states) override {
    const I bsz = hidden_states.size(0), seq_len = hidden_states.size(1), tokens = bsz * seq_len;
    X router_logits = router_gate(hidden_states).view({2, tokens, -1});
    X scores_x, scores_y, indices_x, indices_y;
    {
      auto [values, chosen] = topk(router_logits, keys_);
      scores_x = values.select(0, 0), scores_y = values.select(0, 1);
      indices_x = chosen.select(0, 0), indices_y = chosen.select(0, 1);
    }
    X all_scores = scores_x.unsqueeze(-1).add(scores_y.unsqueeze(-2));
    X all_indices = indices_x.unsqueeze(-1).mul(Scalar(keys_)).add(indices_y.unsqueeze(-2));
    all_scores = all_scores.view({tokens, -1});
    all_indices = all_indices.view({tokens, -1});
    auto [scores, position_indices] = topk(all_scores, top_k_);
    X indices = aten("gather", {Tensor(all_indices), I{-1}, Tensor(position_indices)});
    X routing_weights = scores.softmax(-1);
    if (normalize_) routing_weights = ops::div_(routing_weights, routing_weights.sum(-1, true));
    X down = down_embed(indices);
    X up = up_embed(indices);
    X experts_weights = down.matmul(hidden_states.view({tokens, -1, 1})).view({tokens, -1});
    experts_weights = act_fn(experts_weights).mul(routing_weights);
    X experts_states = experts_weights.view({tokens, 1, -1}).matmul(up).view({bsz, seq_len, -1});
    hidden_states = down_proj(act_fn(gate_proj(hidden_states)).mul(up_proj(hidden_states)));
    hidden_states = hidden_states.add(experts_states);
    return leave(hidden_states, router_logits, scores_x, scores_y, indices_x, indices_y, all_scores, all_indices, indices, routing_weights,
                 down, up, experts_weights, experts_states);
  }

 private:
  I keys_, top_k_;
  bool normalize_;
  Activation& act_fn;
  Linear &gate_proj, &up_proj, &down_proj, &router_gate;
  Embedding &down_embed, &up_embed;
};

class DogeDecoderLayer final : public DecoderLayer {
 public:
  DogeDecoderLayer(const DecoderConfig& c, I layer)
      : DecoderLayer("DogeDecoderLayer", c.options), hidden_dropout_(c.file.number_or("hidden_dropout", 0.0)) {
    new_parameter("input_residual", {c.hidden});
    new_parameter("post_attention_residual", {c.hidden});
    input_layernorm_ = register_module("input_layernorm", make_norm(Norm::llama, c.hidden, "DogeRMSNorm"));
    self_attn_ = register_module("self_attn", std::make_shared<DogeAttention>(c, layer));
    post_attention_layernorm_ = register_module("post_attention_layernorm", make_norm(Norm::llama, c.hidden, "DogeRMSNorm"));
    mlp_ = c.file.boolean_or("is_moe", false) ? std::make_shared<DogeCDMoE>(c)
                                              : make_gated_mlp("DogeMLP", c.hidden, c.intermediate, c.mlp_bias, c.act);
    register_module("mlp", mlp_);
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states, weights;
    hidden_states = (*input_layernorm_)(hidden_states);
    std::tie(hidden_states, weights) = (*self_attn_)(hidden_states, call);
    hidden_states = ops::dropout(hidden_states, hidden_dropout_, training);
    hidden_states = X(parameter(0)).mul(residual).add(hidden_states);
    residual = hidden_states;
    hidden_states = (*post_attention_layernorm_)(hidden_states);
    hidden_states = (*mlp_)(hidden_states);
    hidden_states = ops::dropout(hidden_states, hidden_dropout_, training);
    hidden_states = X(parameter(1)).mul(residual).add(hidden_states);
    return leave(hidden_states, residual, weights);
  }

 private:
  double hidden_dropout_;
  UnaryPtr input_layernorm_, post_attention_layernorm_, mlp_;
  MixerPtr self_attn_;
};

class DogeModel final : public DecoderBody {
 public:
  explicit DogeModel(std::shared_ptr<const DecoderConfig> config) : DecoderBody("DogeModel"), c_(std::move(config)) {
    embed_tokens = &child<Embedding>("embed_tokens", c_->vocab, c_->hidden, c_->file.integer_if("pad_token_id"));
    layers_ = add_layers("layers", c_->layers, [&](I i) { return std::make_shared<DogeDecoderLayer>(*c_, i); });
    norm_ = register_module("norm", make_norm(Norm::llama, c_->hidden, "DogeRMSNorm"));
    rotary_emb_ = register_module("rotary_emb", std::make_shared<RotaryEmbedding>("DogeRotaryEmbedding", c_->file, c_->head_dim));
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    CachePtr cache = new_cache(*c_, training);
    X inputs_embeds = (*embed_tokens)(input_ids);
    X position_ids = default_position_ids(inputs_embeds);
    const MaskArguments arguments{
        .options = c_->options, .inputs_embeds = inputs_embeds, .cache = cache.get(), .position_ids = position_ids, .allow_skip = false};
    X causal_mask = c_->sliding_window ? create_sliding_window_causal_mask(arguments, *c_->sliding_window) : create_causal_mask(arguments);
    X hidden_states = inputs_embeds;
    Pair position_embeddings = (*rotary_emb_)(hidden_states, position_ids);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, {causal_mask, position_embeddings, position_ids, cache.get()});
    hidden_states = (*norm_)(hidden_states);
    return {leave(std::move(hidden_states), position_ids, inputs_embeds, causal_mask), cache};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  Embedding* embed_tokens;
  std::vector<DecoderLayerPtr> layers_;
  UnaryPtr norm_;
  std::shared_ptr<RotaryEmbedding> rotary_emb_;
};

NetworkPtr doge(const Config& config, const Options& o) {
  if (config.boolean_or("is_moe", false) && config.boolean_or("output_router_logits", false))
    throw config.error("output_router_logits", "memest does not build the routers' loss of Doge", "set it to false");
  DecoderForm f;
  f.prefix = "Doge";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<DogeModel>(std::move(c));
  };
  return make_decoder(config, o, std::move(f));
}
const Family doge_family{{"doge"}, decoder_classes("Doge", doge)};

}  // namespace
}  // namespace memest::hf
