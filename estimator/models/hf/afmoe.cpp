// models/afmoe and laguna: a gate on the attention's output, routers with a sigmoid and a bias of the choice.
#include <algorithm>

#include "models/hf/late_mlp.h"
#include "models/hf/moe.h"
#include "models/hf/rotate.h"
#include "models/hf/unpacked_body.h"
#include "ops/indexing.h"

namespace memest::hf {
namespace {

UnaryPtr mlp_of(const DecoderConfig& c, const std::string& prefix, I width) {
  return make_gated_mlp(prefix + "MLP", c.hidden, width, false, c.act);
}

// ---- afmoe
class AfmoeAttention final : public Mixer {
 public:
  AfmoeAttention(const DecoderConfig& c, I layer)
      : Mixer("AfmoeAttention"),
        options_(c.options),
        layer_(layer),
        head_dim_(c.head_dim),
        groups_(c.heads / c.kv_heads),
        local_(c.sliding(layer)),
        dropout_(c.attention_dropout),
        q_proj(child<Linear>("q_proj", c.hidden, c.heads * c.head_dim, c.attention_bias)),
        k_proj(child<Linear>("k_proj", c.hidden, c.kv_heads * c.head_dim, c.attention_bias)),
        v_proj(child<Linear>("v_proj", c.hidden, c.kv_heads * c.head_dim, c.attention_bias)),
        o_proj(child<Linear>("o_proj", c.heads * c.head_dim, c.hidden, c.attention_bias)),
        q_norm_(register_module("q_norm", make_norm(Norm::olmo2, c.head_dim, "AfmoeRMSNorm"))),
        k_norm_(register_module("k_norm", make_norm(Norm::olmo2, c.head_dim, "AfmoeRMSNorm"))),
        gate_proj(child<Linear>("gate_proj", c.hidden, c.heads * c.head_dim, false)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1), hidden_shape = input_shape + Dims{-1, head_dim_};
    X query_states = q_proj(hidden_states).view(hidden_shape);
    X key_states = k_proj(hidden_states).view(hidden_shape);
    X value_states = v_proj(hidden_states).view(hidden_shape);
    X gate_states = gate_proj(hidden_states);
    query_states = (*q_norm_)(query_states).transpose(1, 2);
    key_states = (*k_norm_)(key_states).transpose(1, 2);
    value_states = value_states.transpose(1, 2);
    if (local_)
      std::tie(query_states, key_states) =
          apply_rotary_pos_emb(query_states, key_states, call.position_embeddings.first, call.position_embeddings.second);
    if (call.cache) std::tie(key_states, value_states) = call.cache->update(key_states, value_states, layer_);
    auto [output, attn_weights] =
        attention_interface(options_, query_states, key_states, value_states,
                            {.mask = call.mask, .groups = groups_, .dropout = training ? dropout_ : 0.0, .training = training});
    output = output.view(input_shape + Dims{-1}).contiguous();
    output = output.mul(gate_states.sigmoid());
    X attn_output = o_proj(output);
    return {attn_output, attn_weights};
  }

 private:
  const Options options_;
  I layer_, head_dim_, groups_;
  bool local_;
  double dropout_;
  Linear &q_proj, &k_proj, &v_proj, &o_proj;
  UnaryPtr q_norm_, k_norm_;
  Linear& gate_proj;
};

class AfmoeRouter final : public Module<AfmoeRouter> {
 public:
  AfmoeRouter(const DecoderConfig& c, const MoeSizes& sizes)
      : Module("AfmoeTokenChoiceRouter"),
        gate(child<Linear>("gate", sizes.hidden, sizes.experts, false)),
        top_k_(sizes.top_k),
        record_(c.router_logits) {}
  Routing forward(X hidden_states, X expert_bias) {
    hidden_states = hidden_states.view({-1, hidden_states.size(-1)});
    X router_logits = gate(hidden_states).to_float();
    X scores = router_logits.sigmoid();
    auto [unused, selected_experts] = topk(scores.add(expert_bias), top_k_);
    X top_scores = ops::gather(scores, 1, selected_experts, false);
    X denominator = top_scores.sum(-1, true).add(1e-20);
    top_scores = top_scores.div(denominator);
    top_scores = top_scores.mul(1.0);
    if (record_ && !runtime().recomputing) record_->push_back(router_logits);
    return {router_logits, top_scores, selected_experts};
  }

