// models/bloom/modeling_bloom.py.
#include "models/hf/block.h"
#include "models/hf/generate.h"
#include "models/hf/loss.h"

namespace memest::hf {
namespace {

/// tanh(0.79788456 * x * (1 + 0.044715 * x * x))
X bloom_tanh(const X& x) {
  X scaled = x.mul(0.79788456);
  X inner = x.mul(0.044715).mul(x).add(1.0);
  X product = std::move(scaled).mul(std::move(inner));
  return std::move(product).tanh();
}
X bloom_gelu_forward(const X& x) {
  X half = x.mul(0.5);
  X factor = bloom_tanh(x).add(1.0);
  return std::move(half).mul(std::move(factor));
}
X bloom_gelu_back(const X& g, const X& x) {
  X tanh_out = bloom_tanh(x);
  X half = x.mul(0.5);
  X left = tanh_out.mul(tanh_out).add(1.0);  // 1 - tanh_out * tanh_out
  X right = x.mul(0.1070322243).mul(x).add(0.79788456);
  X product = std::move(left).mul(std::move(right));
  X first = std::move(half).mul(std::move(product));
  X second = tanh_out.add(1.0).mul(0.5);
  X ff = std::move(first).add(std::move(second));
  return ff.mul(g);
}

/// BloomGelu: an autograd.Function that saves its input alone.
class BloomGelu final : public Module<BloomGelu> {
 public:
  BloomGelu() : Module("BloomGelu") {}
  X forward(const X& x) {
    auto n = node("GeLUFunctionBackward", {x}, {x}, [](Backward& w, T saved) { w.out[0] = bloom_gelu_back(X(w.grad[0]), X(saved)); });
    X result;
    {
      NoGrad guard;
      result = bloom_gelu_forward(x);
    }
    if (n) n.outputs({result});
    return result;
  }
};

/// config.pretraining_tp and slow_but_exact: a projection summed from slices.
class SlicedLinear {
 public:
  SlicedLinear(const DecoderConfig& c, Linear& linear)
      : linear_(linear), slices_(c.file.boolean_or("slow_but_exact", false) ? c.file.integer_or("pretraining_tp", 1) : 1) {}
  X operator()(const X& x, const X& like) const {
    if (slices_ <= 1) return linear_(x);
    X output = zeros(like.sizes(), like.dtype());
    const double width = double(x.size(-1)) / double(slices_);
    for (I i = 0; i < slices_; ++i) {
      const I from = I(double(i) * width), to = I(double(i + 1) * width);
      X slice = x.slice(2, from, to), weight = X(linear_.weight()).slice(1, from, to);
      X part = ops::linear(std::move(slice), std::move(weight), Tensor());
      output = output.add(part);
    }
    return output;
  }

 private:
  Linear& linear_;
  I slices_;
};

class BloomAttention final : public Module<BloomAttention> {
 public:
  BloomAttention(const DecoderConfig& c, I layer)
      : Module("BloomAttention"),
        layer_(layer),
        heads_(c.heads),
        head_dim_(c.head_dim),
        hidden_dropout_(c.file.number_or("hidden_dropout", 0.0)),
        query_key_value(child<Linear>("query_key_value", c.hidden, 3 * c.hidden)),
        dense(c, child<Linear>("dense", c.hidden, c.hidden)),
        attention_dropout(child<Dropout>("attention_dropout", c.attention_dropout)) {}
  Pair forward(X hidden_states, X residual, const BlockCall* call) {
    const I batch = hidden_states.size(0), length = hidden_states.size(1);
    X fused_qkv = query_key_value(hidden_states);
    X query_layer, key_layer, value_layer;
    {
      X parts = fused_qkv.view({batch, length, heads_, 3, head_dim_});
      query_layer = parts.select(-2, 0).transpose(1, 2);
      key_layer = parts.select(-2, 1).transpose(1, 2);
      value_layer = parts.select(-2, 2).transpose(1, 2);
    }
    if (call->cache) std::tie(key_layer, value_layer) = call->cache->update(key_layer, value_layer, layer_);
    query_layer = query_layer.reshape({batch * heads_, -1, head_dim_});
    key_layer = key_layer.reshape({batch * heads_, -1, head_dim_}).transpose(-1, -2);
    value_layer = value_layer.reshape({batch * heads_, -1, head_dim_});
    X attention_scores = aten("baddbmm", {Tensor(call->alibi), Tensor(query_layer), Tensor(key_layer)}, {{"beta", 1.0}, {"alpha", 0.125}});
    X attn_weights = attention_scores.view({batch, heads_, length, -1});
    if (call->mask) attn_weights = attn_weights.add(call->mask);
    X attention_probs = attn_weights.softmax(-1, DType::float32).to(query_layer.dtype());
    attention_probs = attention_dropout(attention_probs);
    X attention_probs_reshaped = attention_probs.view({batch * heads_, length, -1});
    X context_layer = attention_probs_reshaped.bmm(value_layer);
    X merged = context_layer.view({batch, heads_, length, head_dim_}).permute({0, 2, 1, 3}).reshape({batch, length, heads_ * head_dim_});
    context_layer = std::move(merged);
    X output_tensor = dense(context_layer, context_layer);
    output_tensor = dropout_add(output_tensor, residual, hidden_dropout_, training);
    return {output_tensor, attention_probs};
  }

