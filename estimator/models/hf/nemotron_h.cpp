// models/nemotron_h: layers of one mixer each: mamba2's, attention without positions, an MLP or a mixture of experts.
#include "models/hf/linear_attention.h"
#include "models/hf/mamba2_mixer.h"
#include "models/hf/moe.h"

namespace memest::hf {
namespace {

class NemotronHAttention final : public DecoderAttention {
 public:
  NemotronHAttention(const DecoderConfig& c, I layer) : DecoderAttention(c, layer, "NemotronHAttention", {}) {}

 protected:
  void rotate(Frame&, const LayerCall&) override {}
};

/// down_proj(act_fn(up_proj(x))).
class NemotronHMLP final : public Unary {
 public:
  NemotronHMLP(const DecoderConfig& c, I intermediate)
      : Unary("NemotronHMLP"),
        up_proj(child<Linear>("up_proj", c.hidden, intermediate, c.mlp_bias)),
        down_proj(child<Linear>("down_proj", intermediate, c.hidden, c.mlp_bias)),
        act_fn(child<Activation>("act_fn", c.file.text_or("mlp_hidden_act", "relu2"))) {}

 protected:
  X forward(X x) override { return down_proj(act_fn(up_proj(x))); }

 private:
  Linear &up_proj, &down_proj;
  Activation& act_fn;
};

/// NemotronHMoE: experts without gates, in a narrower space where moe_latent_size is given.
class NemotronHMoE final : public Unary {
 public:
  NemotronHMoE(const DecoderConfig& c, const MoeSizes& sizes) : Unary("NemotronHMoE") {
    const bool narrow = c.file.has("moe_latent_size");
    const I width = narrow ? c.file.size("moe_latent_size") : c.hidden;
    experts_ = register_module("experts", std::make_shared<Experts>(ExpertsForm{.type = "NemotronHExperts",
                                                                                .count = sizes.experts,
                                                                                .per_token = sizes.top_k,
                                                                                .hidden = width,
                                                                                .intermediate = sizes.intermediate,
                                                                                .act = c.file.text_or("mlp_hidden_act", "relu2"),
                                                                                .gated = false},
                                                                    c.options));
    gate_ = register_module("gate", make_group_router(c, "NemotronHTopkRouter", sizes, {}));
    shared_experts = &child<NemotronHMLP>("shared_experts", c, c.file.size("moe_shared_expert_intermediate_size"));
    if (!narrow) return;
    fc1_latent_proj = &child<Linear>("fc1_latent_proj", c.hidden, width, c.mlp_bias);
    fc2_latent_proj = &child<Linear>("fc2_latent_proj", width, c.hidden, c.mlp_bias);
  }

 protected:
  X forward(X hidden_states) override {
    X residuals = hidden_states;
    const Dims shape = hidden_states.sizes();
    auto [logits, topk_weights, topk_indices] = (*gate_)(hidden_states);
    hidden_states = hidden_states.view({-1, hidden_states.size(-1)});
    if (fc1_latent_proj) hidden_states = (*fc1_latent_proj)(hidden_states);
    hidden_states = (*experts_)(hidden_states, topk_indices, topk_weights);
    if (fc2_latent_proj) hidden_states = (*fc2_latent_proj)(hidden_states);
    hidden_states = hidden_states.view(shape);
    hidden_states = hidden_states.add((*shared_experts)(residuals));
    return leave(hidden_states, residuals, logits, topk_weights, topk_indices);
  }

 private:
  std::shared_ptr<Experts> experts_;
  RouterPtr gate_;
  NemotronHMLP* shared_experts;
  Linear *fc1_latent_proj = nullptr, *fc2_latent_proj = nullptr;
};

Mamba2Form mixer_form(const Config& f) {
  Mamba2Form form;
  form.type = "NemotronHMamba2Mixer";
  form.heads = f.size("mamba_num_heads");
  form.head_dim = f.size("mamba_head_dim");
  form.state = f.size("ssm_state_size");
  form.groups = f.size_or("mamba_n_groups", f.size("n_groups"));
  form.kernel = f.size_or("mamba_d_conv", f.size("conv_kernel"));
  form.chunk_size = f.size_or("mamba_chunk_size", f.size("chunk_size"));
  form.intermediate = checked_mul(form.heads, form.head_dim);
  form.bias = f.boolean_or("use_bias", false);
  form.conv_bias = f.boolean_or("mamba_conv_bias", f.boolean_or("use_conv_bias", true));
  form.act = f.text_or("mamba_hidden_act", "silu");
  return form;
}

class NemotronHBlock final : public DecoderLayer {
 public:
  NemotronHBlock(const DecoderConfig& c, I layer) : DecoderLayer("NemotronHBlock", c.options) {
    norm = register_module("norm", make_norm(Norm::helium, c.hidden, "NemotronHRMSNorm"));
    const std::string& type = c.layer_types[std::size_t(layer)];
    if (type == "linear_attention")
      mixer_ = register_module("mixer", make_mamba2_mixer(c, layer, mixer_form(c.file)));
    else if (type == "full_attention")
      mixer_ = register_module("mixer", std::make_shared<NemotronHAttention>(c, layer));
    else if (type == "moe")
      mlp_ = register_module("mixer", std::make_shared<NemotronHMoE>(
                                          c, MoeSizes(c, {.experts = "n_routed_experts", .intermediate = "moe_intermediate_size"})));
    else
      mlp_ = register_module("mixer", std::make_shared<NemotronHMLP>(c, c.intermediate));
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states, weights;
    hidden_states = (*norm)(hidden_states.to(norm->own_parameters()[0].second.dtype()));
    if (mixer_)
      std::tie(hidden_states, weights) = (*mixer_)(hidden_states, call);
    else
      hidden_states = (*mlp_)(hidden_states);
    hidden_states = residual.add(hidden_states);
    return hidden_states;
  }