 private:
  Linear& gate;
  I top_k_;
  std::shared_ptr<std::vector<X>> record_;
};

class AfmoeBlock final : public Unary {
 public:
  AfmoeBlock(const DecoderConfig& c, const MoeSizes& sizes)
      : Unary("AfmoeSparseMoeBlock"),
        router(child<AfmoeRouter>("router", c, sizes)),
        shared_experts_(
            register_module("shared_experts", mlp_of(c, "Afmoe", checked_mul(sizes.intermediate, c.file.size("num_shared_experts"))))),
        experts_(register_module("experts", make_experts(c, "AfmoeExperts", sizes))) {
    register_parameter("expert_bias", host_tensor({sizes.experts}, DType::float32));
  }

 protected:
  X forward(X hidden_states) override {
    const Dims shape = hidden_states.sizes();
    X hidden_states_flat = hidden_states.view({-1, hidden_states.size(-1)});
    auto [logits, top_scores, selected_experts] = router(hidden_states, X(parameter(0)));
    X shared_output = (*shared_experts_)(hidden_states_flat).view(shape);
    X routed_output = (*experts_)(hidden_states_flat, selected_experts, top_scores).view(shape);
    return shared_output.add(routed_output);
  }

 private:
  AfmoeRouter& router;
  UnaryPtr shared_experts_;
  std::shared_ptr<Experts> experts_;
};

NetworkPtr afmoe(const Config& given, const Options& o) {
  Config config = given;
  const I pattern = config.size_or("global_attn_every_n_layers", 4);
  default_layer_types(config, [pattern](I i) { return (i + 1) % pattern != 0 ? "sliding_attention" : "full_attention"; });
  DecoderForm f;
  f.prefix = "Afmoe";
  f.norm = Norm::olmo2;
  f.norm_type = "AfmoeRMSNorm";
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "AfmoeDecoderLayer";
    form.order = LayerForm::Order::sandwich;
    form.norm = Norm::olmo2;
    form.norm_type = "AfmoeRMSNorm";
    form.norms = {"input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm"};
    auto attention = std::make_shared<AfmoeAttention>(c, i);
    if (i < c.file.integer_or("num_dense_layers", 1))
      return make_layer_with_late_mlp(c, form, attention, mlp_of(c, "Afmoe", c.intermediate));
    return make_layer_with_late_mlp(c, form, attention, std::make_shared<AfmoeBlock>(c, MoeSizes(c, {})));
  };
  f.rotary = [](const DecoderConfig& c) { return std::make_shared<RotaryEmbedding>("AfmoeRotaryEmbedding", c.file, c.head_dim); };
  f.body = make_unpacked_body;
  if (config.boolean_or("mup_enabled", false)) f.first_hidden = [](X x, const DecoderConfig&, bool) { return x.mul(1.0); };
  return make_decoder(config, o, std::move(f));
}
const Family afmoe_family{{"afmoe"}, {{Task::causal_lm, "AfmoeForCausalLM", afmoe}, {Task::base, "AfmoeModel", afmoe}}};

