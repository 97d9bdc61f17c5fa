#include "models/hf/gated_delta_net.h"

#include "models/hf/linear_attention.h"
#include "models/hf/moe.h"
#include "models/hf/rotate.h"

namespace memest::hf {
namespace {

X softplus(X x) { return aten("softplus", {Tensor(std::move(x))}); }

class RMSNormGated final : public Module<RMSNormGated> {
 public:
  RMSNormGated(const std::string& type, I width) : Module(type) { new_parameter("weight", {width}); }
  X forward(X hidden_states, X gate) {
    const DType input_dtype = hidden_states.dtype();
    hidden_states = hidden_states.to_float();
    X variance = hidden_states.pow(2).mean(-1, true);
    hidden_states = hidden_states.mul(variance.add(1e-6).rsqrt());
    hidden_states = X(parameter(0)).mul(hidden_states.to(input_dtype));
    hidden_states = hidden_states.mul(X(ops::silu(gate.to_float())));
    return hidden_states.to(input_dtype);
  }
};

class GatedDeltaNet final : public Mixer {
 public:
  GatedDeltaNet(const DecoderConfig& c, I layer, const GatedDeltaNetForm& form)
      : Mixer(form.prefix + "GatedDeltaNet"),
        layer_(layer),
        num_v_heads_(c.file.size("linear_num_value_heads")),
        num_k_heads_(c.file.size("linear_num_key_heads")),
        head_k_dim_(c.file.size("linear_key_head_dim")),
        head_v_dim_(c.file.size("linear_value_head_dim")),
        key_dim_(checked_mul(head_k_dim_, num_k_heads_)),
        value_dim_(checked_mul(head_v_dim_, num_v_heads_)),
        kernel_(c.file.size("linear_conv_kernel_dim")),
        joint_(form.joint),
        act_(c.act) {
    if (num_v_heads_ % num_k_heads_ != 0)
      throw c.file.error("linear_num_value_heads", std::to_string(num_v_heads_) + " value heads are not a multiple of " +
                                                       std::to_string(num_k_heads_) + " key heads");
    const I conv_dim = checked_add(checked_mul(key_dim_, 2), value_dim_);
    conv1d = &child<Conv1d>("conv1d", conv_dim, conv_dim, kernel_, 1, kernel_ - 1, false, conv_dim);
    if (joint_) {
      in_proj_qkvz = &child<Linear>("in_proj_qkvz", c.hidden, checked_add(conv_dim, value_dim_), false);
      in_proj_ba = &child<Linear>("in_proj_ba", c.hidden, checked_mul(num_v_heads_, 2), false);
    }
    new_parameter("dt_bias", {num_v_heads_});
    new_parameter("A_log", {num_v_heads_});
    norm = &child<RMSNormGated>("norm", form.prefix + "RMSNormGated", head_v_dim_);
    out_proj = &child<Linear>("out_proj", value_dim_, c.hidden, false);
    if (joint_) return;
    in_proj_qkv = &child<Linear>("in_proj_qkv", c.hidden, conv_dim, false);
    in_proj_z = &child<Linear>("in_proj_z", c.hidden, value_dim_, false);
    in_proj_b = &child<Linear>("in_proj_b", c.hidden, num_v_heads_, false);
    in_proj_a = &child<Linear>("in_proj_a", c.hidden, num_v_heads_, false);
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const I batch_size = hidden_states.size(0), seq_len = hidden_states.size(1);
    const X conv_state = cached_state(call.cache, layer_, kConvState);
    const X recurrent_state = cached_state(call.cache, layer_, kRecurrentState);
    Projected p = joint_ ? project_jointly(hidden_states) : project(hidden_states);
    X& mixed_qkv = p.mixed_qkv;
    if (conv_state && seq_len == 1) {
      mixed_qkv = causal_conv1d_update(mixed_qkv, conv_state, conv1d->weight(), {}, &act_);
    } else {
      if (call.cache) mixed_qkv = update_conv_state(*call.cache, layer_, mixed_qkv, kernel_);
      mixed_qkv = causal_conv1d_fn(mixed_qkv, conv1d->weight(), {}, &act_);
      if (call.cache) mixed_qkv = mixed_qkv.slice(2, -seq_len, std::nullopt);
    }
    mixed_qkv = mixed_qkv.transpose(1, 2);
    std::vector<X> parts = mixed_qkv.split(Dims{key_dim_, key_dim_, value_dim_}, -1);
    p.query = parts[0].reshape({batch_size, seq_len, -1, head_k_dim_});
    p.key = parts[1].reshape({batch_size, seq_len, -1, head_k_dim_});
    p.value = parts[2].reshape({batch_size, seq_len, -1, head_v_dim_});
    parts.clear();
    X beta = p.b.sigmoid();
    X g = X(parameter(kALog)).to_float().exp().neg();
    g = std::move(g).mul(softplus(p.a.to_float().add(X(parameter(kDtBias)))));
    DeltaRule rule{p.query, p.key, p.value, g, beta, recurrent_state, call.cache != nullptr};
    auto [core_attn_out, last_recurrent_state] =
        recurrent_state && seq_len == 1 ? torch_recurrent_gated_delta_rule(rule) : torch_chunk_gated_delta_rule(rule);
    rule = {};
    if (call.cache) update_recurrent_state(*call.cache, layer_, last_recurrent_state);
    core_attn_out = core_attn_out.reshape({-1, head_v_dim_});
    p.z = p.z.reshape({-1, head_v_dim_});
    core_attn_out = (*norm)(core_attn_out, p.z);
    core_attn_out = core_attn_out.reshape({batch_size, seq_len, -1});
    return {(*out_proj)(core_attn_out), {}};
  }

