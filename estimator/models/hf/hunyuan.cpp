// models/hunyuan_v1_dense and hunyuan_v1_moe: llama with norms on queries and keys after the rotation, and a mixture with a shared MLP.
#include "models/hf/llama_form.h"
#include "models/hf/moe.h"

namespace memest::hf {
namespace {

class HunYuanAttention final : public DecoderAttention {
 public:
  HunYuanAttention(const DecoderConfig& c, I layer, const std::string& type, const std::string& norm_type)
      : DecoderAttention(c, layer, type, {c.attention_bias, c.attention_bias, c.attention_bias, c.attention_bias}),
        query_layernorm_(register_module("query_layernorm", make_norm(Norm::llama, head_dim_, norm_type))),
        key_layernorm_(register_module("key_layernorm", make_norm(Norm::llama, head_dim_, norm_type))) {}

 protected:
  void rotate(Frame& f, const LayerCall& call) override {
    DecoderAttention::rotate(f, call);
    f.query = (*query_layernorm_)(f.query);
    f.key = (*key_layernorm_)(f.key);
  }

 private:
  UnaryPtr query_layernorm_, key_layernorm_;
};

/// The frequencies of rope_type "dynamic" with an `alpha` do not change with the length.
Config fixed_frequencies(const Config& given) {
  Config config = given;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto section = config.has(key) ? config.section_if(key) : std::nullopt;
    if (section && section->has("alpha") && rope_type(given) == "dynamic") {
      config.set("rope_scaling", {});
      config.set("rope_parameters", {});
      break;
    }
  }
  return config;
}

DecoderForm hunyuan_form(const std::string& prefix, std::function<UnaryPtr(const DecoderConfig& c, I layer)> mlp) {
  DecoderForm f = llama_form(
      prefix,
      [prefix](const DecoderConfig& c, I i, const std::string& type) -> MixerPtr {
        return std::make_shared<HunYuanAttention>(c, i, type, prefix + "RMSNorm");
      },
      std::move(mlp));
  f.rotary = [prefix](const DecoderConfig& c) {
    return std::make_shared<RotaryEmbedding>(prefix + "RotaryEmbedding", fixed_frequencies(c.file), c.head_dim);
  };
  return f;
}

NetworkPtr hunyuan_dense(const Config& config, const Options& o) {
  return make_decoder(config, o, hunyuan_form("HunYuanDenseV1", [](const DecoderConfig& c, I) {
                        return make_gated_mlp("HunYuanDenseV1MLP", c.hidden, c.intermediate, false, c.act);
                      }));
}
const Family hunyuan_dense_family{{"hunyuan_v1_dense"}, decoder_classes("HunYuanDenseV1", hunyuan_dense)};

/// A number, or a list with one for each layer.
I of_layer(const DecoderConfig& c, const char* key, I layer) {
  if (!c.file.find(key) || !c.file.find(key)->list()) return c.file.size_or(key, 1);
  const auto list = c.file.integers(key);
  if (layer >= I(list.size()) || list[std::size_t(layer)] < 1)
    throw c.file.error(key, "expected a size for each of the " + std::to_string(c.layers) + " layers");
  return list[std::size_t(layer)];
}

/// HunYuanMoEV1Gate: `wg` stays in fp32.
class HunYuanGate final : public Router {
 public:
  HunYuanGate(const DecoderConfig& c, I experts, I top_k) : Router("HunYuanMoEV1Gate", c), top_k_(top_k) {
    if (top_k > experts)
      throw c.file.error("moe_topk", "each token takes " + std::to_string(top_k) + " experts, but there are " + std::to_string(experts));
    const DType kept = std::exchange(runtime().default_dtype, DType::float32);
    wg = &child<Linear>("wg", c.hidden, experts, false);
    runtime().default_dtype = kept;
  }

 protected:
  Routing forward(X hidden_states) override {
    hidden_states = hidden_states.reshape({-1, hidden_states.size(-1)});
    if (wg->weight().dtype() == DType::float32) hidden_states = hidden_states.to_float();
    X router_logits = (*wg)(hidden_states);
    X routing_weights = router_logits.softmax(1, DType::float32);
    X selected_experts;
    std::tie(routing_weights, selected_experts) = topk(routing_weights, top_k_);
    routing_weights = ops::div_(routing_weights, routing_weights.sum(-1, true));
    return {router_logits, routing_weights.to(router_logits.dtype()), selected_experts};
  }

 private:
  I top_k_;
  Linear* wg;
};

class HunYuanMoe final : public Unary {
 public:
  HunYuanMoe(const DecoderConfig& c, I layer)
      : Unary("HunYuanMoEV1Moe"),
        gate_(register_module("gate", std::make_shared<HunYuanGate>(c, of_layer(c, "num_experts", layer), of_layer(c, "moe_topk", layer)))),
        experts_(register_module("experts", std::make_shared<Experts>(ExpertsForm{.type = "HunYuanMoEV1Experts",
                                                                                  .count = of_layer(c, "num_experts", layer),
                                                                                  .per_token = of_layer(c, "moe_topk", layer),
                                                                                  .hidden = c.hidden,
                                                                                  .intermediate = c.intermediate,
                                                                                  .act = c.act},
                                                                      c.options))),
        shared_mlp_(register_module("shared_mlp", make_gated_mlp("HunYuanMoEV1MLP", c.hidden, c.intermediate, false, c.act))) {}

 protected:
  X forward(X hidden_states) override {
    const Dims shape = hidden_states.sizes();
    X hidden_states_mlp = (*shared_mlp_)(hidden_states);
    hidden_states = hidden_states.view({-1, hidden_states.size(-1)});
    auto [logits, routing_weights, selected_experts] = (*gate_)(hidden_states);
    X final_hidden_states = (*experts_)(hidden_states, selected_experts, routing_weights).reshape(shape);
    X result = final_hidden_states.add(hidden_states_mlp);
    return leave(result, hidden_states_mlp, logits, routing_weights, selected_experts, final_hidden_states);
  }

 private:
  RouterPtr gate_;
  std::shared_ptr<Experts> experts_;
  UnaryPtr shared_mlp_;
};

NetworkPtr hunyuan_moe(const Config& config, const Options& o) {
  return make_decoder(
      config, o, hunyuan_form("HunYuanMoEV1", [](const DecoderConfig& c, I i) -> UnaryPtr { return std::make_shared<HunYuanMoe>(c, i); }));
}
const Family hunyuan_moe_family{{"hunyuan_v1_moe"}, decoder_classes("HunYuanMoEV1", hunyuan_moe)};

}  // namespace
}  // namespace memest::hf
