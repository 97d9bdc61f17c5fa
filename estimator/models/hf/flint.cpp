// models/flint: attention with sinks in fp32 (eager: its class has no sdpa), rotary embeddings in windowed layers alone, a sigmoid router.
#include <algorithm>

#include "models/hf/moe.h"

namespace memest::hf {
namespace {

class FlintAttention final : public DecoderAttention {
 public:
  FlintAttention(const DecoderConfig& c, I layer)
      : DecoderAttention(c, layer, "FlintAttention", {c.attention_bias, c.attention_bias, c.attention_bias, c.attention_bias}),
        windowed_(c.sliding(layer)),
        q_norm_(register_module("q_norm", make_norm(Norm::olmo2, head_dim_, "FlintRMSNorm"))),
        k_norm_(register_module("k_norm", make_norm(Norm::olmo2, head_dim_, "FlintRMSNorm"))) {
    Tensor sinks = host_tensor({c.heads}, DType::float32);
    sinks->requires_grad = true;
    register_parameter("sinks", std::move(sinks));
  }

 protected:
  void project(Frame& f) override {
    f.query = (*q_norm_)((*q_proj_)(f.hidden_states).view(f.hidden_shape)).transpose(1, 2);
    f.key = (*k_norm_)((*k_proj_)(f.hidden_states).view(f.hidden_shape)).transpose(1, 2);
    f.value = (*v_proj_)(f.hidden_states).view(f.hidden_shape).transpose(1, 2);
  }
  void rotate(Frame& f, const LayerCall& call) override {
    if (windowed_) DecoderAttention::rotate(f, call);
  }
  /// eager_attention_forward of flint.
  Pair attend(Frame& f, AttentionCall call) override {
    X key_states = repeat_kv(f.key, call.groups);
    X value_states = repeat_kv(f.value, call.groups);
    X attn_weights;
    {
      AutocastContext no_autocast(false, runtime().autocast.dtype);
      X query = f.query.to_float();
      attn_weights = std::move(query).matmul(key_states.to_float().transpose(2, 3)).mul(1.0);
    }
    if (call.mask) attn_weights = attn_weights.add(call.mask);
    X sinks = X(parameter(0)).reshape({1, -1, 1, 1}).expand({attn_weights.size(0), attn_weights.size(1), attn_weights.size(2), 1});
    attn_weights = cat({attn_weights, sinks}, -1).softmax(-1).slice(-1, std::nullopt, -1).to(value_states.dtype());
    attn_weights = ops::dropout(attn_weights, call.dropout, call.training);
    X attn_output = attn_weights.matmul(value_states);
    attn_output = attn_output.transpose(1, 2).contiguous();
    return {attn_output, attn_weights};
  }

 private:
  bool windowed_;
  UnaryPtr q_norm_, k_norm_;
};

class FlintRouter final : public Router {
 public:
  FlintRouter(const DecoderConfig& c, const MoeSizes& sizes)
      : Router("FlintTopKRouter", c), sizes_(sizes), normalize_(c.file.boolean_or("norm_topk_prob", true)) {
    Tensor weight = host_tensor({sizes.experts, sizes.hidden}, DType::float32);
    weight->requires_grad = true;
    register_parameter("weight", std::move(weight));
  }

 protected:
  Routing forward(X hidden_states) override {
    hidden_states = hidden_states.reshape({-1, sizes_.hidden});
    X router_logits;
    {
      AutocastContext no_autocast(false, runtime().autocast.dtype);
      X input = hidden_states.to_float();
      router_logits = ops::linear(std::move(input), X(parameter(0)).to_float(), {});
    }
    auto [routing_weights, selected_experts] = topk(router_logits.sigmoid(), sizes_.top_k);
    if (normalize_) routing_weights = routing_weights.div(routing_weights.sum(-1, true));
    return {router_logits, routing_weights, selected_experts};
  }

 private:
  MoeSizes sizes_;
  bool normalize_;
};

UnaryPtr mlp_of(const DecoderConfig& c, I width) { return make_gated_mlp("FlintMLP", c.hidden, width, false, c.act); }

class FlintBlock final : public Unary {
 public:
  FlintBlock(const DecoderConfig& c, const MoeSizes& sizes)
      : Unary("FlintSparseMoeBlock"),
        experts_(register_module("experts", make_experts(c, "FlintExperts", sizes))),
        gate_(register_module("gate", std::make_shared<FlintRouter>(c, sizes))),
        shared_expert_(register_module("shared_expert", mlp_of(c, c.file.size("shared_expert_intermediate_size")))) {}

 protected:
  X forward(X hidden_states) override {
    const Dims shape = hidden_states.sizes();
    hidden_states = hidden_states.view({-1, hidden_states.size(-1)});
    auto [logits, routing_weights, selected_experts] = (*gate_)(hidden_states);
    X final_hidden_states = (*experts_)(hidden_states, selected_experts, routing_weights);
    final_hidden_states = final_hidden_states.add((*shared_expert_)(hidden_states));
    return final_hidden_states.reshape(shape);
  }

 private:
  std::shared_ptr<Experts> experts_;
  std::shared_ptr<FlintRouter> gate_;
  UnaryPtr shared_expert_;
};

bool sparse(const DecoderConfig& c, I layer) {
  const auto dense = c.file.has("mlp_only_layers") ? c.file.integers("mlp_only_layers") : std::vector<I>{0, 1};
  if (std::find(dense.begin(), dense.end(), layer) != dense.end()) return false;
  return (layer + 1) % c.file.size_or("decoder_sparse_step", 1) == 0;
}

NetworkPtr flint(const Config& given, const Options& given_options) {
  Config config = given;
  Options o = given_options;
  o.attention = Attention::eager;
  const I last = layer_count(config) - 1;
  default_layer_types(config, [last](I i) { return i < 2 || i % 4 == 1 || i == last ? "full_attention" : "sliding_attention"; });
  DecoderForm f;
  f.prefix = "Flint";
  f.norm = Norm::olmo2;
  f.norm_type = "FlintRMSNorm";
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "FlintDecoderLayer";
    form.norm = Norm::olmo2;
    form.norm_type = "FlintRMSNorm";
    auto attention = std::make_shared<FlintAttention>(c, i);
    if (!sparse(c, i)) return make_layer(c, form, attention, mlp_of(c, c.intermediate));
    return make_layer(c, form, attention, std::make_shared<FlintBlock>(c, MoeSizes(c, {})));
  };
  f.rotary = [](const DecoderConfig& c) { return std::make_shared<RotaryEmbedding>("FlintRotaryEmbedding", c.file, c.head_dim); };
  f.masks = DecoderForm::Masks::by_layer_type;
  f.both_masks = true;
  f.aux_loss = load_balancing();
  return make_decoder(config, o, std::move(f));
}
const Family flint_family{{"flint"}, {{Task::causal_lm, "FlintForCausalLM", flint}, {Task::base, "FlintModel", flint}}};

}  // namespace
}  // namespace memest::hf