 private:
  enum Parameter : std::size_t { kDtBias, kALog };
  struct Projected {
    X mixed_qkv, z, b, a, query, key, value;
    X qkvz, ba;  ///< the joint projections
  };
  Projected project(const X& hidden_states) {
    Projected p;
    p.mixed_qkv = (*in_proj_qkv)(hidden_states).transpose(1, 2);
    p.z = (*in_proj_z)(hidden_states).reshape({hidden_states.size(0), hidden_states.size(1), -1, head_v_dim_});
    p.b = (*in_proj_b)(hidden_states);
    p.a = (*in_proj_a)(hidden_states);
    return p;
  }
  /// qwen3_next: fix_query_key_value_ordering, and the three joined again.
  Projected project_jointly(const X& hidden_states) {
    const I batch_size = hidden_states.size(0), seq_len = hidden_states.size(1), groups = num_v_heads_ / num_k_heads_;
    Projected p;
    p.qkvz = (*in_proj_qkvz)(hidden_states);
    p.ba = (*in_proj_ba)(hidden_states);
    {
      X mixed_qkvz = p.qkvz.view({batch_size, seq_len, num_k_heads_, -1});
      X mixed_ba = p.ba.view({batch_size, seq_len, num_k_heads_, -1});
      std::vector<X> qkvz = mixed_qkvz.split(Dims{head_k_dim_, head_k_dim_, groups * head_v_dim_, groups * head_v_dim_}, 3);
      std::vector<X> ba = mixed_ba.split(Dims{groups, groups}, 3);
      p.query = qkvz[0], p.key = qkvz[1];
      p.value = qkvz[2].reshape({batch_size, seq_len, -1, head_v_dim_});
      p.z = qkvz[3].reshape({batch_size, seq_len, -1, head_v_dim_});
      p.b = ba[0].reshape({batch_size, seq_len, num_v_heads_});
      p.a = ba[1].reshape({batch_size, seq_len, num_v_heads_});
    }
    std::vector<X> flat;
    for (const X* x : {&p.query, &p.key, &p.value}) flat.push_back(x->reshape({batch_size, seq_len, -1}));
    p.query = flat[0], p.key = flat[1], p.value = flat[2];
    flat.clear();
    p.mixed_qkv = cat({p.query, p.key, p.value}, -1);
    p.mixed_qkv = p.mixed_qkv.transpose(1, 2);
    return p;
  }

