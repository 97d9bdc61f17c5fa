// models/lfm2: short convolutions, with attention in some layers.
#include "models/hf/decoder.h"

namespace memest::hf {
namespace {

class Lfm2Attention final : public DecoderAttention {
 public:
  Lfm2Attention(const DecoderConfig& c, I layer) : DecoderAttention(c, layer, "Lfm2Attention", {}, "out_proj") {
    dropout_ = 0;
    q_layernorm_ = register_module("q_layernorm", make_norm(Norm::llama, head_dim_, "Lfm2RMSNorm"));
    k_layernorm_ = register_module("k_layernorm", make_norm(Norm::llama, head_dim_, "Lfm2RMSNorm"));
  }

 protected:
  void project(Frame& f) override {
    f.query = (*q_layernorm_)((*q_proj_)(f.hidden_states).view(f.hidden_shape)).transpose(1, 2);
    f.key = (*k_layernorm_)((*k_proj_)(f.hidden_states).view(f.hidden_shape)).transpose(1, 2);
    f.value = (*v_proj_)(f.hidden_states).view(f.hidden_shape).transpose(1, 2);
  }

 private:
  UnaryPtr q_layernorm_, k_layernorm_;
};

class Lfm2ShortConv final : public Mixer {
 public:
  Lfm2ShortConv(const DecoderConfig& c, I layer)
      : Mixer("Lfm2ShortConv"), layer_(layer), width_(c.hidden), kernel_(c.file.size_or("conv_L_cache", 3)) {
    const bool bias = c.file.boolean_or("conv_bias", false);
    conv = &child<Conv1d>("conv", width_, width_, kernel_, 1, kernel_ - 1, bias, width_);
    in_proj = &child<Linear>("in_proj", width_, 3 * width_, bias);
    out_proj = &child<Linear>("out_proj", width_, width_, bias);
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const I seq_len = hidden_states.size(1);
    X BCx = (*in_proj)(hidden_states).transpose(-1, -2);
    std::vector<X> parts = BCx.chunk(3, -2);
    X B = parts[0], C = parts[1], x = parts[2];
    parts.clear();
    hidden_states = B.mul(x);
    if (call.cache) hidden_states = update_conv_state(call.cache->layer(layer_), hidden_states);
    hidden_states = causal_conv1d(hidden_states);
    if (call.cache) hidden_states = hidden_states.slice(2, -seq_len, std::nullopt);
    X y = C.mul(hidden_states);
    y = y.transpose(-1, -2).contiguous();
    y = (*out_proj)(y);
    return {leave(y, hidden_states, BCx, B, C, x), {}};
  }

 private:
  /// LinearAttentionLayer.update_conv_state of a first call: the last columns are kept.
  X update_conv_state(CacheLayer& cached, const X& conv_states) const {
    X kept = zeros({conv_states.size(0), width_, kernel_}, conv_states.dtype());
    X full = conv_states;
    if (const I missing = kernel_ - conv_states.size(-1); missing > 0)
      full = aten("constant_pad_nd", {Tensor(conv_states), list_of(Dims{missing, 0}), I{0}});
    ops::copy_(kept, full.slice(-1, -kernel_, std::nullopt), false);
    cached.states = {kept};
    return full;
  }
  X causal_conv1d(const X& hidden_states) const {
    const I seq_len = hidden_states.size(2);
    X weight = X(conv->weight()).squeeze(1);
    X input = hidden_states.to(weight.dtype());
    X out = ops::conv1d(std::move(input), weight.unsqueeze(1), conv->bias(), Dims{1}, Dims{kernel_ - 1}, Dims{1}, width_);
    out = out.slice(2, std::nullopt, seq_len);
    return out.to(hidden_states.dtype());
  }

  I layer_, width_, kernel_;
  Conv1d* conv;
  Linear *in_proj, *out_proj;
};

class Lfm2MLP final : public Unary {
 public:
  Lfm2MLP(I width, I intermediate)
      : Unary("Lfm2MLP"),
        w1(child<Linear>("w1", width, intermediate, false)),
        w3(child<Linear>("w3", width, intermediate, false)),
        w2(child<Linear>("w2", intermediate, width, false)) {}

 protected:
  X forward(X x) override {
    X gate = w1(x);
    gate = X(ops::silu(std::move(gate)));
    X gated = std::move(gate).mul(w3(x));
    return w2(std::move(gated));
  }

