// models/jamba: mamba's mixer, with attention without positions in some layers and experts in some.
#include "models/hf/linear_attention.h"
#include "models/hf/mamba_mixer.h"
#include "models/hf/moe.h"

namespace memest::hf {
namespace {

class JambaAttention final : public DecoderAttention {
 public:
  JambaAttention(const DecoderConfig& c, I layer) : DecoderAttention(c, layer, "JambaAttention", {}) {}

 protected:
  void rotate(Frame&, const LayerCall&) override {}
};

class JambaTopKRouter final : public Router {
 public:
  JambaTopKRouter(const DecoderConfig& c, const MoeSizes& sizes) : Router("JambaTopKRouter", c), top_k_(sizes.top_k) {
    new_parameter("weight", {sizes.experts, sizes.hidden});
  }

 protected:
  Routing forward(X hidden_states) override {
    X router_logits = ops::linear(hidden_states, parameter(0), {});
    X routing_weights = router_logits.softmax(-1, DType::float32);
    auto [top_k_weights, top_k_index] = topk(routing_weights, top_k_);
    return {router_logits, top_k_weights.to(hidden_states.dtype()), top_k_index};
  }

 private:
  I top_k_;
};

/// i % period == offset, of attn_layer_* and expert_layer_*.
bool is_at(const Config& f, const std::string& kind, I layer, I period, I offset) {
  return layer % f.size_or(kind + "_layer_period", period) == f.integer_or(kind + "_layer_offset", offset);
}

MixerPtr jamba_mixer(const DecoderConfig& c, I layer) {
  const Config& f = c.file;
  MambaMixerForm form;
  form.prefix = "JambaMamba";
  form.intermediate = checked_mul(f.size("mamba_expand"), c.hidden);
  form.state = f.size("mamba_d_state");
  form.kernel = f.size("mamba_d_conv");
  form.rank = time_step_rank(f, "mamba_dt_rank", c.hidden);
  form.bias = f.boolean_or("mamba_proj_bias", false);
  form.conv_bias = f.boolean_or("mamba_conv_bias", true);
  form.act = c.act;
  form.asks_for_fused = false;
  form.norms = MambaMixerForm::Norms::rms;
  return make_mamba_mixer(c, layer, form);
}

UnaryPtr feed_forward(const DecoderConfig& c, I layer) {
  constexpr MoeFields fields{"num_experts", "num_experts_per_tok", "intermediate_size"};
  if (!is_at(c.file, "expert", layer, 2, 1) || c.file.size("num_experts") == 1)
    return make_gated_mlp("JambaMLP", c.hidden, c.intermediate, false, c.act);
  const MoeSizes sizes(c, fields);
  return make_moe_block(c, {.kind = MoeBlockForm::Kind::mixtral, .type = "JambaSparseMoeBlock", .gate = "router"},
                        std::make_shared<JambaTopKRouter>(c, sizes), make_experts(c, "JambaExperts", sizes));
}

NetworkPtr jamba(const Config& given, const Options& o) {
  note_torch_recurrence("causal-conv1d and mamba-ssm");
  Config config = given;
  default_layer_types(config, [&](I i) { return is_at(given, "attn", i, 8, 4) ? "full_attention" : "linear_attention"; });
  DecoderForm f;
  f.prefix = "Jamba";
  f.norm_type = "JambaRMSNorm";
  f.norm_name = "final_layernorm";
  f.layer = [](const DecoderConfig& c, I i) {
    const bool attention = c.layer_types[std::size_t(i)] == "full_attention";
    LayerForm form;
    form.type = attention ? "JambaAttentionDecoderLayer" : "JambaMambaDecoderLayer";
    form.norm_type = "JambaRMSNorm";
    form.norms = {"input_layernorm", "pre_ff_layernorm"};
    form.attention = attention ? "self_attn" : "mamba";
    form.mlp = "feed_forward";
    return make_layer(c, form, attention ? std::make_shared<JambaAttention>(c, i) : jamba_mixer(c, i), feed_forward(c, i));
  };
  f.aux_loss = load_balancing();
  return make_decoder(config, o, std::move(f));
}
const Family jamba_family{{"jamba"},
                          {{Task::causal_lm, "JambaForCausalLM", jamba},
                           {Task::seq_cls, "JambaForSequenceClassification", jamba},
                           {Task::base, "JambaModel", jamba}}};

}  // namespace
}  // namespace memest::hf
