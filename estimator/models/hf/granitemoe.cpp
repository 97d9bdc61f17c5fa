// models/granitemoe, granitemoeshared and minimax_m2.
#include "models/hf/granitemoe.h"

#include "models/hf/late_mlp.h"
#include "models/hf/moe.h"
#include "models/hf/rotate.h"
#include "ops/indexing.h"

namespace memest::hf {
namespace {

constexpr MoeFields kFields{"num_local_experts", "num_experts_per_tok", "intermediate_size"};

/// GraniteMoeTopKRouter: the best logits, then their softmax.
class GraniteRouter final : public Router {
 public:
  GraniteRouter(const DecoderConfig& c, const std::string& prefix, const MoeSizes& sizes)
      : Router(prefix + "TopKRouter", c), top_k_(sizes.top_k) {
    new_parameter("weight", {sizes.experts, sizes.hidden});
  }

 protected:
  Routing forward(X hidden_states) override {
    X router_logits = X(ops::linear(hidden_states, parameter(0), {})).to_float();
    auto [top_k_logits, top_k_index] = topk(router_logits, top_k_);
    X top_k_weights = top_k_logits.softmax(-1).to(hidden_states.dtype());
    return {router_logits, top_k_weights, top_k_index};
  }

 private:
  I top_k_;
};
class GraniteBlock final : public Unary {
 public:
  GraniteBlock(const DecoderConfig& c, const std::string& prefix, const MoeSizes& sizes)
      : Unary(prefix + "MoE"),
        router_(register_module("router", std::make_shared<GraniteRouter>(c, prefix, sizes))),
        experts_(register_module("experts", make_experts(c, prefix + "Experts", sizes))) {}

 protected:
  X forward(X layer_input) override {
    const Dims shape = layer_input.sizes();
    X hidden_states = layer_input.reshape({-1, layer_input.size(-1)});
    auto [logits, top_k_weights, top_k_index] = (*router_)(hidden_states);
    X layer_output = (*experts_)(hidden_states, top_k_index, top_k_weights);
    return layer_output.view(shape);
  }

 private:
  std::shared_ptr<GraniteRouter> router_;
  std::shared_ptr<Experts> experts_;
};

class SharedMLP final : public Unary {
 public:
  SharedMLP(const DecoderConfig& c, const std::string& prefix, I intermediate)
      : Unary(prefix + "MLP"),
        activation(child<Activation>("activation", c.act)),
        input_linear(child<Linear>("input_linear", c.hidden, checked_mul(intermediate, 2), false)),
        output_linear(child<Linear>("output_linear", intermediate, c.hidden, false)) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = input_linear(hidden_states);
    const std::vector<X> chunked_hidden_states = hidden_states.chunk(2, -1);
    hidden_states = activation(chunked_hidden_states[0]).mul(chunked_hidden_states[1]);
    hidden_states = output_linear(hidden_states);
    return hidden_states;
  }

 private:
  Activation& activation;
  Linear &input_linear, &output_linear;
};
}  // namespace

UnaryPtr make_granite_shared_mlp(const DecoderConfig& c, const std::string& prefix) {
  return std::make_shared<SharedMLP>(c, prefix, c.file.size("shared_intermediate_size"));
}
UnaryPtr make_granite_block(const DecoderConfig& c, const std::string& prefix) {
  return std::make_shared<GraniteBlock>(c, prefix, MoeSizes(c, kFields));
}

