// models/moshi/modeling_moshi.py: the text decoder.
#include "models/hf/decoder.h"
#include "models/hf/loss.h"

namespace memest::hf {
namespace {

/// MoshiRMSNorm: x_hat * weight.float(), x_hat from x.float().
class MoshiRMSNorm final : public Module<MoshiRMSNorm> {
 public:
  explicit MoshiRMSNorm(I width) : Module("MoshiRMSNorm") { new_parameter("weight", {width}); }
  X forward(const X& x) {
    X output = normalized(x.to_float());
    output = output.mul(X(parameter(0)).to_float());
    return output.to(x.dtype());
  }

 private:
  static X normalized(X x) { return x.mul(x.pow(2).mean(-1, true).add(1e-6).rsqrt()); }
};

/// MoshiLinear without the flexible one.
class MoshiLinear final : public Module<MoshiLinear> {
 public:
  MoshiLinear(I in, I out) : Module("MoshiLinear"), linear(child<Linear>("linear", in, out, false)) {}
  X forward(const X& x) { return linear(x); }

 private:
  Linear& linear;
};

class MoshiAttention final : public Mixer {
 public:
  MoshiAttention(const DecoderConfig& c, I layer)
      : Mixer("MoshiAttention"),
        options_(c.options),
        layer_(layer),
        head_dim_(c.head_dim),
        groups_(c.heads / c.kv_heads),
        dropout_(c.attention_dropout),
        q_proj(child<MoshiLinear>("q_proj", c.hidden, c.heads * c.head_dim)),
        k_proj(child<MoshiLinear>("k_proj", c.hidden, c.kv_heads * c.head_dim)),
        v_proj(child<MoshiLinear>("v_proj", c.hidden, c.kv_heads * c.head_dim)),
        o_proj(child<MoshiLinear>("o_proj", c.heads * c.head_dim, c.hidden)),
        rotary_emb(child<RotaryEmbedding>("rotary_emb", "MoshiRotaryEmbedding", c.file, c.head_dim)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims input_shape = hidden_states.sizes().slice(0, 2);
    const Dims hidden_shape = input_shape + Dims{-1, head_dim_};
    X query_states = q_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_states = k_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_states = v_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    auto [cos, sin] = rotary_emb(value_states, call.position_ids);
    std::tie(query_states, key_states) = apply_rotary_pos_emb(query_states, key_states, cos, sin);
    if (call.cache) std::tie(key_states, value_states) = call.cache->update(key_states, value_states, layer_);
    auto [attn_output, attn_weights] =
        attention_interface(options_, query_states, key_states, value_states,
                            {.mask = call.mask, .groups = groups_, .dropout = training ? dropout_ : 0.0, .training = training});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = o_proj(attn_output);
    return leave(Pair{attn_output, attn_weights}, query_states, key_states, value_states, cos, sin, attn_output);
  }

 private:
  const Options options_;
  I layer_, head_dim_, groups_;
  double dropout_;
  MoshiLinear &q_proj, &k_proj, &v_proj, &o_proj;
  RotaryEmbedding& rotary_emb;
};

class MoshiGatingMLP final : public Module<MoshiGatingMLP> {
 public:
  MoshiGatingMLP(const DecoderConfig& c, I intermediate)
      : Module("MoshiGatingMLP"),
        activation_fn(child<Activation>("activation_fn", c.act)),
        fc1(child<Linear>("fc1", c.hidden, intermediate, false)),
        fc2(child<Linear>("fc2", intermediate / 2, c.hidden, false)) {}
  X forward(X hidden_states) {
    hidden_states = fc1(hidden_states);
    hidden_states = hidden_states.view({hidden_states.size(0), hidden_states.size(1), 2, -1});
    hidden_states = activation_fn(half(hidden_states, 0)).mul(half(hidden_states, 1));
    hidden_states = fc2(hidden_states);
    return hidden_states;
  }

