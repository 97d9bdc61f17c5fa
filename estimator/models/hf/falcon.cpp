// models/falcon/modeling_falcon.py.
#include "models/hf/block.h"
#include "models/hf/loss.h"

namespace memest::hf {
namespace {

/// FalconLinear: input @ weight.T, and the bias added to that.
class FalconLinear final : public Module<FalconLinear>, public nn::Adaptable {
 public:
  FalconLinear(I in, I out, bool bias) : Module("FalconLinear"), bias_(bias) {
    new_parameter("weight", {out, in});
    new_parameter("bias", {out}, bias);
  }
  X forward(const X& input) {
    if (quantized()) return adapted(input, product(input, parameter(0), parameter(1)));
    X hidden_states = input.matmul(aten("numpy_T", {Tensor(parameter(0))}));
    if (bias_) hidden_states = hidden_states.add(X(parameter(1)));
    return adapted(input, hidden_states);
  }

 private:
  bool bias_;
};

struct FalconParts {
  explicit FalconParts(const DecoderConfig& c)
      : new_decoder(c.file.boolean_or("new_decoder_architecture", false)),
        multi_query(c.file.boolean_or("multi_query", true)),
        parallel(c.file.boolean_or("parallel_attn", true)),
        bias(c.file.boolean_or("bias", false)),
        alibi(c.file.boolean_or("alibi", false)),
        kv_heads(new_decoder || !multi_query ? c.file.size_or("num_kv_heads", c.heads) : 1),
        norms(c.file.integer_or("num_ln_in_parallel_attn", new_decoder ? 2 : 1)) {
    if (new_decoder && c.heads % kv_heads != 0)
      throw c.file.error("num_kv_heads", std::to_string(c.heads) + " attention heads are not a multiple of it");
    if (!new_decoder && !multi_query && kv_heads != c.heads)
      throw c.file.error("num_kv_heads", "without multi_query and new_decoder_architecture there are as many as attention heads");
    if (new_decoder && !parallel) throw c.file.error("parallel_attn", "new_decoder_architecture has its attention beside its MLP");
    if (!new_decoder && parallel && norms == 2) throw c.file.error("num_ln_in_parallel_attn", "two norms need new_decoder_architecture");
  }
  bool new_decoder, multi_query, parallel, bias, alibi;
  I kv_heads, norms;
};

class FalconAttention final : public Module<FalconAttention> {
 public:
  FalconAttention(const DecoderConfig& c, const FalconParts& p, I layer)
      : Module("FalconAttention"), options_(c.options), p_(p), layer_(layer), heads_(c.heads), head_dim_(c.head_dim) {
    const I out = p.new_decoder ? (2 * p.kv_heads + c.heads) * c.head_dim : p.multi_query ? c.hidden + 2 * c.head_dim : 3 * c.hidden;
    query_key_value = &child<FalconLinear>("query_key_value", c.hidden, out, p.bias);
    dense = &child<FalconLinear>("dense", c.hidden, c.hidden, p.bias);
    dropout_ = c.attention_dropout;
    attention_dropout = &child<Dropout>("attention_dropout", dropout_);
  }
  Pair forward(X hidden_states, const BlockCall* call) {
    X fused_qkv = (*query_key_value)(hidden_states);
    auto [query_layer, key_layer, value_layer] = split_heads(fused_qkv);
    const I batch = query_layer.size(0), length = query_layer.size(1), kv_heads = p_.new_decoder ? heads_ : p_.kv_heads;
    query_layer = query_layer.transpose(1, 2).reshape({batch, heads_, length, head_dim_});
    key_layer = key_layer.transpose(1, 2).reshape({batch, kv_heads, length, head_dim_});
    value_layer = value_layer.transpose(1, 2).reshape({batch, kv_heads, length, head_dim_});
    if (!call->alibi)
      std::tie(query_layer, key_layer) =
          apply_rotary_pos_emb(query_layer, key_layer, call->position_embeddings.first, call->position_embeddings.second);
    if (call->cache) std::tie(key_layer, value_layer) = call->cache->update(key_layer, value_layer, layer_);
    const I kv_length = key_layer.size(-2);
    const bool sdpa = options_.attention == Attention::sdpa;
    const double dropout = call->alibi && training ? dropout_ : 0.0;
    X attn_output, weights;
    if (sdpa) {
      attn_output = aten("scaled_dot_product_attention", {Tensor(query_layer), Tensor(key_layer), Tensor(value_layer),
                                                          to_value(Tensor(call->mask)), dropout, !call->mask && length > 1});
    } else if (!call->alibi) {
      weights = query_layer.matmul(key_layer.transpose(-1, -2));
      aten("div_", {Tensor(weights), 8.0});
      weights = weights.add(call->mask).softmax(-1, hidden_states.dtype());
      attn_output = weights.matmul(value_layer);
    } else {
      X matmul_result = query_layer.matmul(key_layer.transpose(-1, -2));
      X attention_scores = matmul_result.view({batch, heads_, length, kv_length});
      if (is_reduced_floating(attention_scores.dtype())) attention_scores = attention_scores.to(DType::float32);
      X attention_logits = attention_scores.add(call->alibi.view({batch, heads_, 1, -1}));
      aten("mul_", {Tensor(attention_logits), 0.125});
      weights = attention_logits.add(call->mask).softmax(-1, hidden_states.dtype());
      weights = (*attention_dropout)(weights);
      X attention_probs_reshaped = weights.view({batch, heads_, length, kv_length});
      attn_output = attention_probs_reshaped.matmul(value_layer).flatten(0, 1);
      attn_output = merge_heads(attn_output);
      attn_output = (*dense)(attn_output);
      return {attn_output, weights};
    }
    if (!call->alibi) {
      attn_output = attn_output.view({batch, heads_, length, head_dim_});
      attn_output = attn_output.permute({0, 2, 1, 3});
    } else {
      attn_output = attn_output.transpose(1, 2);
    }
    attn_output = attn_output.reshape({batch, length, heads_ * head_dim_});
    attn_output = (*dense)(attn_output);
    return {attn_output, weights};
  }

