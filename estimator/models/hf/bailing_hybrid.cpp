// models/bailing_hybrid: Kimi delta attention, and latent attention with a gate for each head in the last layer of each group.
#include "models/hf/kimi_delta.h"
#include "models/hf/mla.h"
#include "models/hf/moe.h"

namespace memest::hf {
namespace {

/// Its attribute_map gives the fields these names.
constexpr MoeFields kRouted{"num_local_experts", "num_experts_per_tok", "moe_intermediate_size"};

Tensor fp32_parameter(const Dims& sizes) {
  Tensor x = host_tensor(sizes, DType::float32);
  x->requires_grad = true;
  return x;
}

class BailingHybridRMSNormGated final : public Module<BailingHybridRMSNormGated> {
 public:
  explicit BailingHybridRMSNormGated(I width) : Module("BailingHybridRMSNormGated") { new_parameter("weight", {width}); }
  X forward(X hidden_states, X gate) {
    const DType input_dtype = hidden_states.dtype();
    hidden_states = hidden_states.to_float();
    X variance = hidden_states.pow(2).mean(-1, true);
    hidden_states = hidden_states.mul(variance.add(1e-6).rsqrt());
    hidden_states = X(parameter(0)).to_float().mul(hidden_states);
    hidden_states = hidden_states.mul(gate.to_float().sigmoid());
    return hidden_states.to(input_dtype);
  }
};

class BailingHybridForgetGate final : public Module<BailingHybridForgetGate> {
 public:
  BailingHybridForgetGate(const DecoderConfig& c, I heads, I head_dim)
      : Module("BailingHybridForgetGate"), heads_(heads), head_dim_(head_dim), safe_gate_(c.file.boolean_or("kda_safe_gate", true)) {
    register_parameter("A_log", fp32_parameter({heads}));
    register_parameter("dt_bias", fp32_parameter({checked_mul(heads, head_dim)}));
    f_proj = &child<Linear>("f_proj", c.hidden, heads * head_dim, false);
  }
  X forward(X hidden_states) {
    X gate_input = (*f_proj)(hidden_states).to_float().view({hidden_states.size(0), hidden_states.size(1), heads_, head_dim_});
    gate_input = gate_input.add(X(parameter(1)).view({1, 1, heads_, head_dim_}));
    X decay_rate = X(parameter(0)).exp().view({1, 1, heads_, 1});
    X gate;
    if (safe_gate_) {
      gate = decay_rate.mul(gate_input).sigmoid().mul(1.0);
    } else {
      X negative = decay_rate.neg();
      gate = std::move(negative).mul(aten("softplus", {Tensor(gate_input)}));
    }
    return gate.to(hidden_states.dtype());
  }

 private:
  I heads_, head_dim_;
  bool safe_gate_;
  Linear* f_proj;
};

class BailingHybridDeltaAttention final : public Mixer {
 public:
  BailingHybridDeltaAttention(const DecoderConfig& c, I layer)
      : Mixer("BailingHybridDeltaAttention"),
        layer_(layer),
        head_dim_(c.file.size("linear_head_dim")),
        qkv_dim_(checked_mul(head_dim_, c.heads)),
        kernel_(c.file.size_or("short_conv_kernel_size", 4)),
        act_(c.act) {
    q_proj = &child<Linear>("q_proj", c.hidden, qkv_dim_, false);
    k_proj = &child<Linear>("k_proj", c.hidden, qkv_dim_, false);
    v_proj = &child<Linear>("v_proj", c.hidden, qkv_dim_, false);
    const I conv_dim = checked_mul(qkv_dim_, 3);
    {
      Scoped<DType> fp32(runtime().default_dtype, DType::float32);
      conv1d = &child<Conv1d>("conv1d", conv_dim, conv_dim, kernel_, 1, kernel_ - 1, false, conv_dim);
    }
    forget_gate = &child<BailingHybridForgetGate>("forget_gate", c, c.heads, head_dim_);
    b_proj = &child<Linear>("b_proj", c.hidden, c.heads, false);
    o_norm = &child<BailingHybridRMSNormGated>("o_norm", head_dim_);
    o_proj = &child<Linear>("o_proj", qkv_dim_, c.hidden, false);
    g_proj = &child<Linear>("g_proj", c.hidden, qkv_dim_, false);
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const I batch_size = hidden_states.size(0), seq_len = hidden_states.size(1);
    const Dims hidden_shape{batch_size, seq_len, -1, head_dim_};
    X mixed_qkv;
    {
      std::vector<X> parts;
      for (Linear* proj : {q_proj, k_proj, v_proj}) parts.push_back((*proj)(hidden_states));
      mixed_qkv = cat(std::move(parts), -1).transpose(1, 2);
    }
    const X conv_state = cached_state(call.cache, layer_, kConvState);
    const X recurrent_state = cached_state(call.cache, layer_, kRecurrentState);
    if (conv_state && seq_len == 1) {
      mixed_qkv = causal_conv1d_update(mixed_qkv, conv_state, conv1d->weight(), {}, &act_);
    } else {
      if (call.cache) mixed_qkv = update_conv_state(*call.cache, layer_, mixed_qkv, kernel_);
      mixed_qkv = causal_conv1d_fn(mixed_qkv, conv1d->weight(), {}, &act_);
      if (call.cache) mixed_qkv = mixed_qkv.slice(2, -seq_len, std::nullopt);
    }
    std::vector<X> parts = mixed_qkv.transpose(1, 2).split(Dims{qkv_dim_, qkv_dim_, qkv_dim_}, -1);
    for (X& states : parts) states = states.view(hidden_shape);
    X query = parts[0], key = parts[1], value = parts[2];
    parts.clear();
    X decay = (*forget_gate)(hidden_states);
    X beta = (*b_proj)(hidden_states).sigmoid();
    DeltaRule rule{query, key, value, decay, beta, recurrent_state, call.cache != nullptr};
    auto [output, last_recurrent_state] =
        recurrent_state && seq_len == 1 ? recurrent_kimi_delta_attention(rule) : chunk_kimi_delta_attention(rule);
    rule = {};
    if (call.cache) update_recurrent_state(*call.cache, layer_, last_recurrent_state.to_float());
    X output_gate = (*g_proj)(hidden_states);
    output = (*o_norm)(output, output_gate.view(hidden_shape)).reshape({batch_size, seq_len, -1});
    return {(*o_proj)(output), {}};
  }