 private:
  Linear &w1, &w3, &w2;
};

class Lfm2DecoderLayer final : public DecoderLayer {
 public:
  Lfm2DecoderLayer(const DecoderConfig& c, I layer, I intermediate) : DecoderLayer("Lfm2DecoderLayer", c.options) {
    if (c.layer_types[std::size_t(layer)] != "conv")
      operator_ = register_module("self_attn", std::make_shared<Lfm2Attention>(c, layer));
    else
      operator_ = register_module("conv", std::make_shared<Lfm2ShortConv>(c, layer));
    feed_forward_ = register_module("feed_forward", std::make_shared<Lfm2MLP>(c.hidden, intermediate));
    operator_norm_ = register_module("operator_norm", make_norm(Norm::llama, c.hidden, "Lfm2RMSNorm"));
    ffn_norm_ = register_module("ffn_norm", make_norm(Norm::llama, c.hidden, "Lfm2RMSNorm"));
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states, weights;
    std::tie(hidden_states, weights) = (*operator_)((*operator_norm_)(hidden_states), call);
    hidden_states = hidden_states.add(residual);
    X fed = (*feed_forward_)((*ffn_norm_)(hidden_states));
    hidden_states = hidden_states.add(std::move(fed));
    return leave(hidden_states, residual, weights);
  }

 private:
  MixerPtr operator_;
  UnaryPtr feed_forward_, operator_norm_, ffn_norm_;
};

class Lfm2Model final : public DecoderBody {
 public:
  explicit Lfm2Model(std::shared_ptr<const DecoderConfig> config) : DecoderBody("Lfm2Model"), c_(std::move(config)) {
    I width = c_->intermediate;
    if (c_->file.boolean_or("block_auto_adjust_ff_dim", true)) {
      width = 2 * width / 3;
      if (auto multiplier = c_->file.number_if("block_ffn_dim_multiplier")) {
        const I unit = c_->file.size_or("block_multiple_of", 256);
        width = I(*multiplier * double(width));
        width = unit * ceil_div(width, unit);
      }
    }
    if (width < 1) throw c_->file.error("intermediate_size", "the layers' width comes to " + std::to_string(width));
    embed_tokens = &child<Embedding>("embed_tokens", c_->vocab, c_->hidden);
    layers_ = add_layers("layers", c_->layers, [&](I i) { return std::make_shared<Lfm2DecoderLayer>(*c_, i, width); });
    rotary_emb = register_module("rotary_emb", std::make_shared<RotaryEmbedding>("Lfm2RotaryEmbedding", c_->file, c_->head_dim));
    embedding_norm_ = register_module("embedding_norm", make_norm(Norm::llama, c_->hidden, "Lfm2RMSNorm"));
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*embed_tokens)(input_ids);
    CachePtr cache = new_cache(*c_, training);
    X position_ids = default_position_ids(inputs_embeds);
    I first = 0;
    while (first + 1 < c_->layers && c_->layer_types[std::size_t(first)] == "conv") ++first;
    X causal_mask = create_causal_mask({c_->options, inputs_embeds, cache.get(), position_ids, first});
    X hidden_states = inputs_embeds;
    Pair position_embeddings = (*rotary_emb)(hidden_states, position_ids);
    for (I i = 0; i < c_->layers; ++i) {
      const bool conv = c_->layer_types[std::size_t(i)] == "conv";
      hidden_states = (*layers_[std::size_t(i)])(hidden_states, {conv ? X() : causal_mask, position_embeddings, position_ids, cache.get()});
    }
    hidden_states = (*embedding_norm_)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  Embedding* embed_tokens;
  std::vector<DecoderLayerPtr> layers_;
  std::shared_ptr<RotaryEmbedding> rotary_emb;
  UnaryPtr embedding_norm_;
};

NetworkPtr lfm2(const Config& given, const Options& o) {
  Config config = given;
  if (given.has("tie_embedding")) config.set("tie_word_embeddings", *given.find("tie_embedding"));
  if (given.has("block_ff_dim")) config.set("intermediate_size", *given.find("block_ff_dim"));
  std::vector<std::int64_t> full;
  const bool some = config.has("full_attn_idxs");
  if (some) full = config.integers("full_attn_idxs");
  default_layer_types(config,
                      [&](I i) { return !some || std::find(full.begin(), full.end(), i) != full.end() ? "full_attention" : "conv"; });
  for (auto& type : config.texts("layer_types"))
    if (type != "full_attention" && type != "conv")
      throw config.error("layer_types", "the types are full_attention and conv, found '" + type.substr(0, 60) + "'");
  DecoderForm f;
  f.prefix = "Lfm2";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<Lfm2Model>(std::move(c));
  };
  return make_decoder(config, o, std::move(f));
}
const Family lfm2_family{{"lfm2"}, {{Task::causal_lm, "Lfm2ForCausalLM", lfm2}, {Task::base, "Lfm2Model", lfm2}}};

}  // namespace
}  // namespace memest::hf
