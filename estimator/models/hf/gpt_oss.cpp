// models/gpt_oss: attention with sinks (eager: its class has no sdpa), experts with biases, gate and up interleaved.
#include "models/hf/moe.h"
#include "models/hf/unpacked_body.h"

namespace memest::hf {
namespace {

/// GptOssExperts._apply_gate.
X apply_gate(X gate_up) {
  X gate = gate_up.slice(-1, std::nullopt, std::nullopt, 2), up = gate_up.slice(-1, 1, std::nullopt, 2);
  gate = aten("clamp", {Tensor(gate), Value(), 7.0});
  up = aten("clamp", {Tensor(up), -7.0, 7.0});
  X glu = gate.mul(gate.mul(1.702).sigmoid());
  X gated_output = up.add(1).mul(glu);
  return gated_output;
}

class GptOssRouter final : public Router {
 public:
  GptOssRouter(const DecoderConfig& c, const MoeSizes& sizes) : Router("GptOssTopKRouter", c), top_k_(sizes.top_k) {
    new_parameter("weight", {sizes.experts, sizes.hidden});
    new_parameter("bias", {sizes.experts});
  }

 protected:
  Routing forward(X hidden_states) override {
    X router_logits = ops::linear(hidden_states, parameter(0), parameter(1));
    auto [router_top_value, router_indices] = topk(router_logits, top_k_);
    X router_scores = router_top_value.softmax(1, router_top_value.dtype());
    return {router_logits, router_scores, router_indices};
  }

 private:
  I top_k_;
};

/// GptOssMLP: the tokens after the experts, and the scores.
class GptOssMLP final : public Module<GptOssMLP> {
 public:
  GptOssMLP(const DecoderConfig& c, const MoeSizes& sizes)
      : Module("GptOssMLP"),
        router_(register_module("router", std::make_shared<GptOssRouter>(c, sizes))),
        experts_(register_module("experts", std::make_shared<Experts>(ExpertsForm{.type = "GptOssExperts",
                                                                                  .count = sizes.experts,
                                                                                  .per_token = sizes.top_k,
                                                                                  .hidden = sizes.hidden,
                                                                                  .intermediate = sizes.intermediate,
                                                                                  .transposed = true,
                                                                                  .bias = true,
                                                                                  .apply_gate = apply_gate},
                                                                      c.options))) {}
  Pair forward(X hidden_states) {
    const Dims shape = hidden_states.sizes();
    hidden_states = hidden_states.reshape({-1, hidden_states.size(-1)});
    auto [logits, router_scores, router_indices] = (*router_)(hidden_states);
    hidden_states = (*experts_)(hidden_states, router_indices, router_scores);
    hidden_states = hidden_states.reshape(shape);
    return {hidden_states, router_scores};
  }

 private:
  std::shared_ptr<GptOssRouter> router_;
  std::shared_ptr<Experts> experts_;
};

X rotated(const X& x, const X& cos, const X& sin) {
  std::vector<X> halves = x.chunk(2, -1);
  X first_half = halves[0], second_half = halves[1];
  halves.clear();
  X a = first_half.mul(cos);
  X first_ = std::move(a).sub(second_half.mul(sin));
  X b = second_half.mul(cos);
  X second_ = std::move(b).add(first_half.mul(sin));
  return cat({first_, second_}, -1);
}

class GptOssAttention final : public DecoderAttention {
 public:
  GptOssAttention(const DecoderConfig& c, I layer, bool bias) : DecoderAttention(c, layer, "GptOssAttention", {bias, bias, bias, bias}) {
    new_parameter("sinks", {c.heads});
  }