  I layer_, num_v_heads_, num_k_heads_, head_k_dim_, head_v_dim_, key_dim_, value_dim_, kernel_;
  bool joint_;
  Activation act_;
  Conv1d* conv1d;
  RMSNormGated* norm;
  Linear* out_proj;
  Linear *in_proj_qkvz = nullptr, *in_proj_ba = nullptr;
  Linear *in_proj_qkv = nullptr, *in_proj_z = nullptr, *in_proj_b = nullptr, *in_proj_a = nullptr;
};

class GatedAttention final : public Mixer {
 public:
  GatedAttention(const DecoderConfig& c, I layer, const std::string& prefix)
      : Mixer(prefix + "Attention"),
        options_(c.options),
        layer_(layer),
        head_dim_(c.head_dim),
        groups_(c.heads / c.kv_heads),
        dropout_(c.attention_dropout),
        q_proj(child<Linear>("q_proj", c.hidden, checked_mul(checked_mul(c.heads, c.head_dim), 2), c.attention_bias)),
        k_proj(child<Linear>("k_proj", c.hidden, checked_mul(c.kv_heads, c.head_dim), c.attention_bias)),
        v_proj(child<Linear>("v_proj", c.hidden, checked_mul(c.kv_heads, c.head_dim), c.attention_bias)),
        o_proj(child<Linear>("o_proj", checked_mul(c.heads, c.head_dim), c.hidden, c.attention_bias)),
        q_norm_(register_module("q_norm", make_norm(Norm::gemma, c.head_dim, prefix + "RMSNorm"))),
        k_norm_(register_module("k_norm", make_norm(Norm::gemma, c.head_dim, prefix + "RMSNorm"))) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1), hidden_shape = input_shape + Dims{-1, head_dim_};
    std::vector<X> halves = q_proj(hidden_states).view(input_shape + Dims{-1, head_dim_ * 2}).chunk(2, -1);
    X query_states = halves[0], gate = halves[1];
    halves.clear();
    gate = gate.reshape(input_shape + Dims{-1});
    query_states = (*q_norm_)(query_states.view(hidden_shape)).transpose(1, 2);
    X key_states = (*k_norm_)(k_proj(hidden_states).view(hidden_shape)).transpose(1, 2);
    X value_states = v_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    std::tie(query_states, key_states) =
        apply_rotary_named(query_states, key_states, call.position_embeddings.first, call.position_embeddings.second);
    if (call.cache) std::tie(key_states, value_states) = call.cache->update(key_states, value_states, layer_);
    auto [attn_output, attn_weights] =
        attention_interface(options_, query_states, key_states, value_states,
                            {.mask = call.mask, .groups = groups_, .dropout = training ? dropout_ : 0.0, .training = training});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = attn_output.mul(gate.sigmoid());
    attn_output = o_proj(attn_output);
    return {attn_output, attn_weights};
  }

 private:
  const Options options_;
  I layer_, head_dim_, groups_;
  double dropout_;
  Linear &q_proj, &k_proj, &v_proj, &o_proj;
  UnaryPtr q_norm_, k_norm_;
};

}  // namespace

MixerPtr make_gated_delta_net(const DecoderConfig& c, I layer, const GatedDeltaNetForm& form) {
  return std::make_shared<GatedDeltaNet>(c, layer, form);
}
MixerPtr make_gated_attention(const DecoderConfig& c, I layer, const std::string& prefix) {
  return std::make_shared<GatedAttention>(c, layer, prefix);
}

Config with_delta_net_layers(Config config) {
  const I interval = config.size_or("full_attention_interval", 4);
  default_layer_types(config, [interval](I i) { return (i + 1) % interval != 0 ? "linear_attention" : "full_attention"; });
  for (auto& type : config.texts("layer_types"))
    if (type != "full_attention" && type != "linear_attention")
      throw config.error("layer_types", "the types are full_attention and linear_attention, found '" + type.substr(0, 60) + "'");
  return config;
}

DecoderLayerPtr make_delta_net_layer(const DecoderConfig& c, I layer, const GatedDeltaNetForm& form, UnaryPtr mlp) {
  const bool linear = c.layer_types[std::size_t(layer)] == "linear_attention";
  LayerForm parts;
  parts.type = form.prefix + "DecoderLayer";
  parts.norm = Norm::gemma;
  parts.norm_type = form.prefix + "RMSNorm";
  parts.attention = linear ? "linear_attn" : "self_attn";
  return make_layer(c, parts, linear ? make_gated_delta_net(c, layer, form) : make_gated_attention(c, layer, form.prefix), std::move(mlp));
}

UnaryPtr make_delta_net_experts(const DecoderConfig& c, const std::string& prefix, bool norm_topk_prob) {
  const MoeSizes sizes(c, {});
  auto gate = make_softmax_router(c, prefix + "TopKRouter", sizes, {.normalize = norm_topk_prob});
  auto shared = make_gated_mlp(prefix + "MLP", c.hidden, c.file.size("shared_expert_intermediate_size"), false, c.act);
  return make_moe_block(c, {.kind = MoeBlockForm::Kind::qwen2, .type = prefix + "SparseMoeBlock"}, gate,
                        make_experts(c, prefix + "Experts", sizes), shared);
}

}  // namespace memest::hf
