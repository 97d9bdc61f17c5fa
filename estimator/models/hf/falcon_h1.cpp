// models/falcon_h1: in each layer attention and mamba2's mixer side by side, with multipliers.
#include "models/hf/linear_attention.h"
#include "models/hf/mamba2_mixer.h"

namespace memest::hf {
namespace {

class FalconH1Attention final : public DecoderAttention {
 public:
  FalconH1Attention(const DecoderConfig& c, I layer)
      : DecoderAttention(c, layer, "FalconH1Attention", {c.attention_bias, c.attention_bias, c.attention_bias, c.attention_bias}) {}

 protected:
  void project(Frame& f) override {
    f.query = (*q_proj_)(f.hidden_states).view(f.hidden_shape).transpose(1, 2);
    f.key = (*k_proj_)(f.hidden_states).view(f.hidden_shape).transpose(1, 2).mul(1.0);
    f.value = (*v_proj_)(f.hidden_states).view(f.hidden_shape).transpose(1, 2);
  }
};

class FalconH1MLP final : public Unary {
 public:
  explicit FalconH1MLP(const DecoderConfig& c)
      : Unary("FalconH1MLP"),
        gate_proj(child<Linear>("gate_proj", c.hidden, c.intermediate, c.mlp_bias)),
        up_proj(child<Linear>("up_proj", c.hidden, c.intermediate, c.mlp_bias)),
        down_proj(child<Linear>("down_proj", c.intermediate, c.hidden, c.mlp_bias)),
        act_fn(child<Activation>("act_fn", c.act)) {}

 protected:
  X forward(X x) override {
    X up = up_proj(x);
    X gate = act_fn(gate_proj(x).mul(1.0));
    X y = std::move(up).mul(std::move(gate));
    y = down_proj(y).mul(1.0);
    return y;
  }

 private:
  Linear &gate_proj, &up_proj, &down_proj;
  Activation& act_fn;
};

Mamba2Form mixer_form(const DecoderConfig& c) {
  const Config& f = c.file;
  Mamba2Form form;
  form.type = "FalconH1Mixer";
  form.heads = f.size("mamba_n_heads");
  form.intermediate = f.has("mamba_d_ssm") ? f.size("mamba_d_ssm") : checked_mul(f.size("mamba_expand"), c.hidden);
  const ConfigValue* d_head = f.find("mamba_d_head");
  const bool automatic = d_head && std::get_if<std::string>(&d_head->value);
  form.head_dim = automatic ? form.intermediate / form.heads : f.size("mamba_d_head");
  form.state = f.size("mamba_d_state");
  form.groups = f.size("mamba_n_groups");
  form.kernel = f.size("mamba_d_conv");
  form.chunk_size = f.size("mamba_chunk_size");
  form.bias = f.boolean_or("mamba_proj_bias", false);
  form.out_bias = f.boolean_or("projectors_bias", false);
  form.conv_bias = f.boolean_or("mamba_conv_bias", true);
  form.act = c.act;
  form.scaled = true;
  form.gate = !f.boolean_or("mamba_rms_norm", false)         ? Mamba2Form::Gate::alone
              : f.boolean_or("mamba_norm_before_gate", true) ? Mamba2Form::Gate::after_norm
                                                             : Mamba2Form::Gate::before_norm;
  return form;
}

class FalconH1DecoderLayer final : public DecoderLayer {
 public:
  FalconH1DecoderLayer(const DecoderConfig& c, I layer)
      : DecoderLayer("FalconH1DecoderLayer", c.options),
        feed_forward(child<FalconH1MLP>("feed_forward", c)),
        mamba(register_module("mamba", make_mamba2_mixer(c, layer, mixer_form(c)))),
        self_attn(child<FalconH1Attention>("self_attn", c, layer)),
        input_layernorm(register_module("input_layernorm", make_norm(Norm::llama, c.hidden, "FalconH1RMSNorm"))),
        pre_ff_layernorm(register_module("pre_ff_layernorm", make_norm(Norm::llama, c.hidden, "FalconH1RMSNorm"))) {}

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states;
    hidden_states = (*input_layernorm)(hidden_states);
    X mamba_hidden_states = (*mamba)(hidden_states, {{}, {}, {}, call.cache}).first;
    mamba_hidden_states = mamba_hidden_states.mul(1.0);
    auto [attention_hidden_states, weights] = self_attn(hidden_states.mul(1.0), call);
    attention_hidden_states = attention_hidden_states.mul(1.0);
    hidden_states = mamba_hidden_states.add(attention_hidden_states);
    hidden_states = residual.add(hidden_states);
    residual = hidden_states;
    hidden_states = (*pre_ff_layernorm)(hidden_states);
    hidden_states = feed_forward(hidden_states);
    hidden_states = residual.add(hidden_states);
    return leave(hidden_states, residual, mamba_hidden_states, attention_hidden_states, weights);
  }

 private:
  FalconH1MLP& feed_forward;
  MixerPtr mamba;
  FalconH1Attention& self_attn;
  UnaryPtr input_layernorm, pre_ff_layernorm;
};

class FalconH1Model final : public DecoderBody {
 public:
  explicit FalconH1Model(std::shared_ptr<const DecoderConfig> config)
      : DecoderBody("FalconH1Model"),
        c_(std::move(config)),
        embed_tokens(child<Embedding>("embed_tokens", c_->vocab, c_->hidden, c_->file.integer_if("pad_token_id"))),
        layers_(add_layers("layers", c_->layers, [&](I i) { return std::make_shared<FalconH1DecoderLayer>(*c_, i); })),
        final_layernorm(register_module("final_layernorm", make_norm(Norm::llama, c_->hidden, "FalconH1RMSNorm"))),
        rotary_emb(child<RotaryEmbedding>("rotary_emb", "FalconH1RotaryEmbedding", c_->file, c_->head_dim)) {}

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = embed_tokens(input_ids).mul(1.0);
    X hidden_states = inputs_embeds;
    CachePtr cache = new_cache(*c_, training);
    X position_ids = default_position_ids(hidden_states);
    X causal_mask = create_causal_mask({c_->options, inputs_embeds, cache.get(), position_ids});
    const Pair position_embeddings = rotary_emb(hidden_states, position_ids);
    X layer_outputs;
    for (auto& layer : layers_) {
      layer_outputs = (*layer)(hidden_states, {causal_mask, position_embeddings, position_ids, cache.get()});
      hidden_states = layer_outputs;
    }
    hidden_states = (*final_layernorm)(hidden_states);
    return {leave(hidden_states, inputs_embeds, position_ids, causal_mask), cache};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  Embedding& embed_tokens;
  std::vector<DecoderLayerPtr> layers_;
  UnaryPtr final_layernorm;
  RotaryEmbedding& rotary_emb;
};

NetworkPtr falcon_h1(const Config& config, const Options& o) {
  note_torch_recurrence("causal-conv1d and mamba-ssm");
  DecoderForm f;
  f.prefix = "FalconH1";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<FalconH1Model>(std::move(c));
  };
  f.logits = [](X logits, const DecoderConfig&) { return std::move(logits).mul(1.0); };
  return make_decoder(config, o, std::move(f));
}
const Family falcon_h1_family{{"falcon_h1"},
                              {{Task::causal_lm, "FalconH1ForCausalLM", falcon_h1}, {Task::base, "FalconH1Model", falcon_h1}}};

}  // namespace
}  // namespace memest::hf