 private:
  UnaryPtr norm, mlp_;
  MixerPtr mixer_;
};

class NemotronHModel final : public DecoderBody {
 public:
  explicit NemotronHModel(std::shared_ptr<const DecoderConfig> config)
      : DecoderBody("NemotronHModel"),
        c_(std::move(config)),
        embeddings(child<Embedding>("embeddings", c_->vocab, c_->hidden)),
        layers_(add_layers("layers", c_->layers, [&](I i) { return std::make_shared<NemotronHBlock>(*c_, i); })),
        norm_f(register_module("norm_f", make_norm(Norm::helium, c_->hidden, "NemotronHRMSNorm"))) {}

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = embeddings(input_ids);
    CachePtr cache = new_cache(*c_, training);
    X hidden_states = inputs_embeds;
    X position_ids = default_position_ids(hidden_states);
    I first = 0;
    while (first + 1 < c_->layers && c_->layer_types[std::size_t(first)] != "full_attention") ++first;
    X causal_mask = create_causal_mask({c_->options, inputs_embeds, cache.get(), position_ids, first});
    for (I i = 0; i < c_->layers; ++i) {
      const bool attends = c_->layer_types[std::size_t(i)] == "full_attention";
      hidden_states = (*layers_[std::size_t(i)])(hidden_states, {attends ? causal_mask : X(), {}, position_ids, cache.get()});
    }
    hidden_states = (*norm_f)(hidden_states);
    return {leave(hidden_states, inputs_embeds, position_ids), cache};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  Embedding& embeddings;
  std::vector<DecoderLayerPtr> layers_;
  UnaryPtr norm_f;
};

/// NemotronHConfig.__post_init__: the layers are those of the list, or of the pattern.
Config with_block_types(Config config) {
  std::vector<std::string> types{"linear_attention", "moe", "full_attention", "mlp"};
  if (config.has("layers_block_type")) {
    types = config.texts("layers_block_type");
  } else if (config.has("layer_types")) {
    types = config.texts("layer_types");
  } else if (config.has("hybrid_override_pattern")) {
    types.clear();
    for (char letter : config.text("hybrid_override_pattern"))
      types.push_back(letter == 'M'   ? "linear_attention"
                      : letter == 'E' ? "moe"
                      : letter == '*' ? "full_attention"
                      : letter == '-' ? "mlp"
                                      : std::string(1, letter));
  }
  ConfigValue::List list;
  for (std::string type : types) {
    if (type == "mamba") type = "linear_attention";
    if (type == "attention") type = "full_attention";
    if (type != "linear_attention" && type != "full_attention" && type != "moe" && type != "mlp")
      throw config.error("layers_block_type",
                         "the types are linear_attention, full_attention, moe and mlp, found '" + type.substr(0, 60) + "'");
    list.push_back(ConfigValue{type});
  }
  config.set("num_hidden_layers", ConfigValue{std::int64_t(list.size())});
  config.set("layer_types", ConfigValue{std::move(list)});
  return config;
}
NetworkPtr nemotron_h(const Config& given, const Options& o) {
  note_torch_recurrence("causal-conv1d and mamba-ssm");
  DecoderForm f;
  f.prefix = "NemotronH";
  f.embedding_name = "embeddings";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<NemotronHModel>(std::move(c));
  };
  f.logits = [](X logits, const DecoderConfig&) -> X { return std::move(logits).to_float(); };
  Config config = with_block_types(given);
  config.set("tie_word_embeddings", ConfigValue{false});  // the class ties nothing
  return make_decoder(config, o, std::move(f));
}
const Family nemotron_h_family{{"nemotron_h"},
                               {{Task::causal_lm, "NemotronHForCausalLM", nemotron_h}, {Task::base, "NemotronHModel", nemotron_h}}};

}  // namespace
}  // namespace memest::hf
