// models/bamba: mamba2's mixer, with attention in some layers, whose weights a layer returns.
#include <algorithm>

#include "models/hf/block.h"
#include "models/hf/linear_attention.h"
#include "models/hf/mamba2_mixer.h"
#include "models/hf/rotate.h"

namespace memest::hf {
namespace {

class BambaAttention final : public DecoderAttention {
 public:
  BambaAttention(const DecoderConfig& c, I layer)
      : DecoderAttention(c, layer, "BambaAttention", {c.attention_bias, c.attention_bias, c.attention_bias, c.attention_bias}) {}

 protected:
  void rotate(Frame& f, const LayerCall& call) override {
    std::tie(f.query, f.key) = apply_rotary_named(f.query, f.key, call.position_embeddings.first, call.position_embeddings.second);
  }
};

class BambaDecoderLayer final : public DecoderBlock {
 public:
  BambaDecoderLayer(const DecoderConfig& c, I layer) : DecoderBlock("BambaDecoderLayer", c.options) {
    feed_forward = register_module("feed_forward", make_gated_mlp("BambaMLP", c.hidden, c.intermediate, c.mlp_bias, c.act));
    input_layernorm = register_module("input_layernorm", make_norm(Norm::llama, c.hidden, "BambaRMSNorm"));
    pre_ff_layernorm = register_module("pre_ff_layernorm", make_norm(Norm::llama, c.hidden, "BambaRMSNorm"));
    if (c.layer_types[std::size_t(layer)] == "full_attention")
      mixer_ = register_module("self_attn", std::make_shared<BambaAttention>(c, layer));
    else
      mixer_ = register_module("mamba", make_hybrid_mamba2_mixer(c, layer, "BambaMixer"));
  }

 protected:
  Pair forward(X hidden_states, const BlockCall& call) override {
    X residual = hidden_states, self_attn_weights;
    hidden_states = (*input_layernorm)(hidden_states);
    std::tie(hidden_states, self_attn_weights) =
        (*mixer_)(hidden_states, {call.mask, call.position_embeddings, call.position_ids, call.cache});
    hidden_states = residual.add(hidden_states);
    residual = hidden_states;
    hidden_states = (*pre_ff_layernorm)(hidden_states);
    hidden_states = (*feed_forward)(hidden_states);
    hidden_states = residual.add(hidden_states);
    return {hidden_states, self_attn_weights};
  }

 private:
  UnaryPtr feed_forward, input_layernorm, pre_ff_layernorm;
  MixerPtr mixer_;
};

class BambaModel final : public DecoderBody {
 public:
  explicit BambaModel(std::shared_ptr<const DecoderConfig> config) : DecoderBody("BambaModel"), c_(std::move(config)) {
    embed_tokens = &child<Embedding>("embed_tokens", c_->vocab, c_->hidden, c_->file.integer_if("pad_token_id"));
    layers_ = std::make_unique<Layers<BambaDecoderLayer>>(*this, "layers", c_->layers,
                                                          [&](I i) { return std::make_shared<BambaDecoderLayer>(*c_, i); });
    final_layernorm = register_module("final_layernorm", make_norm(Norm::llama, c_->hidden, "BambaRMSNorm"));
    rotary_emb =
        register_module("rotary_emb", std::make_shared<RotaryEmbedding>("BambaRotaryEmbedding", c_->file, I(double(c_->head_dim) * 0.5)));
  }
  CachePtr new_generation_cache(const DecoderConfig& c) const override {
    CachePtr cache = dynamic_cache(c);
    generation_cache_ = cache;
    return cache;
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*embed_tokens)(input_ids);
    X hidden_states = inputs_embeds;
    CachePtr cache = new_cache(*c_, training);
    const bool generating = cache && cache == generation_cache_.lock();
    X position_ids = generating ? default_position_ids(inputs_embeds) : arange(hidden_states.size(1)).unsqueeze(0);
    X causal_mask = create_causal_mask({c_->options, inputs_embeds, cache.get(), position_ids});
    const Pair position_embeddings = (*rotary_emb)(hidden_states, position_ids);
    X attn_weights;
    for (I i = 0; i < c_->layers; ++i) {
      const bool attention = c_->layer_types[std::size_t(i)] == "full_attention";
      std::tie(hidden_states, attn_weights) =
          (*layers_)[i](hidden_states, {attention ? causal_mask : X(), {}, position_embeddings, position_ids, cache.get()});
    }
    hidden_states = (*final_layernorm)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  Embedding* embed_tokens;
  std::unique_ptr<Layers<BambaDecoderLayer>> layers_;
  UnaryPtr final_layernorm;
  std::shared_ptr<RotaryEmbedding> rotary_emb;
  mutable std::weak_ptr<Cache> generation_cache_;  ///< generate() gives its positions with it
};

NetworkPtr bamba(const Config& config, const Options& o) {
  note_torch_recurrence("causal-conv1d and mamba-ssm");
  std::vector<std::int64_t> attending;
  if (config.has("attn_layer_indices")) attending = config.integers("attn_layer_indices");
  auto attends = [&](I i) { return std::find(attending.begin(), attending.end(), i) != attending.end(); };
  DecoderForm f;
  f.prefix = "Bamba";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<BambaModel>(std::move(c));
  };
  return make_decoder(with_mamba2_layers(config, attends), o, std::move(f));
}
const Family bamba_family{{"bamba"}, {{Task::causal_lm, "BambaForCausalLM", bamba}, {Task::base, "BambaModel", bamba}}};

}  // namespace
}  // namespace memest::hf
