// models/moshi/modeling_moshi.py: the text decoder alone; each attention has its own rotary embedding.
#include "models/hf/decoder.h"
#include "models/hf/loss.h"

namespace memest::hf {
namespace {

/// _norm(x.float()) * weight.float(), cast to the type of x.
class MoshiRMSNorm final : public Unary {
 public:
  explicit MoshiRMSNorm(I width) : Unary("MoshiRMSNorm") { new_parameter("weight", {width}); }

 protected:
  X forward(X x) override {
    X output = normed(x.to_float());
    output = output.mul(X(parameter(0)).to_float());
    return output.to(x.dtype());
  }

 private:
  static X normed(const X& x) { return x.mul(x.pow(2).mean(-1, true).add(1e-8).rsqrt()); }
};

/// MoshiLinear without codebooks.
class MoshiLinear final : public Module<MoshiLinear> {
 public:
  MoshiLinear(I in, I out) : Module("MoshiLinear"), linear(child<Linear>("linear", in, out, false)) {}
  X forward(const X& x) { return linear(x); }

 private:
  Linear& linear;
};

class MoshiAttention final : public DecoderAttention {
 public:
  MoshiAttention(const DecoderConfig& c, I layer) : DecoderAttention(c, layer, "MoshiAttention") {
    q_proj = &child<MoshiLinear>("q_proj", c.hidden, heads_ * head_dim_);
    k_proj = &child<MoshiLinear>("k_proj", c.hidden, kv_heads_ * head_dim_);
    v_proj = &child<MoshiLinear>("v_proj", c.hidden, kv_heads_ * head_dim_);
    o_proj = &child<MoshiLinear>("o_proj", heads_ * head_dim_, c.hidden);
    rotary_emb = register_module("rotary_emb", std::make_shared<RotaryEmbedding>("MoshiRotaryEmbedding", c.file, head_dim_));
  }

 protected:
  void project(Frame& f) override {
    f.query = (*q_proj)(f.hidden_states).view(f.hidden_shape).transpose(1, 2);
    f.key = (*k_proj)(f.hidden_states).view(f.hidden_shape).transpose(1, 2);
    f.value = (*v_proj)(f.hidden_states).view(f.hidden_shape).transpose(1, 2);
  }
  void rotate(Frame& f, const LayerCall& call) override {
    auto [cos, sin] = (*rotary_emb)(f.value, call.position_ids);
    std::tie(f.query, f.key) = apply_rotary_pos_emb(f.query, f.key, cos, sin);
    f.locals = {cos, sin};
  }
  X output(X attn_output) override { return (*o_proj)(attn_output); }

 private:
  MoshiLinear *q_proj, *k_proj, *v_proj, *o_proj;
  std::shared_ptr<RotaryEmbedding> rotary_emb;
};

class MoshiGatingMLP final : public Unary {
 public:
  explicit MoshiGatingMLP(const DecoderConfig& c) : Unary("MoshiGatingMLP") {
    const I width = c.file.size("ffn_dim");
    if (width % 2 != 0) throw c.file.error("ffn_dim", "expected an even number, found " + std::to_string(width));
    activation_fn = &child<Activation>("activation_fn", c.act);
    fc1 = &child<Linear>("fc1", c.hidden, width, false);
    fc2 = &child<Linear>("fc2", width / 2, c.hidden, false);
  }

 protected:
  X forward(X hidden_states) override {
    hidden_states = (*fc1)(hidden_states);
    hidden_states = hidden_states.view({hidden_states.size(0), hidden_states.size(1), 2, -1});
    X activated = (*activation_fn)(hidden_states.select(-2, 0));
    hidden_states = std::move(activated).mul(hidden_states.select(-2, 1));
    hidden_states = (*fc2)(hidden_states);
    return hidden_states;
  }

