// models/nanochat: norms without weights, applied to queries and keys after the rotation, and once before the layers.
#include "models/hf/decoder.h"

namespace memest::hf {
namespace {

X rotated(const X& x, const X& cos, const X& sin) {
  X straight = x.mul(cos);
  X half;
  {
    X x1 = x.slice(-1, std::nullopt, x.size(-1) / 2), x2 = x.slice(-1, x.size(-1) / 2, std::nullopt);
    half = cat({x2, x1.neg()}, -1);
  }
  X turned = std::move(half).mul(sin);
  return std::move(straight).add(std::move(turned));
}

class NanoChatAttention final : public DecoderAttention {
 public:
  NanoChatAttention(const DecoderConfig& c, I layer, Biases biases) : DecoderAttention(c, layer, "NanoChatAttention", biases) {
    q_norm_ = register_module("q_norm", make_norm(Norm::weightless, head_dim_, "NanoChatRMSNorm"));
    k_norm_ = register_module("k_norm", make_norm(Norm::weightless, head_dim_, "NanoChatRMSNorm"));
  }

 protected:
  void rotate(Frame& f, const LayerCall& call) override {
    {
      X cos = call.position_embeddings.first.unsqueeze(1), sin = call.position_embeddings.second.unsqueeze(1);
      X q_embed = rotated(f.query, cos, sin);
      X k_embed = rotated(f.key, cos, sin);
      f.query = std::move(q_embed);
      f.key = std::move(k_embed);
    }
    f.query = (*q_norm_)(f.query);
    f.key = (*k_norm_)(f.key);
  }

 private:
  UnaryPtr q_norm_, k_norm_;
};

class NanoChatModel final : public DecoderBody {
 public:
  explicit NanoChatModel(std::shared_ptr<const DecoderConfig> config) : DecoderBody("NanoChatModel"), c_(std::move(config)) {
    embed_tokens = &child<Embedding>("embed_tokens", c_->vocab, c_->hidden);
    layers_ = add_layers("layers", c_->layers, [this](I i) {
      LayerForm form;
      form.type = "NanoChatDecoderLayer";
      form.norm = Norm::weightless;
      form.norm_type = "NanoChatRMSNorm";
      const bool b = c_->attention_bias;
      return make_layer(*c_, form, std::make_shared<NanoChatAttention>(*c_, i, Biases{b, b, b, b}),
                        make_plain_mlp("NanoChatMLP", "fc1", "fc2", c_->hidden, c_->intermediate, false, c_->act));
    });
    norm_ = register_module("norm", make_norm(Norm::weightless, c_->hidden, "NanoChatRMSNorm"));
    rotary_emb = register_module("rotary_emb", std::make_shared<RotaryEmbedding>("NanoChatRotaryEmbedding", c_->file, c_->head_dim));
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*embed_tokens)(input_ids);
    CachePtr cache = new_cache(*c_, training);
    X position_ids = default_position_ids(inputs_embeds);
    X causal_mask = create_causal_mask({c_->options, inputs_embeds, cache.get(), position_ids});
    X hidden_states = inputs_embeds;
    Pair position_embeddings = (*rotary_emb)(hidden_states, position_ids);
    hidden_states = (*norm_)(hidden_states);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, {causal_mask, position_embeddings, position_ids, cache.get()});
    hidden_states = (*norm_)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  Embedding* embed_tokens;
  std::vector<DecoderLayerPtr> layers_;
  UnaryPtr norm_;
  std::shared_ptr<RotaryEmbedding> rotary_emb;
};

NetworkPtr nanochat(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "NanoChat";
  f.logits = [](X logits, const DecoderConfig& c) {
    if (!c.file.has("final_logit_softcapping")) return logits;
    logits = logits.div(15.0);
    logits = logits.tanh();
    logits = logits.mul(15.0);
    return logits;
  };
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<NanoChatModel>(std::move(c));
  };
  return make_decoder(config, o, std::move(f));
}
const Family nanochat_family{{"nanochat"}, {{Task::causal_lm, "NanoChatForCausalLM", nanochat}, {Task::base, "NanoChatModel", nanochat}}};

}  // namespace
}  // namespace memest::hf