namespace {

DecoderForm granite_moe_form(const std::string& prefix, std::function<DecoderLayerPtr(const DecoderConfig& c, I layer)> layer) {
  DecoderForm f;
  f.prefix = prefix;
  f.norm_type = prefix + "RMSNorm";
  f.layer = std::move(layer);
  f.rotary = [prefix](const DecoderConfig& c) { return std::make_shared<RotaryEmbedding>(prefix + "RotaryEmbedding", c.file, c.head_dim); };
  f.after_embedding = [](X x, const DecoderConfig&) { return x.mul(1.0); };
  f.logits = [](X logits, const DecoderConfig&) { return logits.div(1.0); };
  f.aux_loss = load_balancing(kFields);
  return f;
}
DecoderLayerPtr granite_moe_layer(const DecoderConfig& c, I i, const std::string& prefix) {
  LayerForm form;
  form.type = prefix + "DecoderLayer";
  form.norm_type = prefix + "RMSNorm";
  form.multiplier = true;
  form.mlp = "block_sparse_moe";
  const bool b = c.attention_bias;
  return make_layer_with_late_mlp(c, form, make_attention(c, i, prefix + "Attention", {b, b, b, b}), make_granite_block(c, prefix));
}
NetworkPtr granitemoe(const Config& config, const Options& o) {
  return make_decoder(config, o,
                      granite_moe_form("GraniteMoe", [](const DecoderConfig& c, I i) { return granite_moe_layer(c, i, "GraniteMoe"); }));
}

/// GraniteMoeSharedDecoderLayer where there is a shared MLP.
class SharedLayer final : public DecoderLayer {
 public:
  SharedLayer(const DecoderConfig& c, I i, const std::string& prefix) : DecoderLayer(prefix + "DecoderLayer", c.options) {
    const bool b = c.attention_bias;
    self_attn = register_module("self_attn", make_attention(c, i, prefix + "Attention", {b, b, b, b}));
    input_layernorm = register_module("input_layernorm", make_norm(Norm::llama, c.hidden, prefix + "RMSNorm"));
    post_attention_layernorm = register_module("post_attention_layernorm", make_norm(Norm::llama, c.hidden, prefix + "RMSNorm"));
    block_sparse_moe = register_module("block_sparse_moe", make_granite_block(c, prefix));
    shared_mlp = register_module("shared_mlp", make_granite_shared_mlp(c, prefix));
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states, weights;
    hidden_states = (*input_layernorm)(hidden_states);
    std::tie(hidden_states, weights) = (*self_attn)(hidden_states, call);
    hidden_states = residual.add(hidden_states.mul(1.0));
    residual = hidden_states;
    hidden_states = (*post_attention_layernorm)(hidden_states);
    X moe_hidden_states = (*block_sparse_moe)(hidden_states);
    hidden_states = moe_hidden_states.add((*shared_mlp)(hidden_states));
    hidden_states = residual.add(hidden_states.mul(1.0));
    return hidden_states;
  }

 private:
  MixerPtr self_attn;
  UnaryPtr input_layernorm, post_attention_layernorm, block_sparse_moe, shared_mlp;
};
NetworkPtr granitemoeshared(const Config& config, const Options& o) {
  return make_decoder(config, o, granite_moe_form("GraniteMoeShared", [](const DecoderConfig& c, I i) -> DecoderLayerPtr {
                        if (c.file.integer_or("shared_intermediate_size", 0) == 0) return granite_moe_layer(c, i, "GraniteMoeShared");
                        return std::make_shared<SharedLayer>(c, i, "GraniteMoeShared");
                      }));
}
const Family granitemoeshared_family{
    {"granitemoeshared"},
    {{Task::causal_lm, "GraniteMoeSharedForCausalLM", granitemoeshared}, {Task::base, "GraniteMoeSharedModel", granitemoeshared}}};
const Family granitemoe_family{{"granitemoe"},
                               {{Task::causal_lm, "GraniteMoeForCausalLM", granitemoe}, {Task::base, "GraniteMoeModel", granitemoe}}};

// ---- minimax_m2
class MiniMaxRouter final : public Module<MiniMaxRouter> {
 public:
  MiniMaxRouter(const DecoderConfig& c, const MoeSizes& sizes) : Module("MiniMaxM2TopKRouter"), sizes_(sizes), record_(c.router_logits) {
    new_parameter("weight", {sizes.experts, sizes.hidden});
  }
  Routing forward(X hidden_states, const X& e_score_correction_bias) {
    hidden_states = hidden_states.reshape({-1, sizes_.hidden});
    X router_logits = ops::linear(hidden_states.to(parameter(0).dtype()), parameter(0), {});
    X routing_weights = router_logits.to_float().sigmoid();
    X scores_for_choice = routing_weights.add(e_score_correction_bias);
    auto [unused, top_k_index] = topk(scores_for_choice, sizes_.top_k, false);
    X top_k_weights = ops::gather(routing_weights, 1, top_k_index, false);
    top_k_weights = ops::div_(top_k_weights, top_k_weights.sum(-1, true));
    if (record_ && !runtime().recomputing) record_->push_back(router_logits);
    return {router_logits, top_k_weights, top_k_index};
  }

