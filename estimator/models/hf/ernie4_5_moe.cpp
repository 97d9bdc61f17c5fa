// models/ernie4_5_moe.
#include "models/hf/moe.h"
#include "models/hf/rotate.h"
#include "ops/indexing.h"

namespace memest::hf {
namespace {

/// Ernie4_5_MoeStatics: a bias of the choice that is not trained.
class Statics final : public Module<Statics> {
 public:
  explicit Statics(I experts) : Module("Ernie4_5_MoeStatics") {
    register_parameter("e_score_correction_bias", host_tensor({1, experts}, DType::float32));
  }
  X forward(const X& hidden_states) { return hidden_states.add(aten("squeeze", {parameter(0)})); }
};

class Ernie45Router final : public Router {
 public:
  Ernie45Router(const DecoderConfig& c, const MoeSizes& sizes) : Router("Ernie4_5_MoeTopKRouter", c), sizes_(sizes) {
    Tensor weight = host_tensor({sizes.experts, sizes.hidden}, DType::float32);
    weight->requires_grad = true;
    register_parameter("weight", std::move(weight));
    moe_statics_ = &child<Statics>("moe_statics", sizes.experts);
  }

 protected:
  Routing forward(X hidden_states) override {
    X router_logits, routing_weights, selected_experts, unused;
    {
      AutocastContext no_autocast(false, runtime().autocast.dtype);
      X input = hidden_states.to_float();
      router_logits = ops::linear(std::move(input), X(parameter(0)).to_float(), {});
      routing_weights = router_logits.softmax(1, DType::float32);
      std::tie(unused, selected_experts) = topk((*moe_statics_)(routing_weights), sizes_.top_k);
      routing_weights = ops::gather(routing_weights, -1, selected_experts, false);
      X least = aten("clamp", {Tensor(routing_weights.sum(-1, true)), 1e-12});
      routing_weights = routing_weights.div(std::move(least));
    }
    routing_weights = routing_weights.to(hidden_states.dtype());
    return {router_logits, routing_weights, selected_experts};
  }

 private:
  MoeSizes sizes_;
  Statics* moe_statics_;
};

/// apply_rotary_pos_emb: in fp32, with half of each table repeated by twos.
Pair apply_rotary(X q, X k, X cos, X sin) {
  const DType type = q.dtype();
  cos = cos.unsqueeze(1);
  sin = sin.unsqueeze(1);
  auto repeated = [](const X& table) {
    return aten("repeat_interleave", {Tensor(table.slice(-1, std::nullopt, table.size(-1) / 2)), I{2}, I{-1}});
  };
  cos = repeated(cos);
  sin = repeated(sin);
  auto rotated = [&](const X& x) {
    X straight = x.to_float().mul(cos);
    return std::move(straight).add(rotate_half_interleaved(x).to_float().mul(sin));
  };
  X q_embed = rotated(q);
  X k_embed = rotated(k);
  X q_cast = q_embed.to(type);
  X k_cast = k_embed.to(type);
  return leave(Pair{q_cast, k_cast}, cos, sin, q_embed, k_embed);
}

class Ernie45Attention final : public DecoderAttention {
 public:
  using DecoderAttention::DecoderAttention;

 protected:
  void rotate(Frame& f, const LayerCall& call) override {
    std::tie(f.query, f.key) = apply_rotary(f.query, f.key, call.position_embeddings.first, call.position_embeddings.second);
  }
};

bool sparse(const Config& f, I layer, I layers) {
  const I end = f.integer_or("moe_layer_end_index", -1);
  return (layer + 1) % f.size_or("moe_layer_interval", 1) == 0 && layer >= f.integer_or("moe_layer_start_index", 1) &&
         layer <= (end == -1 ? layers - 1 : end);
}

constexpr MoeFields kFields{"moe_num_experts", "moe_k", "moe_intermediate_size"};

NetworkPtr ernie4_5_moe(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "Ernie4_5_Moe";
  f.norm_type = "Ernie4_5_MoeRMSNorm";
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "Ernie4_5_MoeDecoderLayer";
    form.norm_type = "Ernie4_5_MoeRMSNorm";
    const bool b = c.file.boolean_or("use_bias", false);
    auto attention = std::make_shared<Ernie45Attention>(c, i, "Ernie4_5_MoeAttention", Biases{b, b, b, b});
    auto mlp = [&](I width) { return make_gated_mlp("Ernie4_5_MoeMLP", c.hidden, width, b, c.act); };
    if (!sparse(c.file, i, c.layers)) return make_layer(c, form, attention, mlp(c.intermediate));
    const MoeSizes sizes(c, kFields);
    auto gate = std::make_shared<Ernie45Router>(c, sizes);
    auto experts = make_experts(c, "Ernie4_5_MoeExperts", sizes);
    const I shared = c.file.integer_or("moe_num_shared_experts", 2);
    UnaryPtr shared_experts = shared > 0 ? mlp(checked_mul(sizes.intermediate, shared)) : UnaryPtr();
    return make_layer(
        c, form, attention,
        make_moe_block(c, {.kind = MoeBlockForm::Kind::ernie, .type = "Ernie4_5_MoeSparseMoeBlock"}, gate, experts, shared_experts));
  };
  f.rotary = [](const DecoderConfig& c) {
    return std::make_shared<RotaryEmbedding>("Ernie4_5_MoeRotaryEmbedding", c.file, c.head_dim, RotaryEmbedding::Form{.cast = false});
  };
  f.head_bias = config.boolean_or("use_bias", false);
  f.aux_loss = load_balancing(kFields);
  return make_decoder(config, o, std::move(f));
}
const Family ernie4_5_moe_family{
    {"ernie4_5_moe"}, {{Task::causal_lm, "Ernie4_5_MoeForCausalLM", ernie4_5_moe}, {Task::base, "Ernie4_5_MoeModel", ernie4_5_moe}}};

}  // namespace
}  // namespace memest::hf
