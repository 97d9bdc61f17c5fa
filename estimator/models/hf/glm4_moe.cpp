// models/glm4_moe, dots1, solar_open, exaone_moe: deepseek's mixture over attention with heads of its own.
#include "models/hf/llama_form.h"
#include "models/hf/moe.h"
#include "models/hf/rotate.h"

namespace memest::hf {
namespace {

UnaryPtr dense(const DecoderConfig& c, const std::string& prefix) {
  return make_gated_mlp(prefix + "MLP", c.hidden, c.intermediate, false, c.act);
}
UnaryPtr grouped_block(const DecoderConfig& c, const std::string& prefix, const char* experts = "n_routed_experts",
                       const char* shared = "n_shared_experts", const char* block = "MoE") {
  const MoeSizes sizes(c, {.experts = experts});
  auto all = make_experts(c, prefix + "Experts", sizes);
  auto gate = make_group_router(c, prefix + "TopkRouter", sizes, {});
  auto mlp = make_gated_mlp(prefix + "MLP", c.hidden, checked_mul(sizes.intermediate, c.file.size(shared)), false, c.act);
  return make_moe_block(c, {.kind = MoeBlockForm::Kind::deepseek, .type = prefix + block}, gate, all, mlp);
}
bool after_dense_layers(const DecoderConfig& c, I layer) { return layer >= c.file.integer_or("first_k_dense_replace", 1); }

std::vector<TaskClass> causal_and_base(const std::string& prefix, NetworkPtr (*make)(const Config& config, const Options& options)) {
  return {{Task::causal_lm, prefix + "ForCausalLM", make}, {Task::base, prefix + "Model", make}};
}

/// Glm4MoeAttention: the first half of each head is rotated.
class Glm4MoeAttention final : public DecoderAttention {
 public:
  Glm4MoeAttention(const DecoderConfig& c, I layer, const std::string& type)
      : DecoderAttention(c, layer, type, {c.attention_bias, c.attention_bias, c.attention_bias, false}) {
    if (!c.file.boolean_or("use_qk_norm", false)) return;
    q_norm_ = register_module("q_norm", make_norm(Norm::llama, head_dim_, "Glm4MoeRMSNorm"));
    k_norm_ = register_module("k_norm", make_norm(Norm::llama, head_dim_, "Glm4MoeRMSNorm"));
  }

 protected:
  void project(Frame& f) override {
    f.query = (*q_proj_)(f.hidden_states).view(f.hidden_shape);
    f.key = (*k_proj_)(f.hidden_states).view(f.hidden_shape);
    f.value = (*v_proj_)(f.hidden_states).view(f.hidden_shape);
    if (q_norm_) {
      f.query = (*q_norm_)(f.query);
      f.key = (*k_norm_)(f.key);
    }
    for (X* x : {&f.query, &f.key, &f.value}) *x = x->transpose(1, 2);
  }
  void rotate(Frame& f, const LayerCall& call) override {
    std::tie(f.query, f.key) = apply_rotary_named(f.query, f.key, call.position_embeddings.first, call.position_embeddings.second);
  }

 private:
  UnaryPtr q_norm_, k_norm_;
};
NetworkPtr glm4_moe(const Config& given, const Options& o) {
  Config config = given;
  if (!config.has("head_dim")) {  // rounded down: 4096 / 96 by the class's own sizes
    ConfigValue width;
    width.value = config.size("hidden_size") / config.size("num_attention_heads");
    config.set("head_dim", std::move(width));
  }
  DecoderForm f = llama_form(
      "Glm4Moe",
      [](const DecoderConfig& c, I i, const std::string& type) -> MixerPtr { return std::make_shared<Glm4MoeAttention>(c, i, type); },
      [](const DecoderConfig& c, I i) { return after_dense_layers(c, i) ? grouped_block(c, "Glm4Moe") : dense(c, "Glm4Moe"); });
  f.rotary = [](const DecoderConfig& c) {
    return std::make_shared<RotaryEmbedding>("Glm4MoeRotaryEmbedding", c.file, rotary_width(c.file, c.head_dim, 0.5));
  };
  return make_decoder(config, o, std::move(f));
}
const Family glm4_moe_family{{"glm4_moe"}, causal_and_base("Glm4Moe", glm4_moe)};

NetworkPtr dots1(const Config& given, const Options& o) {
  Config config = given;
  const bool window = config.has("sliding_window");
  const I first = config.integer_or("max_window_layers", 0);
  default_layer_types(config, [=](I i) { return window && i >= first ? "sliding_attention" : "full_attention"; });
  DecoderForm f = llama_form(
      "Dots1",
      [](const DecoderConfig& c, I i, const std::string& type) {
        const bool b = c.attention_bias;
        return make_attention_with_qk_norm(c, i, type, {b, b, b, b}, QkNorm::before_transpose, Norm::llama);
      },
      [](const DecoderConfig& c, I i) { return after_dense_layers(c, i) ? grouped_block(c, "Dots1") : dense(c, "Dots1"); });
  f.masks = DecoderForm::Masks::by_layer_type;
  f.only_used_masks = true;
  return make_decoder(config, o, std::move(f));
}
const Family dots1_family{{"dots1"}, causal_and_base("Dots1", dots1)};

NetworkPtr solar_open(const Config& config, const Options& o) {
  DecoderForm f = llama_form(
      "SolarOpen",
      [](const DecoderConfig& c, I i, const std::string& type) {
        const bool b = c.attention_bias;
        return make_attention(c, i, type, {b, b, b, false});
      },
      [](const DecoderConfig& c, I) { return grouped_block(c, "SolarOpen"); });
  f.rotary = [](const DecoderConfig& c) {
    return std::make_shared<RotaryEmbedding>("SolarOpenRotaryEmbedding", c.file, rotary_width(c.file, c.head_dim));
  };
  return make_decoder(config, o, std::move(f));
}
const Family solar_open_family{{"solar_open"}, causal_and_base("SolarOpen", solar_open)};

}  // namespace
}  // namespace memest::hf