 protected:
  void rotate(Frame& f, const LayerCall& call) override {
    X cos = call.position_embeddings.first.unsqueeze(1), sin = call.position_embeddings.second.unsqueeze(1);
    X q_embed = rotated(f.query, cos, sin);
    f.key = rotated(f.key, cos, sin);
    f.query = q_embed;
  }
  /// eager_attention_forward of gpt_oss.
  Pair attend(Frame& f, AttentionCall call) override {
    X key_states = repeat_kv(f.key, call.groups);
    X value_states = repeat_kv(f.value, call.groups);
    X attn_weights = f.query.matmul(key_states.transpose(2, 3)).mul(1.0);
    if (call.mask) attn_weights = attn_weights.add(call.mask);
    X sinks = X(parameter(0)).reshape({1, -1, 1, 1}).expand({f.query.size(0), -1, f.query.size(-2), -1});
    X combined_logits = cat({attn_weights, sinks}, -1);
    {
      std::vector<X> most = aten_list("max", {Tensor(combined_logits), I{-1}, true});
      X values = most[0];
      most.clear();
      combined_logits = combined_logits.sub(std::move(values));
    }
    X probs = combined_logits.softmax(-1, combined_logits.dtype());
    X scores = probs.slice(-1, std::nullopt, -1);
    attn_weights = X(ops::dropout(scores, call.dropout, call.training)).to(value_states.dtype());
    X attn_output = attn_weights.matmul(value_states);
    attn_output = attn_output.transpose(1, 2).contiguous();
    return {attn_output, attn_weights};
  }
};

class GptOssDecoderLayer final : public DecoderLayer {
 public:
  GptOssDecoderLayer(const DecoderConfig& c, I layer, const MoeSizes& sizes)
      : DecoderLayer("GptOssDecoderLayer", c.options),
        self_attn_(register_module("self_attn", std::make_shared<GptOssAttention>(c, layer, c.file.boolean_or("attention_bias", true)))),
        mlp(child<GptOssMLP>("mlp", c, sizes)),
        input_layernorm_(register_module("input_layernorm", make_norm(Norm::olmo2, c.hidden, "GptOssRMSNorm"))),
        post_attention_layernorm_(register_module("post_attention_layernorm", make_norm(Norm::olmo2, c.hidden, "GptOssRMSNorm"))) {}

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states, second;
    hidden_states = (*input_layernorm_)(hidden_states);
    std::tie(hidden_states, second) = (*self_attn_)(hidden_states, call);
    hidden_states = residual.add(hidden_states);
    residual = hidden_states;
    hidden_states = (*post_attention_layernorm_)(hidden_states);
    std::tie(hidden_states, second) = mlp(hidden_states);
    hidden_states = residual.add(hidden_states);
    return hidden_states;
  }

 private:
  MixerPtr self_attn_;
  GptOssMLP& mlp;
  UnaryPtr input_layernorm_, post_attention_layernorm_;
};

constexpr MoeFields kFields{"num_local_experts", "num_experts_per_tok", "intermediate_size"};

NetworkPtr gpt_oss(const Config& given, const Options& given_options) {
  Config config = given;
  Options o = given_options;
  o.attention = Attention::eager;
  default_layer_types(config, [](I i) { return (i + 1) % 2 != 0 ? "sliding_attention" : "full_attention"; });
  DecoderForm f;
  f.prefix = "GptOss";
  f.norm = Norm::olmo2;
  f.norm_type = "GptOssRMSNorm";
  f.layer = [](const DecoderConfig& c, I i) -> DecoderLayerPtr { return std::make_shared<GptOssDecoderLayer>(c, i, MoeSizes(c, kFields)); };
  f.rotary = [](const DecoderConfig& c) {
    return std::make_shared<RotaryEmbedding>("GptOssRotaryEmbedding", c.file, c.head_dim,
                                             RotaryEmbedding::Form{.table = RotaryEmbedding::Table::plain});
  };
  f.body = make_unpacked_body;
  f.aux_loss = load_balancing(kFields);
  return make_decoder(config, o, std::move(f));
}
const Family gpt_oss_family{{"gpt_oss"}, decoder_classes("GptOss", gpt_oss, {Task::token_cls})};

}  // namespace
}  // namespace memest::hf
