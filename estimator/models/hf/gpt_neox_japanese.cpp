// models/gpt_neox_japanese/modeling_gpt_neox_japanese.py: eager attention of its own; the last layer's attention has a bias.
#include "models/hf/block.h"

namespace memest::hf {
namespace {

I rotary_ndims(const DecoderConfig& c) { return rotary_width(c.file, c.head_dim, c.file.number_or("rotary_pct", 1.0)); }

struct AttentionResult {
  X output, weights, bias;
};

class GPTNeoXJapaneseAttention final : public Module<GPTNeoXJapaneseAttention> {
 public:
  GPTNeoXJapaneseAttention(const DecoderConfig& c, I layer)
      : Module("GPTNeoXJapaneseAttention"),
        layer_(layer),
        heads_(c.heads),
        head_dim_(c.head_dim),
        rotary_ndims_(rotary_ndims(c)),
        use_bias_(layer == c.layers - 1) {
    attention_dropout = &child<Dropout>("attention_dropout", c.file.number_or("attention_dropout", 0.1));
    query_key_value = &child<Linear>("query_key_value", c.hidden, 3 * c.hidden, false);
    dense = &child<Linear>("dense", c.hidden, c.hidden, false);
    new_parameter("dense_bias", {c.hidden}, use_bias_);
  }
  AttentionResult forward(X hidden_states, const BlockCall* call) {
    X qkv = (*query_key_value)(hidden_states);
    qkv = qkv.view(qkv.sizes().slice(0, 2) + Dims{heads_, 3 * head_dim_});
    X query = qkv.slice(-1, std::nullopt, head_dim_).permute({0, 2, 1, 3});
    X key = qkv.slice(-1, head_dim_, 2 * head_dim_).permute({0, 2, 1, 3});
    X value = qkv.slice(-1, 2 * head_dim_, std::nullopt).permute({0, 2, 1, 3});
    X query_rot = query.slice(-1, std::nullopt, rotary_ndims_), query_pass = query.slice(-1, rotary_ndims_, std::nullopt);
    X key_rot = key.slice(-1, std::nullopt, rotary_ndims_), key_pass = key.slice(-1, rotary_ndims_, std::nullopt);
    std::tie(query, key) = apply_rotary_pos_emb(query_rot, key_rot, call->position_embeddings.first, call->position_embeddings.second);
    query = cat({query, query_pass}, -1).contiguous();
    key = cat({key, key_pass}, -1).contiguous();
    if (call->cache) std::tie(key, value) = call->cache->update(key, value, layer_);
    auto [attn_output, attn_weights] = attend(query, key, value, call->mask);
    X merged = attn_output.permute({0, 2, 1, 3}).contiguous();
    attn_output = merged.view({merged.size(0), merged.size(1), heads_ * head_dim_});
    merged.reset();
    attn_output = (*dense)(attn_output);
    return {attn_output, attn_weights, use_bias_ ? X(parameter(0)) : X()};
  }

 private:
  Pair attend(const X& given_query, const X& given_key, const X& value, const X& attention_mask) {
    const I batch = given_query.size(0), query_length = given_query.size(2), key_length = given_key.size(-2);
    X query = given_query.view({batch * heads_, query_length, head_dim_});
    X key = given_key.view({batch * heads_, key_length, head_dim_});
    X attn_scores = zeros({batch * heads_, query_length, key_length}, query.dtype());
    X attention_scores =
        aten("baddbmm", {Tensor(attn_scores), Tensor(query), Tensor(key.transpose(1, 2))}, {{"beta", 1.0}, {"alpha", 0.125}});
    attention_scores = attention_scores.view({batch, heads_, query_length, -1});
    if (attention_mask) attention_scores = attention_scores.add(attention_mask);
    X attn_weights = attention_scores.softmax(-1);
    attn_weights = (*attention_dropout)(attn_weights);
    attn_weights = attn_weights.to(value.dtype());
    X attn_output = attn_weights.matmul(value);
    return leave(Pair{attn_output, attn_weights}, query, key, attn_scores, attention_scores);
  }

  I layer_, heads_, head_dim_, rotary_ndims_;
  bool use_bias_;
  Dropout* attention_dropout;
  Linear *query_key_value, *dense;
};

class GPTNeoXJapaneseMLP final : public Unary {
 public:
  explicit GPTNeoXJapaneseMLP(const DecoderConfig& c) : Unary("GPTNeoXJapaneseMLP") {
    const I width = c.hidden * c.file.size_or("intermediate_multiple_size", 4);
    dense_h_to_4h = &child<Linear>("dense_h_to_4h", c.hidden, width, false);
    dense_4h_to_h = &child<Linear>("dense_4h_to_h", width, c.hidden, false);
    act = &child<Activation>("act", c.file.text_or("hidden_act", "gelu"));
  }

