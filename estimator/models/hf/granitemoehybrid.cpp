// models/granitemoehybrid: mamba2's mixer, with attention in some layers; a dense MLP beside the experts of granitemoe, or alone.
#include "models/hf/granitemoe.h"
#include "models/hf/linear_attention.h"
#include "models/hf/mamba2_mixer.h"
#include "models/hf/moe.h"

namespace memest::hf {
namespace {

constexpr const char* kPrefix = "GraniteMoeHybrid";

class GraniteMoeHybridAttention final : public DecoderAttention {
 public:
  GraniteMoeHybridAttention(const DecoderConfig& c, I layer)
      : DecoderAttention(c, layer, "GraniteMoeHybridAttention", {c.attention_bias, c.attention_bias, c.attention_bias, c.attention_bias}) {}

 protected:
  void rotate(Frame& f, const LayerCall& call) override {
    if (call.position_embeddings.first) DecoderAttention::rotate(f, call);
  }
};

class GraniteMoeHybridDecoderLayer final : public DecoderLayer {
 public:
  GraniteMoeHybridDecoderLayer(const DecoderConfig& c, I layer) : DecoderLayer("GraniteMoeHybridDecoderLayer", c.options) {
    input_layernorm = register_module("input_layernorm", make_norm(Norm::llama, c.hidden, "GraniteMoeHybridRMSNorm"));
    post_attention_layernorm = register_module("post_attention_layernorm", make_norm(Norm::llama, c.hidden, "GraniteMoeHybridRMSNorm"));
    if (c.file.integer_or("num_local_experts", 0) > 0)
      block_sparse_moe = register_module("block_sparse_moe", make_granite_block(c, kPrefix));
    shared_mlp = register_module("shared_mlp", make_granite_shared_mlp(c, kPrefix));
    if (c.layer_types[std::size_t(layer)] == "full_attention")
      mixer_ = register_module("self_attn", std::make_shared<GraniteMoeHybridAttention>(c, layer));
    else
      mixer_ = register_module("mamba", make_hybrid_mamba2_mixer(c, layer, "GraniteMoeHybridMambaLayer"));
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states, weights, moe_hidden_states;
    hidden_states = (*input_layernorm)(hidden_states);
    std::tie(hidden_states, weights) = (*mixer_)(hidden_states, call);
    hidden_states = residual.add(hidden_states.mul(1.0));
    residual = hidden_states;
    hidden_states = (*post_attention_layernorm)(hidden_states);
    if (block_sparse_moe) {
      moe_hidden_states = (*block_sparse_moe)(hidden_states);
      hidden_states = moe_hidden_states.add((*shared_mlp)(hidden_states));
    } else {
      hidden_states = (*shared_mlp)(hidden_states);
    }
    hidden_states = residual.add(hidden_states.mul(1.0));
    return hidden_states;
  }

 private:
  UnaryPtr input_layernorm, post_attention_layernorm, block_sparse_moe, shared_mlp;
  MixerPtr mixer_;
};

class GraniteMoeHybridModel final : public DecoderBody {
 public:
  explicit GraniteMoeHybridModel(std::shared_ptr<const DecoderConfig> config)
      : DecoderBody("GraniteMoeHybridModel"), c_(std::move(config)) {
    embed_tokens = &child<Embedding>("embed_tokens", c_->vocab, c_->hidden, c_->file.integer_if("pad_token_id"));
    layers_ = add_layers("layers", c_->layers, [&](I i) { return std::make_shared<GraniteMoeHybridDecoderLayer>(*c_, i); });
    norm = register_module("norm", make_norm(Norm::llama, c_->hidden, "GraniteMoeHybridRMSNorm"));
    if (c_->file.text_or("position_embedding_type", "") == "rope")
      rotary_emb =
          register_module("rotary_emb", std::make_shared<RotaryEmbedding>("GraniteMoeHybridRotaryEmbedding", c_->file, c_->head_dim));
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*embed_tokens)(input_ids);
    inputs_embeds = inputs_embeds.mul(1.0);
    CachePtr cache = new_cache(*c_, training);
    X position_ids = default_position_ids(inputs_embeds);
    X causal_mask = create_causal_mask({c_->options, inputs_embeds, cache.get()});
    X hidden_states = inputs_embeds;
    Pair position_embeddings;
    if (rotary_emb) position_embeddings = (*rotary_emb)(hidden_states, position_ids);
    for (I i = 0; i < c_->layers; ++i) {
      const bool attention = c_->layer_types[std::size_t(i)] == "full_attention";
      hidden_states = (*layers_[std::size_t(i)])(hidden_states, {attention ? causal_mask : X(), position_embeddings, {}, cache.get()});
    }
    hidden_states = (*norm)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  Embedding* embed_tokens;
  std::vector<DecoderLayerPtr> layers_;
  UnaryPtr norm;
  std::shared_ptr<RotaryEmbedding> rotary_emb;
};

NetworkPtr granitemoehybrid(const Config& config, const Options& o) {
  note_torch_recurrence("causal-conv1d and mamba-ssm");
  DecoderForm f;
  f.prefix = kPrefix;
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<GraniteMoeHybridModel>(std::move(c));
  };
  f.logits = [](X logits, const DecoderConfig&) { return logits.div(1.0); };
  f.aux_loss = load_balancing({"num_local_experts", "num_experts_per_tok", "intermediate_size"});
  return make_decoder(with_mamba2_layers(config, [](I) { return false; }), o, std::move(f));
}
const Family granitemoehybrid_family{
    {"granitemoehybrid"},
    {{Task::causal_lm, "GraniteMoeHybridForCausalLM", granitemoehybrid}, {Task::base, "GraniteMoeHybridModel", granitemoehybrid}}};

}  // namespace
}  // namespace memest::hf