// ---- laguna
class LagunaAttention final : public Mixer {
 public:
  LagunaAttention(const DecoderConfig& c, I layer, I heads)
      : Mixer("LagunaAttention"),
        options_(c.options),
        layer_(layer),
        head_dim_(c.head_dim),
        groups_(heads / c.kv_heads),
        dropout_(c.attention_dropout),
        gate_per_head_(per_head(c.file)),
        q_proj(child<Linear>("q_proj", c.hidden, heads * c.head_dim, c.attention_bias)),
        k_proj(child<Linear>("k_proj", c.hidden, c.kv_heads * c.head_dim, c.attention_bias)),
        v_proj(child<Linear>("v_proj", c.hidden, c.kv_heads * c.head_dim, c.attention_bias)),
        o_proj(child<Linear>("o_proj", heads * c.head_dim, c.hidden, c.attention_bias)),
        q_norm_(register_module("q_norm", make_norm(Norm::llama, c.head_dim, "LagunaRMSNorm"))),
        k_norm_(register_module("k_norm", make_norm(Norm::llama, c.head_dim, "LagunaRMSNorm"))),
        g_proj(child<Linear>("g_proj", c.hidden, gate_per_head_ ? heads : heads * c.head_dim, false)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1), hidden_shape = input_shape + Dims{-1, head_dim_};
    X query_states = q_proj(hidden_states).view(hidden_shape);
    X key_states = k_proj(hidden_states).view(hidden_shape);
    X value_states = v_proj(hidden_states).view(hidden_shape);
    query_states = (*q_norm_)(query_states).transpose(1, 2);
    key_states = (*k_norm_)(key_states).transpose(1, 2);
    value_states = value_states.transpose(1, 2);
    std::tie(query_states, key_states) =
        apply_rotary_named(query_states, key_states, call.position_embeddings.first, call.position_embeddings.second);
    if (call.cache) std::tie(key_states, value_states) = call.cache->update(key_states, value_states, layer_);
    auto [attn_output, attn_weights] =
        attention_interface(options_, query_states, key_states, value_states,
                            {.mask = call.mask, .groups = groups_, .dropout = training ? dropout_ : 0.0, .training = training});
    const Dims flat = input_shape + Dims{-1};
    attn_output = attn_output.reshape(flat).contiguous();
    X gate = aten("softplus", {Tensor(g_proj(hidden_states).to_float())}).to(attn_output.dtype());
    if (gate_per_head_)
      attn_output = attn_output.view(hidden_shape).mul(gate.unsqueeze(-1)).view(flat);
    else
      attn_output = attn_output.mul(gate);
    attn_output = o_proj(attn_output);
    return {attn_output, attn_weights};
  }

 private:
  static bool per_head(const Config& f) {
    auto* gating = f.find("gating");
    if (!gating) return true;
    if (auto* text = std::get_if<std::string>(&gating->value)) return *text == "per-head";
    return f.boolean_or("gating", true);
  }
  const Options options_;
  I layer_, head_dim_, groups_;
  double dropout_;
  bool gate_per_head_;
  Linear &q_proj, &k_proj, &v_proj, &o_proj;
  UnaryPtr q_norm_, k_norm_;
  Linear& g_proj;
};

class LagunaRouter final : public Router {
 public:
  LagunaRouter(const DecoderConfig& c, const MoeSizes& sizes)
      : Router("LagunaTopKRouter", c), sizes_(sizes), softcap_(c.file.number_or("moe_router_logit_softcapping", 0.0) > 0) {
    new_parameter("weight", {sizes.experts, sizes.hidden});
    register_parameter("e_score_correction_bias", host_tensor({sizes.experts}, runtime().default_dtype));
  }

 protected:
  Routing forward(X hidden_states) override {
    hidden_states = hidden_states.reshape({-1, sizes_.hidden});
    X router_logits = X(ops::linear(hidden_states, parameter(0), {})).to_float();
    if (softcap_) router_logits = router_logits.div(1.0).tanh().mul(1.0);
    X routing_scores = router_logits.sigmoid();
    X scores_for_selection = routing_scores.add(X(parameter(1)).to(routing_scores.dtype()));
    auto [unused, selected_experts] = topk(scores_for_selection, sizes_.top_k);
    X routing_weights = ops::gather(routing_scores, -1, selected_experts, false);
    routing_weights = routing_weights.div(routing_weights.sum(-1, true));
    routing_weights = routing_weights.to(hidden_states.dtype());
    return {router_logits, routing_weights, selected_experts};
  }

 private:
  MoeSizes sizes_;
  bool softcap_;
};