 private:
  struct Heads {
    X query, key, value;
  };
  /// x[..., [i], :] along dimension 2 or 3: the list becomes a tensor on the device.
  static X taken(const X& x, int dim) {
    Values indices(std::size_t(dim), Value{});
    indices.emplace_back(Tensor(empty({1}, DType::int64)));
    return aten("index", {Tensor(x), make_list(std::move(indices))});
  }
  Heads split_heads(const X& fused) const {
    const I batch = fused.size(0), length = fused.size(1);
    if (p_.new_decoder) {
      X qkv = fused.view({batch, length, -1, heads_ / p_.kv_heads + 2, head_dim_});
      X query = qkv.slice(3, std::nullopt, -2);
      X key = taken(qkv, 3);
      X value = taken(qkv, 3);
      key = aten("broadcast_to", {Tensor(key), list_of(query.sizes())});
      value = aten("broadcast_to", {Tensor(value), list_of(query.sizes())});
      X flat_query = query.flatten(2, 3);
      X flat_key = key.flatten(2, 3);
      X flat_value = value.flatten(2, 3);
      return {std::move(flat_query), std::move(flat_key), std::move(flat_value)};
    }
    if (!p_.multi_query) {
      X qkv = fused.view({batch, length, heads_, 3, head_dim_});
      X query = qkv.select(-2, 0), key = qkv.select(-2, 1), value = qkv.select(-2, 2);
      return {std::move(query), std::move(key), std::move(value)};
    }
    X qkv = fused.view({batch, length, heads_ + 2, head_dim_});
    X query = qkv.slice(2, std::nullopt, -2);
    X key = taken(qkv, 2);
    X value = taken(qkv, 2);
    return {std::move(query), std::move(key), std::move(value)};
  }
  X merge_heads(const X& given) const {
    const I batch = given.size(0) / heads_, length = given.size(1);
    X x = given.view({batch, heads_, length, head_dim_});
    x = x.permute({0, 2, 1, 3});
    return std::move(x).reshape({batch, length, heads_ * head_dim_});
  }

  const Options options_;
  FalconParts p_;
  I layer_, heads_, head_dim_;
  double dropout_;
  FalconLinear *query_key_value, *dense;
  Dropout* attention_dropout;
};

class FalconMLP final : public Unary {
 public:
  FalconMLP(const DecoderConfig& c, const FalconParts& p) : Unary("FalconMLP") {
    const I width = c.file.size_or("ffn_hidden_size", 4 * c.hidden);
    dense_h_to_4h = &child<FalconLinear>("dense_h_to_4h", c.hidden, width, p.bias);
    act = &child<Activation>("act", c.file.text_or("activation", "gelu"));
    dense_4h_to_h = &child<FalconLinear>("dense_4h_to_h", width, c.hidden, p.bias);
  }

 protected:
  X forward(X x) override {
    x = (*act)((*dense_h_to_4h)(x));
    x = (*dense_4h_to_h)(x);
    return x;
  }

 private:
  FalconLinear *dense_h_to_4h, *dense_4h_to_h;
  Activation* act;
};

class FalconDecoderLayer final : public DecoderBlock {
 public:
  FalconDecoderLayer(const DecoderConfig& c, const FalconParts& p, I layer)
      : DecoderBlock("FalconDecoderLayer", c.options),
        p_(p),
        hidden_dropout_(c.file.number_or("hidden_dropout", 0.0)),
        attention_dropout_(c.attention_dropout) {
    self_attention = &child<FalconAttention>("self_attention", c, p, layer);
    mlp_ = register_module("mlp", std::make_shared<FalconMLP>(c, p));
    if (!p.parallel) {
      second_norm = &child<LayerNorm>("post_attention_layernorm", c.hidden);
      first_norm = &child<LayerNorm>("input_layernorm", c.hidden);
    } else if (p.norms == 2) {
      first_norm = &child<LayerNorm>("ln_attn", c.hidden);
      second_norm = &child<LayerNorm>("ln_mlp", c.hidden);
    } else {
      first_norm = &child<LayerNorm>("input_layernorm", c.hidden);
    }
  }

