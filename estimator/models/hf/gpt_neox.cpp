// models/gpt_neox/modeling_gpt_neox.py.
#include "models/hf/decoder.h"
#include "models/hf/rotate.h"

namespace memest::hf {
namespace {

I rotary_ndims(const DecoderConfig& c) { return rotary_width(c.file, c.head_dim, c.file.number_or("rotary_pct", 0.25)); }

class GPTNeoXAttention final : public DecoderAttention {
 public:
  GPTNeoXAttention(const DecoderConfig& c, I layer) : DecoderAttention(c, layer, "GPTNeoXAttention") {
    const bool bias = c.file.boolean_or("attention_bias", true);
    query_key_value = &child<Linear>("query_key_value", c.hidden, 3 * c.hidden, bias);
    o_proj_ = &child<Linear>("dense", c.hidden, c.hidden, bias);
  }

 protected:
  void project(Frame& f) override {
    X qkv = (*query_key_value)(f.hidden_states).view(f.input_shape + Dims{-1, 3 * head_dim_}).transpose(1, 2);
    std::vector<X> parts = qkv.chunk(3, -1);
    f.query = parts[0], f.key = parts[1], f.value = parts[2];
    f.locals = {qkv};
  }
  void rotate(Frame& f, const LayerCall& call) override {
    std::tie(f.query, f.key) = apply_rotary_named(f.query, f.key, call.position_embeddings.first, call.position_embeddings.second);
  }

 private:
  Linear* query_key_value;
};

class GPTNeoXLayer final : public DecoderLayer {
 public:
  GPTNeoXLayer(const DecoderConfig& c, I layer)
      : DecoderLayer("GPTNeoXLayer", c.options), parallel_(c.file.boolean_or("use_parallel_residual", true)) {
    const double dropout = c.file.number_or("hidden_dropout", 0.0);
    input_layernorm = &child<LayerNorm>("input_layernorm", c.hidden);
    post_attention_layernorm = &child<LayerNorm>("post_attention_layernorm", c.hidden);
    post_attention_dropout = &child<Dropout>("post_attention_dropout", dropout);
    post_mlp_dropout = &child<Dropout>("post_mlp_dropout", dropout);
    attention_ = register_module("attention", std::make_shared<GPTNeoXAttention>(c, layer));
    mlp_ = register_module("mlp", make_plain_mlp("GPTNeoXMLP", "dense_h_to_4h", "dense_4h_to_h", c.hidden, c.intermediate, true, c.act));
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    auto [attn_output, weights] = (*attention_)((*input_layernorm)(hidden_states), call);
    attn_output = (*post_attention_dropout)(attn_output);
    X mlp_output;
    if (parallel_) {
      mlp_output = (*mlp_)((*post_attention_layernorm)(hidden_states));
      mlp_output = (*post_mlp_dropout)(mlp_output);
      hidden_states = mlp_output.add(attn_output).add(hidden_states);
    } else {
      attn_output = attn_output.add(hidden_states);
      mlp_output = (*mlp_)((*post_attention_layernorm)(attn_output));
      mlp_output = (*post_mlp_dropout)(mlp_output);
      hidden_states = mlp_output.add(attn_output);
    }
    return leave(hidden_states, attn_output, weights, mlp_output);
  }

 private:
  bool parallel_;
  LayerNorm *input_layernorm, *post_attention_layernorm;
  Dropout *post_attention_dropout, *post_mlp_dropout;
  MixerPtr attention_;
  UnaryPtr mlp_;
};

class GPTNeoXModel final : public DecoderBody {
 public:
  explicit GPTNeoXModel(std::shared_ptr<const DecoderConfig> config) : DecoderBody("GPTNeoXModel"), c_(std::move(config)) {
    if (c_->hidden % c_->heads != 0)
      throw c_->file.error("num_attention_heads", "the hidden size is not a multiple of the number of attention heads");
    embed_in = &child<Embedding>("embed_in", c_->vocab, c_->hidden);
    emb_dropout = &child<Dropout>("emb_dropout", c_->file.number_or("hidden_dropout", 0.0));
    layers_ = add_layers("layers", c_->layers, [this](I i) { return std::make_shared<GPTNeoXLayer>(*c_, i); });
    final_layer_norm = &child<LayerNorm>("final_layer_norm", c_->hidden);
    rotary_emb = register_module("rotary_emb", std::make_shared<RotaryEmbedding>("GPTNeoXRotaryEmbedding", c_->file, rotary_ndims(*c_)));
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*embed_in)(input_ids);
    CachePtr cache = new_cache(*c_, training);
    X position_ids = default_position_ids(inputs_embeds);
    X causal_mask = create_causal_mask({c_->options, inputs_embeds, cache.get(), position_ids});
    X hidden_states = (*emb_dropout)(inputs_embeds);
    Pair position_embeddings = (*rotary_emb)(hidden_states, position_ids);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, {causal_mask, position_embeddings, position_ids, cache.get()});
    hidden_states = (*final_layer_norm)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  Embedding* embed_in;
  Dropout* emb_dropout;
  std::vector<DecoderLayerPtr> layers_;
  LayerNorm* final_layer_norm;
  std::shared_ptr<RotaryEmbedding> rotary_emb;
};

NetworkPtr gpt_neox(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "GPTNeoX";
  f.base_prefix = "gpt_neox";
  f.embedding_name = "embed_in";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<GPTNeoXModel>(std::move(c));
  };
  return make_decoder(config, o, std::move(f));
}
const Family gpt_neox_family{{"gpt_neox"}, decoder_classes("GPTNeoX", gpt_neox)};

}  // namespace
}  // namespace memest::hf