 private:
  I layer_, heads_, head_dim_;
  double hidden_dropout_;
  Linear& query_key_value;
  SlicedLinear dense;
  Dropout& attention_dropout;
};

class BloomMLP final : public Module<BloomMLP> {
 public:
  explicit BloomMLP(const DecoderConfig& c)
      : Module("BloomMLP"),
        dense_h_to_4h(child<Linear>("dense_h_to_4h", c.hidden, 4 * c.hidden)),
        gelu_impl(child<BloomGelu>("gelu_impl")),
        dense_4h_to_h(c, child<Linear>("dense_4h_to_h", 4 * c.hidden, c.hidden)),
        hidden_dropout_(c.file.number_or("hidden_dropout", 0.0)) {}
  X forward(X hidden_states, X residual) {
    hidden_states = gelu_impl(dense_h_to_4h(hidden_states));
    X intermediate_output = dense_4h_to_h(hidden_states, residual);
    X output = dropout_add(intermediate_output, residual, hidden_dropout_, training);
    return output;
  }

 private:
  Linear& dense_h_to_4h;
  BloomGelu& gelu_impl;
  SlicedLinear dense_4h_to_h;
  double hidden_dropout_;
};

class BloomBlock final : public DecoderBlock {
 public:
  BloomBlock(const DecoderConfig& c, I layer)
      : DecoderBlock("BloomBlock", c.options),
        input_layernorm(child<LayerNorm>("input_layernorm", c.hidden)),
        self_attention(child<BloomAttention>("self_attention", c, layer)),
        post_attention_layernorm(child<LayerNorm>("post_attention_layernorm", c.hidden)),
        mlp(child<BloomMLP>("mlp", c)),
        after_norm_(c.file.boolean_or("apply_residual_connection_post_layernorm", false)) {}

 protected:
  Pair forward(X hidden_states, const BlockCall& call) override {
    X layernorm_output = input_layernorm(hidden_states);
    X residual = after_norm_ ? layernorm_output : hidden_states;
    auto [attention_output, attn_weights] = self_attention(layernorm_output, residual, &call);
    layernorm_output = post_attention_layernorm(attention_output);
    residual = after_norm_ ? layernorm_output : attention_output;
    X output = mlp(layernorm_output, residual);
    return {output, attn_weights};
  }

 private:
  LayerNorm& input_layernorm;
  BloomAttention& self_attention;
  LayerNorm& post_attention_layernorm;
  BloomMLP& mlp;
  bool after_norm_;
};

class BloomModel final : public BlockModel, public WithoutPositions {
 public:
  explicit BloomModel(const std::shared_ptr<const DecoderConfig>& c) : BlockModel("BloomModel", c) {
    check_heads(*c);
    word_embeddings = &child<Embedding>("word_embeddings", c->vocab, c->hidden);
    word_embeddings_layernorm = &child<LayerNorm>("word_embeddings_layernorm", c->hidden);
    add_blocks("h", [&](I i) { return std::make_shared<BloomBlock>(*c, i); });
    ln_f = &child<LayerNorm>("ln_f", c->hidden);
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*word_embeddings)(input_ids);
    CachePtr cache = new_cache(*c_, training);
    const I batch = inputs_embeds.size(0);
    const I length = cache && !cache->layers().empty() ? cache->layers()[0].mask_sizes(inputs_embeds.size(1)).first : inputs_embeds.size(1);
    X seq_length_with_past;  // a tensor where the cache counts with one
    if (const X past = cache && !cache->layers().empty() ? cache->layers()[0].query_offset() : X())
      seq_length_with_past = past.add(inputs_embeds.size(1));
    X hidden_states = (*word_embeddings_layernorm)(inputs_embeds);
    X slopes = get_alibi_slopes();
    X positions = arange(length);
    X alibi = slopes.whole_slices(1).unsqueeze(1).unsqueeze(2).mul(std::move(positions));
    alibi = aten("repeat", {Tensor(alibi), list_of(Dims{batch, 1, 1})}).to(hidden_states.dtype());
    X causal_mask = create_causal_mask({c_->options, inputs_embeds, cache.get()});
    Pair outputs;
    hidden_states = run_blocks(std::move(hidden_states), {causal_mask, alibi, {}, {}, cache.get()}, outputs);
    hidden_states = (*ln_f)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  X get_alibi_slopes() const {
    std::vector<X> names;
    return alibi_slopes(c_->heads, names);
  }
  Embedding* word_embeddings;
  LayerNorm *word_embeddings_layernorm, *ln_f;
};

NetworkPtr bloom(const Config& given, const Options& o) {
  Config config = given;
  if (given.has("n_embed")) config.set("hidden_size", *given.find("n_embed"));
  DecoderForm f;
  f.prefix = "Bloom";
  f.base_prefix = "transformer";
  f.token_classifier_name = "classifier";
  f.token_classification_loss = flat_cross_entropy;
  f.embedding_name = "word_embeddings";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) { return std::make_shared<BloomModel>(c); };
  return make_decoder(config, eager_only(o), std::move(f));
}
const Family bloom_family{{"bloom"}, decoder_classes("Bloom", bloom, {Task::token_cls, Task::question_answering})};

}  // namespace
}  // namespace memest::hf