 private:
  MoeSizes sizes_;
  std::shared_ptr<std::vector<X>> record_;
};
class MiniMaxBlock final : public Unary {
 public:
  MiniMaxBlock(const DecoderConfig& c, const MoeSizes& sizes)
      : Unary("MiniMaxM2SparseMoeBlock"),
        jitter_(c.file.number_or("router_jitter_noise", 0.0) > 0),
        gate(child<MiniMaxRouter>("gate", c, sizes)),
        experts_(register_module("experts", make_experts(c, "MiniMaxM2Experts", sizes))) {
    new_buffer("e_score_correction_bias", {sizes.experts}, runtime().default_dtype);
  }

 protected:
  X forward(X hidden_states) override {
    const Dims shape = hidden_states.sizes();
    if (training && jitter_) {
      X noise = aten("uniform_", {Tensor(aten("empty_like", {Tensor(hidden_states)})), 0.9, 1.1});
      hidden_states = aten("mul_", {Tensor(hidden_states), Tensor(std::move(noise))});
    }
    hidden_states = hidden_states.view({-1, hidden_states.size(-1)});
    auto [logits, top_k_weights, top_k_index] = gate(hidden_states, X(buffer(0)));
    hidden_states = (*experts_)(hidden_states, top_k_index, top_k_weights);
    hidden_states = hidden_states.reshape(shape);
    return hidden_states;
  }

 private:
  bool jitter_;
  MiniMaxRouter& gate;
  std::shared_ptr<Experts> experts_;
};
/// Norms over the whole projections; the first part of each head is rotated.
class MiniMaxAttention final : public DecoderAttention {
 public:
  MiniMaxAttention(const DecoderConfig& c, I layer)
      : DecoderAttention(c, layer, "MiniMaxM2Attention", {}),
        q_norm_(register_module("q_norm", make_norm(Norm::llama, heads_ * head_dim_, "MiniMaxM2RMSNorm"))),
        k_norm_(register_module("k_norm", make_norm(Norm::llama, kv_heads_ * head_dim_, "MiniMaxM2RMSNorm"))) {}

 protected:
  void project(Frame& f) override {
    f.query = (*q_norm_)((*q_proj_)(f.hidden_states));
    f.key = (*k_norm_)((*k_proj_)(f.hidden_states));
    f.value = (*v_proj_)(f.hidden_states);
    for (X* x : {&f.query, &f.key, &f.value}) *x = x->view(f.hidden_shape).transpose(1, 2);
  }
  void rotate(Frame& f, const LayerCall& call) override {
    std::tie(f.query, f.key) = apply_rotary_named(f.query, f.key, call.position_embeddings.first, call.position_embeddings.second);
  }

 private:
  UnaryPtr q_norm_, k_norm_;
};
NetworkPtr minimax_m2(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "MiniMaxM2";
  f.norm_type = "MiniMaxM2RMSNorm";
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "MiniMaxM2DecoderLayer";
    form.norm_type = "MiniMaxM2RMSNorm";
    return make_layer(c, form, std::make_shared<MiniMaxAttention>(c, i), std::make_shared<MiniMaxBlock>(c, MoeSizes(c, kFields)));
  };
  f.rotary = [](const DecoderConfig& c) {
    double factor = 1.0;  // convert_rope_params_to_dict: rotary_dim of the released checkpoints
    if (c.file.has("rotary_dim")) factor = double(c.file.size("rotary_dim")) / double(c.head_dim);
    return std::make_shared<RotaryEmbedding>("MiniMaxM2RotaryEmbedding", c.file, rotary_width(c.file, c.head_dim, factor));
  };
  f.aux_loss = load_balancing(kFields);
  return make_decoder(config, o, std::move(f));
}
const Family minimax_m2_family{{"minimax_m2"},
                               {{Task::causal_lm, "MiniMaxM2ForCausalLM", minimax_m2}, {Task::base, "MiniMaxM2Model", minimax_m2}}};

}  // namespace
}  // namespace memest::hf