 private:
  I layer_, head_dim_, qkv_dim_, kernel_;
  Activation act_;
  Linear *q_proj, *k_proj, *v_proj;
  Conv1d* conv1d;
  BailingHybridForgetGate* forget_gate;
  Linear* b_proj;
  BailingHybridRMSNormGated* o_norm;
  Linear *o_proj, *g_proj;
};

UnaryPtr mlp_of(const DecoderConfig& c, I layer) {
  const std::string prefix = "BailingHybrid";
  const bool dense_first = layer < c.file.integer_or("first_k_dense_replace", 2);
  if (c.file.has("mlp_layer_types") ? !sparse_by_type(c, layer, nullptr) : dense_first)
    return make_gated_mlp(prefix + "MLP", c.hidden, c.intermediate, false, c.act);
  const MoeSizes sizes(c, kRouted);
  auto shared = make_gated_mlp(prefix + "MLP", c.hidden, checked_mul(sizes.intermediate, c.file.size("n_shared_experts")), false, c.act);
  return make_moe_block(c, {.kind = MoeBlockForm::Kind::deepseek, .type = prefix + "MoE"},
                        make_group_router(c, prefix + "TopkRouter", sizes, {}), make_experts(c, prefix + "Experts", sizes), shared);
}

NetworkPtr bailing_hybrid(const Config& given, const Options& o) {
  note_torch_recurrence("causal-conv1d and flash-linear-attention");
  Config config = given;
  config.set("linear_head_dim", ConfigValue{given.size("head_dim")});
  const I group = given.size_or("layer_group_size", 6);
  default_layer_types(config, [group](I i) { return (i + 1) % group == 0 ? "full_attention" : "linear_attention"; });
  DecoderForm f;
  f.prefix = "BailingHybrid";
  f.norm_type = "BailingHybridRMSNorm";
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "BailingHybridDecoderLayer";
    form.norm_type = "BailingHybridRMSNorm";
    MixerPtr mixer;
    if (c.layer_types[std::size_t(i)] == "full_attention")
      mixer = make_latent_attention(c, i, {.type = "BailingHybridAttention", .head_gate = true});
    else
      mixer = std::make_shared<BailingHybridDeltaAttention>(c, i);
    return make_layer(c, form, mixer, mlp_of(c, i));
  };
  f.rotary = [](const DecoderConfig& c) { return std::make_shared<RotaryEmbedding>("BailingHybridRotaryEmbedding", c.file, c.head_dim); };
  return make_decoder(with_mla_head_dim(config), o, std::move(f));
}
const Family bailing_hybrid_family{
    {"bailing_hybrid"},
    {{Task::causal_lm, "BailingHybridForCausalLM", bailing_hybrid}, {Task::base, "BailingHybridModel", bailing_hybrid}}};

}  // namespace
}  // namespace memest::hf