 protected:
  X forward(X hidden_states) override {
    X intermediate = (*dense_h_to_4h)(hidden_states);
    intermediate = (*act)(intermediate);
    X output = (*dense_4h_to_h)(intermediate);
    return output;
  }

 private:
  Linear *dense_h_to_4h, *dense_4h_to_h;
  Activation* act;
};

X bias_dropout_add(X x, X bias, X residual, double prob, bool training) {
  if (bias) x = x.add(bias);
  X out = ops::dropout(x, prob, training);
  out = residual.add(out);
  return leave(out, x, bias, residual);
}

class GPTNeoXJapaneseLayer final : public DecoderBlock {
 public:
  GPTNeoXJapaneseLayer(const DecoderConfig& c, I layer)
      : DecoderBlock("GPTNeoXJapaneseLayer", c.options), hidden_dropout_(c.file.number_or("hidden_dropout", 0.0)) {
    input_layernorm = &child<LayerNorm>("input_layernorm", c.hidden);
    post_attention_layernorm = &child<LayerNorm>("post_attention_layernorm", c.hidden);
    attention = &child<GPTNeoXJapaneseAttention>("attention", c, layer);
    mlp_ = register_module("mlp", std::make_shared<GPTNeoXJapaneseMLP>(c));
  }

 protected:
  Pair forward(X hidden_states, const BlockCall& call) override {
    X residual = hidden_states;
    X ln_out = (*input_layernorm)(hidden_states);
    auto [attn_output, attn_weights, attn_bias] = (*attention)(ln_out, &call);
    attn_output = bias_dropout_add(attn_output, attn_bias ? attn_bias.expand(residual.sizes()) : X(), residual, hidden_dropout_, training);
    X mlp_output = (*mlp_)((*post_attention_layernorm)(attn_output));
    attn_output = bias_dropout_add(mlp_output, {}, attn_output, hidden_dropout_, training);
    return {attn_output, attn_weights};
  }

 private:
  double hidden_dropout_;
  LayerNorm *input_layernorm, *post_attention_layernorm;
  GPTNeoXJapaneseAttention* attention;
  UnaryPtr mlp_;
};

class GPTNeoXJapaneseModel final : public BlockModel {
 public:
  explicit GPTNeoXJapaneseModel(const std::shared_ptr<const DecoderConfig>& c) : BlockModel("GPTNeoXJapaneseModel", c) {
    check_heads(*c);
    embed_in = &child<Embedding>("embed_in", c->vocab, c->hidden);
    add_blocks("layers", [&](I i) { return std::make_shared<GPTNeoXJapaneseLayer>(*c, i); });
    final_layer_norm = &child<LayerNorm>("final_layer_norm", c->hidden);
    rotary_emb =
        register_module("rotary_emb", std::make_shared<RotaryEmbedding>("GPTNeoXJapaneseRotaryEmbedding", c->file, rotary_ndims(*c)));
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*embed_in)(input_ids);
    CachePtr cache = new_cache(*c_, training);
    X position_ids = default_position_ids(inputs_embeds);
    X causal_mask = create_causal_mask({c_->options, inputs_embeds, cache.get(), position_ids});
    X hidden_states = inputs_embeds;
    Pair position_embeddings = (*rotary_emb)(hidden_states, position_ids);
    Pair outputs;
    hidden_states = run_blocks(std::move(hidden_states), {causal_mask, {}, position_embeddings, position_ids, cache.get()}, outputs);
    hidden_states = (*final_layer_norm)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  Embedding* embed_in;
  LayerNorm* final_layer_norm;
  std::shared_ptr<RotaryEmbedding> rotary_emb;
};

NetworkPtr gpt_neox_japanese(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "GPTNeoXJapanese";
  f.base_prefix = "gpt_neox_japanese";
  f.embedding_name = "embed_in";
  f.head_name = "embed_out";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<GPTNeoXJapaneseModel>(c);
  };
  return make_decoder(config, eager_only(o), std::move(f));
}
const Family gpt_neox_japanese_family{
    {"gpt_neox_japanese"},
    {{Task::causal_lm, "GPTNeoXJapaneseForCausalLM", gpt_neox_japanese}, {Task::base, "GPTNeoXJapaneseModel", gpt_neox_japanese}}};

}  // namespace
}  // namespace memest::hf