 private:
  /// hidden_states[..., i, :]
  static X half(const X& x, I i) {
    X part = x.select(2, i);
    return runtime().settings.torch.full_slice_records_node() ? std::move(part).slice(-1, std::nullopt, std::nullopt) : part;
  }
  Activation& activation_fn;
  Linear &fc1, &fc2;
};

class MoshiDecoderLayer final : public DecoderLayer {
 public:
  MoshiDecoderLayer(const DecoderConfig& c, I layer, I intermediate)
      : DecoderLayer("MoshiDecoderLayer", c.options),
        self_attn(register_module("self_attn", std::make_shared<MoshiAttention>(c, layer))),
        mlp(child<MoshiGatingMLP>("mlp", c, intermediate)),
        input_layernorm(child<MoshiRMSNorm>("input_layernorm", c.hidden)),
        post_attention_layernorm(child<MoshiRMSNorm>("post_attention_layernorm", c.hidden)) {}

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states, weights;
    hidden_states = input_layernorm(hidden_states);
    std::tie(hidden_states, weights) = (*self_attn)(hidden_states, call);
    hidden_states = residual.add(hidden_states);
    residual = hidden_states;
    hidden_states = post_attention_layernorm(hidden_states);
    hidden_states = mlp(hidden_states);
    hidden_states = residual.add(hidden_states);
    return leave(std::move(hidden_states), residual, weights);
  }

 private:
  MixerPtr self_attn;
  MoshiGatingMLP& mlp;
  MoshiRMSNorm &input_layernorm, &post_attention_layernorm;
};

class MoshiModel final : public DecoderBody {
 public:
  explicit MoshiModel(const DecoderConfig& c)
      : DecoderBody("MoshiModel"),
        c_(c),
        embed_tokens(child<Embedding>("embed_tokens", c.vocab + 1, c.hidden, c.file.integer_if("pad_token_id"))) {
    const I intermediate = c.file.size("ffn_dim");
    if (intermediate % 2 != 0) throw c.file.error("ffn_dim", "expected an even number, found " + std::to_string(intermediate));
    layers_ = add_layers("layers", c.layers, [&](I i) { return std::make_shared<MoshiDecoderLayer>(c, i, intermediate); });
    norm = &child<MoshiRMSNorm>("norm", c.hidden);
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = embed_tokens(input_ids);
    X position_ids = default_position_ids(inputs_embeds);
    // The mask is made before the cache.
    X causal_mask = create_causal_mask({c_.options, inputs_embeds, nullptr, position_ids});
    X hidden_states = inputs_embeds;
    CachePtr cache = new_cache(c_, training);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, {causal_mask, {}, position_ids, cache.get()});
    hidden_states = (*norm)(hidden_states);
    hidden_states = leave(std::move(hidden_states), position_ids, inputs_embeds, causal_mask);
    return {hidden_states, cache};
  }

 private:
  const DecoderConfig c_;
  Embedding& embed_tokens;
  std::vector<DecoderLayerPtr> layers_;
  MoshiRMSNorm* norm;
};

/// MoshiForCausalLM and MoshiModel.
class MoshiNetwork final : public Network {
 public:
  explicit MoshiNetwork(const DecoderConfig& c)
      : Network(c.options.task == Task::base ? "MoshiModel" : "MoshiForCausalLM", c.options),
        vocab_(c.vocab),
        model_(child<MoshiModel>("model", c)) {
    if (c.options.task != Task::base) lm_head = &child<Linear>("lm_head", c.hidden, c.vocab, false);
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto [last_hidden_state, cache] = model_(batch.input);
    if (!lm_head) return {model_output({last_hidden_state}, cache.get()), {}};
    X hidden_states = last_hidden_state.whole_slices(3);
    X logits = (*lm_head)(hidden_states);
    X loss;
    if (batch.labels) loss = causal_lm_loss(logits, batch.labels, vocab_);
    return {model_output({loss, logits, hidden_states}, cache.get()), loss};
  }

 private:
  I vocab_;
  MoshiModel& model_;
  Linear* lm_head = nullptr;
};

NetworkPtr moshi(const Config& config, const Options& o) { return std::make_shared<MoshiNetwork>(DecoderConfig(config, o)); }
const Family moshi_family{{"moshi"}, {{Task::causal_lm, "MoshiForCausalLM", moshi}, {Task::base, "MoshiModel", moshi}}};

}  // namespace
}  // namespace memest::hf