 private:
  Activation* activation_fn;
  Linear *fc1, *fc2;
};

class MoshiDecoderLayer final : public DecoderLayer {
 public:
  MoshiDecoderLayer(const DecoderConfig& c, I layer) : DecoderLayer("MoshiDecoderLayer", c.options) {
    self_attn_ = register_module("self_attn", std::make_shared<MoshiAttention>(c, layer));
    mlp_ = register_module("mlp", std::make_shared<MoshiGatingMLP>(c));
    input_layernorm = &child<MoshiRMSNorm>("input_layernorm", c.hidden);
    post_attention_layernorm = &child<MoshiRMSNorm>("post_attention_layernorm", c.hidden);
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states, weights;
    hidden_states = (*input_layernorm)(hidden_states);
    std::tie(hidden_states, weights) = (*self_attn_)(hidden_states, call);
    hidden_states = residual.add(hidden_states);
    residual = hidden_states;
    hidden_states = (*post_attention_layernorm)(hidden_states);
    hidden_states = (*mlp_)(hidden_states);
    hidden_states = residual.add(hidden_states);
    return leave(hidden_states, residual, weights);
  }

 private:
  MixerPtr self_attn_;
  UnaryPtr mlp_;
  MoshiRMSNorm *input_layernorm, *post_attention_layernorm;
};

class MoshiModel final : public DecoderBody {
 public:
  explicit MoshiModel(std::shared_ptr<const DecoderConfig> config) : DecoderBody("MoshiModel"), c_(std::move(config)) {
    if (c_->hidden % c_->heads != 0)
      throw c_->file.error("num_attention_heads", "the hidden size is not a multiple of the number of attention heads");
    embed_tokens = &child<Embedding>("embed_tokens", c_->vocab + 1, c_->hidden);
    layers_ = add_layers("layers", c_->layers, [this](I i) { return std::make_shared<MoshiDecoderLayer>(*c_, i); });
    norm = &child<MoshiRMSNorm>("norm", c_->hidden);
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*embed_tokens)(input_ids);
    X position_ids = default_position_ids(inputs_embeds);
    X causal_mask = create_causal_mask({c_->options, inputs_embeds, nullptr, position_ids});  // before there is a cache
    X hidden_states = inputs_embeds;
    CachePtr cache = new_cache(*c_, training);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, {causal_mask, {}, position_ids, cache.get()});
    hidden_states = (*norm)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  Embedding* embed_tokens;
  std::vector<DecoderLayerPtr> layers_;
  MoshiRMSNorm* norm;
};

/// Its output holds the last hidden state, too.
class MoshiForCausalLM final : public Network {
 public:
  explicit MoshiForCausalLM(const std::shared_ptr<const DecoderConfig>& c)
      : Network("MoshiForCausalLM", c->options),
        c_(c),
        model_(register_module("model", std::make_shared<MoshiModel>(c))),
        lm_head(child<Linear>("lm_head", c->hidden, c->vocab, false)) {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto [last_hidden_state, cache] = (*model_)(batch.input);
    X hidden_states = last_hidden_state.whole_slices(3);
    X logits = lm_head(hidden_states);
    X loss;
    if (batch.labels) loss = causal_lm_loss(logits, batch.labels, c_->vocab);
    return {model_output({loss, logits, hidden_states}, cache.get()), loss};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  std::shared_ptr<MoshiModel> model_;
  Linear& lm_head;
};

NetworkPtr moshi(const Config& config, const Options& o) {
  if (o.task != Task::base) return std::make_shared<MoshiForCausalLM>(std::make_shared<const DecoderConfig>(config, o));
  DecoderForm f;
  f.prefix = "Moshi";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<MoshiModel>(std::move(c));
  };
  return make_decoder(config, o, std::move(f));
}
const Family moshi_family{{"moshi"}, {{Task::causal_lm, "MoshiForCausalLM", moshi}, {Task::base, "MoshiModel", moshi}}};

}  // namespace
}  // namespace memest::hf