class LagunaBlock final : public Unary {
 public:
  LagunaBlock(const DecoderConfig& c, const MoeSizes& sizes)
      : Unary("LagunaSparseMoeBlock"),
        experts_(register_module("experts", make_experts(c, "LagunaExperts", sizes))),
        gate_(register_module("gate", std::make_shared<LagunaRouter>(c, sizes))),
        shared_experts_(register_module("shared_experts", mlp_of(c, "Laguna", c.file.size("shared_expert_intermediate_size")))) {}

 protected:
  X forward(X hidden_states) override {
    const Dims shape = hidden_states.sizes();
    hidden_states = hidden_states.view({-1, hidden_states.size(-1)});
    X shared_output = (*shared_experts_)(hidden_states);
    auto [logits, routing_weights, selected_experts] = (*gate_)(hidden_states);
    hidden_states = (*experts_)(hidden_states, selected_experts, routing_weights);
    hidden_states = hidden_states.mul(1.0);
    hidden_states = hidden_states.add(shared_output);
    hidden_states = hidden_states.reshape(shape);
    return hidden_states;
  }

 private:
  std::shared_ptr<Experts> experts_;
  std::shared_ptr<LagunaRouter> gate_;
  UnaryPtr shared_experts_;
};

/// num_attention_heads_per_layer.
I heads_of(const DecoderConfig& c, I layer) {
  const char* key = "num_attention_heads_per_layer";
  if (!c.file.has(key)) return c.heads;
  const auto list = c.file.integers(key);
  if (I(list.size()) != c.layers)
    throw c.file.error(key, "expected " + std::to_string(c.layers) + " entries, one for each layer, found " + std::to_string(list.size()));
  const I heads = list[std::size_t(layer)];
  if (heads < 1 || heads % c.kv_heads != 0)
    throw c.file.error(key,
                       std::to_string(heads) + " attention heads are not a multiple of " + std::to_string(c.kv_heads) + " key-value heads");
  return heads;
}

NetworkPtr laguna(const Config& given, const Options& o) {
  Config config = given;
  if (config.boolean_or("moe_apply_router_weight_on_input", false))
    throw config.error("moe_apply_router_weight_on_input", "expected false: transformers does not support it");
  default_layer_types(config, [](I) { return "full_attention"; });
  DecoderForm f;
  f.prefix = "Laguna";
  f.norm_type = "LagunaRMSNorm";
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "LagunaDecoderLayer";
    form.norm_type = "LagunaRMSNorm";
    auto attention = std::make_shared<LagunaAttention>(c, i, heads_of(c, i));
    if (!sparse_by_type(c, i, [](I layer) { return layer > 0; }))
      return make_layer(c, form, attention, mlp_of(c, "Laguna", c.intermediate));
    return make_layer(c, form, attention, std::make_shared<LagunaBlock>(c, MoeSizes(c, {})));
  };
  f.masks = DecoderForm::Masks::by_layer_type;
  f.only_used_masks = true;
  f.rotary_by_layer_type = true;
  f.rotary = [](const DecoderConfig& c) {
    if (c.file.has("rope_parameters")) return rotary_of_types(c, "LagunaRotaryEmbedding");
    RotaryEmbedding::Form form;  // of the class: half of a head in full layers
    if (std::find(c.layer_types.begin(), c.layer_types.end(), "full_attention") != c.layer_types.end())
      form.layer_types.emplace_back("full_attention", c.head_dim / 2);
    if (std::find(c.layer_types.begin(), c.layer_types.end(), "sliding_attention") != c.layer_types.end())
      form.layer_types.emplace_back("sliding_attention", c.head_dim);
    return std::make_shared<RotaryEmbedding>("LagunaRotaryEmbedding", c.file, c.head_dim, std::move(form));
  };
  f.aux_loss = load_balancing();
  return make_decoder(config, o, std::move(f));
}
const Family laguna_family{{"laguna"}, {{Task::causal_lm, "LagunaForCausalLM", laguna}, {Task::base, "LagunaModel", laguna}}};

}  // namespace
}  // namespace memest::hf