 protected:
  Pair forward(X hidden_states, const BlockCall& call) override {
    X residual = hidden_states;
    X attention_layernorm_out = (*first_norm)(hidden_states), mlp_layernorm_out;
    if (p_.parallel && second_norm) mlp_layernorm_out = (*second_norm)(hidden_states);
    auto [attention_output, attn_weights] = (*self_attention)(attention_layernorm_out, &call);
    if (!p_.parallel) {
      residual = dropout_add(attention_output, residual, attention_dropout_, training);
      mlp_layernorm_out = (*second_norm)(residual);
    } else if (!second_norm) {
      mlp_layernorm_out = attention_layernorm_out;
    }
    X mlp_output = (*mlp_)(mlp_layernorm_out);
    if (p_.parallel) mlp_output = mlp_output.add_(attention_output);
    X output = dropout_add(mlp_output, residual, hidden_dropout_, training);
    return {output, attn_weights};
  }

 private:
  FalconParts p_;
  double hidden_dropout_, attention_dropout_;
  FalconAttention* self_attention;
  UnaryPtr mlp_;
  LayerNorm *first_norm, *second_norm = nullptr;
};

class FalconModel final : public BlockModel {
 public:
  explicit FalconModel(const std::shared_ptr<const DecoderConfig>& c) : BlockModel("FalconModel", c), p_(*c) {
    check_heads(*c);
    word_embeddings = &child<Embedding>("word_embeddings", c->vocab, c->hidden);
    add_blocks("h", [&](I i) { return std::make_shared<FalconDecoderLayer>(*c, p_, i); });
    ln_f = &child<LayerNorm>("ln_f", c->hidden);
    rotary_emb = register_module("rotary_emb", std::make_shared<RotaryEmbedding>("FalconRotaryEmbedding", c->file, c->head_dim));
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*word_embeddings)(input_ids);
    CachePtr cache = new_cache(*c_, training);
    X alibi, mask;
    if (p_.alibi) {
      mask = ones({inputs_embeds.size(0), inputs_embeds.size(1)}, DType::int64);
      alibi = build_alibi_tensor(mask, inputs_embeds.dtype());
    }
    X position_ids = default_position_ids(inputs_embeds);
    X causal_mask = create_causal_mask(
        {.options = c_->options, .inputs_embeds = inputs_embeds, .cache = cache.get(), .position_ids = position_ids, .allow_skip = false});
    if (alibi) {
      if (causal_mask.dtype() == DType::boolean) {
        X zero = full({}, 0.0, inputs_embeds.dtype());
        causal_mask = where(causal_mask, std::move(zero), -1e30);
      }
      alibi = alibi.reshape({inputs_embeds.size(0), -1, 1, inputs_embeds.size(1)});
      X scaled = alibi.div(8.0);
      X masked = aten("lt", {Tensor(causal_mask), I{-1}});
      causal_mask = aten("masked_fill", {Tensor(std::move(scaled)), Tensor(std::move(masked)), -1e30});
    }
    X hidden_states = inputs_embeds;
    Pair position_embeddings = (*rotary_emb)(hidden_states, position_ids);
    Pair outputs;
    hidden_states = run_blocks(std::move(hidden_states), {causal_mask, alibi, position_embeddings, position_ids, cache.get()}, outputs);
    hidden_states = (*ln_f)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  X build_alibi_tensor(const X& attention_mask, DType dtype) const {
    const I batch = attention_mask.size(0), length = attention_mask.size(1);
    std::vector<X> names;
    X slopes = alibi_slopes(c_->heads, names);
    X sums = aten("cumsum", {Tensor(attention_mask), I{-1}});
    X arange_tensor = std::move(sums).sub(1).mul(attention_mask).whole_slices(1).unsqueeze(1);
    X alibi = slopes.unsqueeze(-1).to(DType::bfloat16).mul(arange_tensor);
    X result = alibi.reshape({batch * c_->heads, 1, length}).to(dtype);
    return leave(std::move(result), slopes, arange_tensor, alibi);
  }

  FalconParts p_;
  Embedding* word_embeddings;
  LayerNorm* ln_f;
  std::shared_ptr<RotaryEmbedding> rotary_emb;
};

NetworkPtr falcon(const Config& given, const Options& o) {
  Config config = given;
  if (auto* n_embed = given.find("n_embed"); n_embed && given.has("n_embed")) config.set("hidden_size", *n_embed);
  DecoderForm f;
  f.prefix = "Falcon";
  f.base_prefix = "transformer";
  f.token_classifier_name = "classifier";
  f.token_classification_loss = flat_cross_entropy;
  f.embedding_name = "word_embeddings";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) { return std::make_shared<FalconModel>(c); };
  return make_decoder(config, o, std::move(f));
}
const Family falcon_family{{"falcon"}, decoder_classes("Falcon", falcon, {Task::token_cls, Task::question_answering})};

}  // namespace
}  // namespace memest::hf
