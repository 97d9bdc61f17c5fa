// models/prophetnet/modeling_prophetnet.py: a decoder that predicts the next n tokens in streams of their own.
#include "fake/checkpoint.h"
#include "models/hf/loss.h"
#include "models/hf/seq2seq.h"

namespace memest::hf {
namespace {

struct ProphetConfig {
  ProphetConfig(const Config& f, const Options& o) : file(f), options(o) {
    vocab = f.size("vocab_size");
    hidden = f.size("hidden_size");
    positions = f.size("max_position_embeddings");
    ngram = f.size("ngram");
    buckets = f.size("num_buckets");
    dropout = f.number_or("dropout", 0.1);
    attention_dropout = f.number_or("attention_dropout", 0.1);
    activation_dropout = f.number_or("activation_dropout", 0.1);
    act = f.text_or("activation_function", "gelu");
    pad_token = f.integer_if("pad_token_id");
    tie = f.boolean_or("tie_word_embeddings", true);
    for (const char* side : {"encoder", "decoder"}) {
      const std::string heads = "num_" + std::string(side) + "_attention_heads", layers = "num_" + std::string(side) + "_layers";
      if (hidden % f.size(heads) != 0)
        throw f.error(heads,
                      "expected a divisor of the hidden_size " + std::to_string(hidden) + ", found " + std::to_string(f.size(heads)));
      if (f.size(layers) > 10'000) throw f.error(layers, "expected at most 10000 layers, found " + std::to_string(f.size(layers)));
    }
    if (f.number_or("eps", 0.0) > 0) throw f.error("eps", "memest does not build ProphetNet's label smoothing");
  }
  I heads(bool decodes) const { return file.size(decodes ? "num_decoder_attention_heads" : "num_encoder_attention_heads"); }
  I layers(bool decodes) const { return file.size(decodes ? "num_decoder_layers" : "num_encoder_layers"); }
  I intermediate(bool decodes) const { return file.size(decodes ? "decoder_ffn_dim" : "encoder_ffn_dim"); }
  Config file;
  Options options;
  I vocab, hidden, positions, ngram, buckets;
  double dropout, attention_dropout, activation_dropout;
  std::string act;
  std::optional<I> pad_token;
  bool tie;
};

X einsum(const char* equation, const X& a, const X& b) {
  return aten("einsum", {std::string(equation), make_list({Tensor(a), Tensor(b)})});
}
X repeat(const X& x, const Dims& times) { return aten("repeat", {Tensor(x), list_of(times)}); }
X like(const char* op, const X& x) { return aten(op, {Tensor(x)}); }
X both(const char* op, const X& a, const X& b) { return aten(op, {Tensor(a), Tensor(b)}); }

X ngram_attention_bias(I length, I ngram, DType dtype) {
  X rows = arange(length).view({1, length, 1});
  X cols = arange(length).view({1, 1, length});
  X stream_offsets = arange(ngram).neg().add(1).view({ngram, 1, 1});
  X left_mask, right_mask;
  {
    X later = both("ge", cols.sub(rows), stream_offsets);
    X inner = aten("ne", {Tensor(cols), I{0}});
    left_mask = both("bitwise_and", later, inner);
    left_mask = leave(std::move(left_mask), later, inner);
  }
  right_mask = both("ne", rows, cols).expand({ngram, length, length});
  X neg_inf_t = full({}, -1e30, dtype);
  X zero_t = zeros({}, dtype);
  X left_block = where(left_mask, neg_inf_t, zero_t);
  X right_block = where(right_mask, neg_inf_t, zero_t);
  X result = cat({left_block, right_block}, 2);
  return leave(std::move(result), rows, cols, stream_offsets, left_mask, right_mask, neg_inf_t, zero_t, left_block, right_block);
}
X compute_relative_buckets(const X& relative_positions, I buckets) {
  X inv_relative_positions = relative_positions.neg();
  X largest = both("maximum", inv_relative_positions, like("zeros_like", inv_relative_positions));
  inv_relative_positions = std::move(largest);
  X is_small = aten("lt", {Tensor(inv_relative_positions), buckets / 2});
  X ratio = inv_relative_positions.to_float().div(1.0);
  X val_if_large = like("log", ratio);
  ratio.reset();
  val_if_large = std::move(val_if_large).div(1.0).mul(1.0).add(1.0);
  X least = both("minimum", val_if_large, like("ones_like", val_if_large).mul(1)).to(DType::int32);
  val_if_large = std::move(least);
  X result;
  {
    X small = inv_relative_positions.to(DType::int32);
    X chosen = where(is_small, small, val_if_large);
    small.reset();
    result = std::move(chosen).add(0);
  }
  return leave(std::move(result), inv_relative_positions, is_small, val_if_large);
}
Pair compute_all_stream_relative_buckets(const X& position_ids, I buckets) {
  const I n = position_ids.size(-1);
  X main = repeat(position_ids.unsqueeze(1), {1, n, 1});
  X moved = main.sub(position_ids.unsqueeze(-1));
  main = std::move(moved);
  X predicting = cat({position_ids.sub(1), position_ids}, -1).unsqueeze(1);
  X repeated = repeat(predicting, {1, n, 1});
  predicting = std::move(repeated);
  moved = predicting.sub(position_ids.unsqueeze(-1));
  predicting = std::move(moved);
  X main_buckets = compute_relative_buckets(main, buckets);
  X predict_buckets = compute_relative_buckets(predicting, buckets);
  return leave(Pair{main_buckets, predict_buckets}, main, predicting);
}

class PositionalEmbeddings final : public Base {
 public:
  explicit PositionalEmbeddings(const ProphetConfig& c) : Base("ProphetNetPositionalEmbeddings"), padding_idx_(c.pad_token.value_or(-1)) {
    new_parameter("weight", {c.positions, c.hidden});
  }
  Pair operator()(I batch, I length) {
    Entered scope(*this);
    if (const I most = parameter(0).size(0) - 2; length > most)  // the predicting streams reach one further, from position 1 on
      throw Error("ProphetNet has positions for " + std::to_string(most) + " tokens, but the sequence has " + std::to_string(length),
                  "its length is at most the config's max_position_embeddings, less 2");
    X attention_mask = aten("ones", {list_of(Dims{batch, length})}, {{"dtype", DType::int64}});
    X position_ids = aten("cumsum", {Tensor(attention_mask), I{1}}).mul(attention_mask).add(0);
    X clamped = aten("clamp", {Tensor(position_ids), I{0}, I{1}});
    position_ids = std::move(clamped);
    X embedded = embed(position_ids);
    return leave(Pair{embedded, position_ids}, attention_mask);
  }
  X embed(const X& position_ids) { return ops::embedding(parameter(0), position_ids, padding_idx_, false, false); }

 private:
  using Base::forward;
  I padding_idx_;
};

class Attention final : public Base {
 public:
  Attention(const ProphetConfig& c, I heads, I layer)
      : Base("ProphetNetAttention"),
        layer_(layer),
        heads_(heads),
        head_dim_(c.hidden / heads),
        dropout_(c.dropout),
        attention_dropout_(c.attention_dropout),
        key_proj(child<Linear>("key_proj", c.hidden, c.hidden)),
        value_proj(child<Linear>("value_proj", c.hidden, c.hidden)),
        query_proj(child<Linear>("query_proj", c.hidden, c.hidden)),
        out_proj(child<Linear>("out_proj", c.hidden, c.hidden)) {}
  X operator()(X hidden_states, X key_value_states, Cache* cache) {
    Entered scope(*this);
    const I batch = hidden_states.size(0), tgt_len = hidden_states.size(1);
    X query_states = query_proj(hidden_states).div(1.0);
    const X& current_states = key_value_states ? key_value_states : hidden_states;
    X key_states = key_proj(current_states);
    X value_states = value_proj(current_states);
    key_states = key_states.view({batch, -1, heads_, head_dim_}).transpose(1, 2);
    value_states = value_states.view({batch, -1, heads_, head_dim_}).transpose(1, 2);
    if (cache) std::tie(key_states, value_states) = cache->update(key_states, value_states, layer_);
    query_states = query_states.view({batch, tgt_len, heads_, head_dim_}).transpose(1, 2);
    X attn_weights = einsum("bsij,bsjk->bsik", query_states, key_states.transpose(2, 3));
    attn_weights = attn_weights.softmax(-1);
    X attn_probs = ops::dropout(attn_weights, attention_dropout_, training);
    X attn_output = einsum("bsij,bsjk->bsik", attn_probs, value_states);
    attn_output = attn_output.transpose(1, 2).reshape({batch, tgt_len, heads_ * head_dim_});
    attn_output = out_proj(attn_output);
    attn_output = ops::dropout(attn_output, dropout_, training);
    (hidden_states.reset(), key_value_states.reset());
    return leave(std::move(attn_output), query_states, key_states, value_states, attn_weights, attn_probs);
  }

 private:
  using Base::forward;
  I layer_, heads_, head_dim_;
  double dropout_, attention_dropout_;
  Linear &key_proj, &value_proj, &query_proj, &out_proj;
};

/// What a decoder layer gets beside the hidden states.
struct StreamCall {
  X attention_mask, encoder_hidden_states, predict_mask, main_buckets, predict_buckets;
  EncoderDecoderCache* cache = nullptr;
};

class NgramSelfAttention final : public Base {
 public:
  NgramSelfAttention(const ProphetConfig& c, I layer)
      : Base("ProphetNetNgramSelfAttention"),
        layer_(layer),
        heads_(c.heads(true)),
        head_dim_(c.hidden / heads_),
        ngram_(c.ngram),
        buckets_(c.buckets),
        dropout_(c.dropout),
        attention_dropout_(c.attention_dropout),
        key_proj(child<Linear>("key_proj", c.hidden, c.hidden)),
        value_proj(child<Linear>("value_proj", c.hidden, c.hidden)),
        query_proj(child<Linear>("query_proj", c.hidden, c.hidden)),
        out_proj(child<Linear>("out_proj", c.hidden, c.hidden)),
        relative_pos_embeddings(child<Linear>("relative_pos_embeddings", c.hidden, c.buckets * heads_)) {}

  struct Output {
    X attn_output, main_attn_probs, predict_attn_probs;
  };
  Output operator()(X hidden_states, const StreamCall& call) {
    Entered scope(*this);
    const I batch = hidden_states.size(0), hidden = hidden_states.size(2), streams = 1 + ngram_, length = hidden_states.size(1) / streams;
    X query_states = query_proj(hidden_states);
    X key_states = key_proj(hidden_states);
    X value_states = value_proj(hidden_states);
    query_states = query_states.div(1.0);
    for (X* x : {&query_states, &key_states, &value_states}) *x = x->view({batch, -1, heads_, head_dim_}).transpose(1, 2).contiguous();
    std::vector<X> hidden_list = hidden_states.chunk(streams, 1), queries = query_states.chunk(streams, 2),
                   keys = key_states.chunk(streams, 2), values = value_states.chunk(streams, 2);
    X main_key_states = keys[0], main_value_states = values[0];
    if (call.cache)
      std::tie(main_key_states, main_value_states) = call.cache->self_attention.update(main_key_states, main_value_states, layer_);
    X main_attn_weights = einsum("bntc,bncs->bnts", queries[0], main_key_states.transpose(2, 3));
    X main_relative = main_relative_pos_embeddings(hidden_list[0], main_attn_weights, call.main_buckets);
    main_attn_weights = main_attn_weights.add(main_relative);
    if (call.attention_mask) main_attn_weights = main_attn_weights.add(call.attention_mask);
    Output out;
    out.main_attn_probs = main_attn_weights.softmax(-1, DType::float32).to(main_attn_weights.dtype());
    out.main_attn_probs = ops::dropout(out.main_attn_probs, attention_dropout_, training);
    X main_attn_output = einsum("bntc,bncs->bnts", out.main_attn_probs, main_value_states);
    main_attn_output = main_attn_output.transpose(1, 2).reshape({batch, 1, length, hidden});
    main_attn_output = out_proj(main_attn_output);

    auto rest = [](const std::vector<X>& list) { return std::vector<X>(list.begin() + 1, list.end()); };
    X predict_query_states = stack(rest(queries), 1).view({batch, ngram_, heads_, length, head_dim_});
    X predict_key_states;
    {
      std::vector<X> joined;
      for (auto& key : rest(keys)) joined.push_back(cat({main_key_states, key}, 2));
      predict_key_states = stack(joined, 1);
      while (!joined.empty()) joined.pop_back();
    }
    X predict_hidden_states = stack(rest(hidden_list), 2);
    X predict_value_states;
    {
      std::vector<X> joined;
      for (auto& value : rest(values)) joined.push_back(cat({main_value_states, value}, 2).unsqueeze(2));
      predict_value_states = cat(joined, 2);
      while (!joined.empty()) joined.pop_back();
    }
    X predict_attn_weights = einsum("bnhtc,bnhsc->bnhts", predict_query_states, predict_key_states);
    X predict_relative = predict_relative_pos_embeddings(predict_hidden_states, call.predict_buckets);
    predict_attn_weights = predict_attn_weights.add(predict_relative);
    X predict_mask;
    if (call.predict_mask) {
      predict_mask = call.predict_mask.permute({0, 2, 1, 3, 4}).to(predict_attn_weights.dtype());
      predict_attn_weights = predict_attn_weights.add(predict_mask);
    }
    out.predict_attn_probs = predict_attn_weights.softmax(-1, DType::float32).to(predict_attn_weights.dtype());
    out.predict_attn_probs = ops::dropout(out.predict_attn_probs, attention_dropout_, training);
    X predict_attn_output = einsum("bnhts,bnhsc->bnhtc", out.predict_attn_probs, predict_value_states.transpose(1, 2));
    predict_attn_output = predict_attn_output.transpose(2, 3);
    predict_attn_output = predict_attn_output.reshape({batch, ngram_, length, hidden});
    predict_attn_output = out_proj(predict_attn_output);
    out.attn_output = cat({main_attn_output, predict_attn_output}, 1).view({batch, -1, hidden});
    out.attn_output = ops::dropout(out.attn_output, dropout_, training);
    hidden_states.reset();
    predict_mask.reset();
    queries.clear(), keys.clear(), values.clear(), hidden_list.clear();
    return leave(out, query_states, key_states, value_states, main_key_states, main_value_states, main_attn_weights, main_relative,
                 main_attn_output, predict_query_states, predict_key_states, predict_hidden_states, predict_value_states,
                 predict_attn_weights, predict_relative, predict_attn_output);
  }

 private:
  using Base::forward;
  X main_relative_pos_embeddings(const X& hidden_states, const X& attn_weights, X buckets) {
    const Dims shape = attn_weights.sizes();
    X rel_pos_embeddings = relative_pos_embeddings(hidden_states);
    rel_pos_embeddings = rel_pos_embeddings.view({shape[0], rel_pos_embeddings.size(1), buckets_, heads_});
    rel_pos_embeddings = rel_pos_embeddings.permute({0, 3, 1, 2});
    rel_pos_embeddings = rel_pos_embeddings.reshape({shape[0], shape[1], shape[2], -1});
    buckets = repeat(buckets, {1, heads_, 1});
    buckets = buckets.view({-1, buckets.size(-1)});
    buckets = buckets.to(DType::int64);
    rel_pos_embeddings = rel_pos_embeddings.reshape({-1, rel_pos_embeddings.size(-1)});
    X main = aten("gather", {Tensor(rel_pos_embeddings), I{1}, Tensor(buckets)});
    main = main.view({shape[0], shape[1], shape[2], -1});
    return leave(std::move(main), buckets, rel_pos_embeddings);
  }
  X predict_relative_pos_embeddings(X hidden_states, X buckets) {
    const I batch = hidden_states.size(0), length = hidden_states.size(1);
    hidden_states = hidden_states.transpose(1, 2);
    X rel_pos_embeddings = relative_pos_embeddings(hidden_states);
    rel_pos_embeddings = rel_pos_embeddings.view({batch, ngram_, length, buckets_, heads_});
    rel_pos_embeddings = rel_pos_embeddings.permute({0, 2, 1, 4, 3});
    rel_pos_embeddings = rel_pos_embeddings.reshape({-1, buckets_});
    buckets = buckets.unsqueeze(0);
    buckets = repeat(buckets, {ngram_, 1, heads_, 1});
    buckets = buckets.view({-1, buckets.size(-1)}).to(DType::int64);
    X predict = aten("gather", {Tensor(rel_pos_embeddings), I{1}, Tensor(buckets)});
    predict = predict.view({batch, ngram_, heads_, length, -1});
    return leave(std::move(predict), buckets, rel_pos_embeddings);
  }

  I layer_, heads_, head_dim_, ngram_, buckets_;
  double dropout_, attention_dropout_;
  Linear &key_proj, &value_proj, &query_proj, &out_proj, &relative_pos_embeddings;
};

class FeedForward final : public Module<FeedForward> {
 public:
  FeedForward(const ProphetConfig& c, I intermediate_size)
      : Module("ProphetNetFeedForward"),
        dropout_(c.dropout),
        activation_dropout_(c.activation_dropout),
        activation_fn(child<Activation>("activation_fn", c.act)),
        intermediate(child<Linear>("intermediate", c.hidden, intermediate_size)),
        output(child<Linear>("output", intermediate_size, c.hidden)) {}
  X forward(X hidden_states) {
    hidden_states = intermediate(hidden_states);
    hidden_states = activation_fn(hidden_states);
    hidden_states = ops::dropout(hidden_states, activation_dropout_, training);
    hidden_states = output(hidden_states);
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    return hidden_states;
  }

 private:
  double dropout_, activation_dropout_;
  Activation& activation_fn;
  Linear &intermediate, &output;
};

/// ProphetNetEncoderLayer, and ProphetNetDecoderLayer where it decodes.
class Layer final : public Base {
 public:
  Layer(const ProphetConfig& c, I index, bool decodes)
      : Base(decodes ? "ProphetNetDecoderLayer" : "ProphetNetEncoderLayer"),
        checkpoint_(c.options.checkpoint),
        reentrant_(c.options.reentrant) {
    if (decodes)
      ngram_attn = &child<NgramSelfAttention>("self_attn", c, index);
    else
      self_attn = &child<Attention>("self_attn", c, c.heads(false), index);
    self_attn_layer_norm = &child<LayerNorm>("self_attn_layer_norm", c.hidden);
    if (decodes && c.file.boolean_or("add_cross_attention", true)) {
      cross_attn = &child<Attention>("cross_attn", c, c.heads(true), index);
      cross_attn_layer_norm = &child<LayerNorm>("cross_attn_layer_norm", c.hidden);
    }
    feed_forward = &child<FeedForward>("feed_forward", c, c.intermediate(decodes));
    feed_forward_layer_norm = &child<LayerNorm>("feed_forward_layer_norm", c.hidden);
  }
  X operator()(X hidden_states, StreamCall call) {
    Entered scope(*this);
    if (checkpoint_ && training && runtime().grad_mode) {
      call.cache = nullptr;
      const bool masked = bool(call.attention_mask), crosses = bool(call.encoder_hidden_states);
      Tensors inputs = {hidden_states};
      if (masked) inputs.push_back(std::exchange(call.attention_mask, {}));
      if (crosses) inputs.push_back(std::exchange(call.encoder_hidden_states, {}));
      Region region = [this, call, masked, crosses](const Tensors& in) {
        StreamCall given = call;
        if (masked) given.attention_mask = X(in[1]);
        if (crosses) given.encoder_hidden_states = X(in.back());
        return Tensors{forward(X(in[0]), given)};
      };
      return reentrant_ ? checkpoint_reentrant(std::move(region), std::move(inputs))[0]
                        : memest::checkpoint(std::move(region), std::move(inputs))[0];
    }
    X result = forward(hidden_states, call);
    hidden_states.reset();
    return result;
  }

 private:
  using Base::forward;
  X forward(X hidden_states, const StreamCall& call) {
    NgramSelfAttention::Output ngram;
    X attention_output;
    if (ngram_attn) {
      ngram = (*ngram_attn)(hidden_states, call);
      hidden_states = (*self_attn_layer_norm)(hidden_states.add(ngram.attn_output));
    } else {
      attention_output = (*self_attn)(hidden_states, {}, nullptr);
      hidden_states = (*self_attn_layer_norm)(attention_output.add(hidden_states));
    }
    if (call.encoder_hidden_states) {
      attention_output = (*cross_attn)(hidden_states, call.encoder_hidden_states, call.cache ? &call.cache->cross_attention : nullptr);
      hidden_states = (*cross_attn_layer_norm)(attention_output.add(hidden_states));
    }
    X feed_forward_output = (*feed_forward)(hidden_states);
    hidden_states = (*feed_forward_layer_norm)(feed_forward_output.add(hidden_states));
    return leave(std::move(hidden_states), ngram.attn_output, ngram.main_attn_probs, ngram.predict_attn_probs, attention_output,
                 feed_forward_output);
  }

  bool checkpoint_, reentrant_;
  NgramSelfAttention* ngram_attn = nullptr;
  Attention *self_attn = nullptr, *cross_attn = nullptr;
  LayerNorm *self_attn_layer_norm, *cross_attn_layer_norm = nullptr, *feed_forward_layer_norm;
  FeedForward* feed_forward;
};

class Encoder final : public Base {
 public:
  explicit Encoder(const ProphetConfig& c)
      : Base("ProphetNetEncoder"),
        dropout_(c.dropout),
        word_embeddings(child<Embedding>("word_embeddings", c.vocab, c.hidden, c.pad_token)),
        position_embeddings(child<PositionalEmbeddings>("position_embeddings", c)),
        embeddings_layer_norm(child<LayerNorm>("embeddings_layer_norm", c.hidden)),
        layers_(*this, "layers", c.layers(false), [&](I i) { return std::make_shared<Layer>(c, i, false); }) {}
  X operator()(X input_ids) {
    Entered scope(*this);
    X inputs_embeds = word_embeddings(input_ids);
    auto [position_embeds, position_ids] = position_embeddings(inputs_embeds.size(0), inputs_embeds.size(1));
    X hidden_states = inputs_embeds.add(position_embeds);
    hidden_states = embeddings_layer_norm(hidden_states);
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, {});
    return leave(std::move(hidden_states), inputs_embeds, position_embeds, position_ids);
  }

 private:
  using Base::forward;
  double dropout_;
  Embedding& word_embeddings;
  PositionalEmbeddings& position_embeddings;
  LayerNorm& embeddings_layer_norm;
  Layers<Layer> layers_;
};

class Decoder final : public Base {
 public:
  explicit Decoder(const ProphetConfig& c)
      : Base("ProphetNetDecoder"),
        c_(c),
        word_embeddings(child<Embedding>("word_embeddings", c.vocab, c.hidden, c.pad_token)),
        position_embeddings(child<PositionalEmbeddings>("position_embeddings", c)),
        ngram_embeddings(child<Embedding>("ngram_embeddings", c.ngram, c.hidden)),
        layers_(*this, "layers", c.layers(true), [&](I i) { return std::make_shared<Layer>(c, i, true); }),
        embeddings_layer_norm(child<LayerNorm>("embeddings_layer_norm", c.hidden)) {}
  struct Output {
    X last_hidden_state, last_hidden_state_ngram;
    std::shared_ptr<EncoderDecoderCache> cache;
  };
  Output operator()(X input_ids, X encoder_hidden_states) {
    Entered scope(*this);
    X inputs_embeds = word_embeddings(input_ids);
    const I batch = inputs_embeds.size(0), length = inputs_embeds.size(1);
    std::shared_ptr<EncoderDecoderCache> cache;
    if (c_.options.use_cache && !(c_.options.checkpoint && training)) cache = std::make_shared<EncoderDecoderCache>();
    auto [main_stream_pos_embed, position_ids] = position_embeddings(batch, length);
    auto [main_buckets, predict_buckets] = buffered_relative_buckets(batch, length);
    X predicting_stream_pos_embed = position_embeddings.embed(position_ids.add(1));
    X hidden_states = inputs_embeds.add(main_stream_pos_embed);
    X table = ngram_embeddings.weight();
    std::vector<X> streams = {hidden_states};
    for (I n = 0; n < c_.ngram; ++n) streams.push_back(table.select(0, n == 0 ? -1 : n - 1).add(predicting_stream_pos_embed));
    X attention_mask = prepare_attention_mask(batch, length, hidden_states.dtype());
    X predict_mask = prepare_predict_attention_mask(batch, length, hidden_states.dtype());
    X joined = cat(streams, 1);
    hidden_states = std::move(joined);
    streams[0].reset();
    hidden_states = embeddings_layer_norm(hidden_states);
    hidden_states = ops::dropout(hidden_states, c_.dropout, training);
    for (auto& layer : layers_)
      hidden_states =
          (*layer)(hidden_states, {attention_mask, encoder_hidden_states, predict_mask, main_buckets, predict_buckets, cache.get()});
    Output out{hidden_states.slice(1, std::nullopt, length), hidden_states.slice(1, length, std::nullopt), cache};
    (inputs_embeds.reset(), main_stream_pos_embed.reset(), position_ids.reset(), main_buckets.reset(), predict_buckets.reset(),
     predicting_stream_pos_embed.reset(), hidden_states.reset());
    while (!streams.empty()) streams.pop_back();
    return leave(std::move(out), attention_mask, predict_mask);
  }

 private:
  using Base::forward;
  Pair buffered_relative_buckets(I batch, I length) const {
    X position_ids = repeat(arange(c_.positions - 1), {1, 1});
    auto [main, predict] = compute_all_stream_relative_buckets(position_ids, c_.buckets);
    X cut = repeat(main.slice(1, std::nullopt, length).slice(2, std::nullopt, length), {batch, 1, 1});
    main = std::move(cut);
    X both_parts = cat({predict.slice(1, std::nullopt, length).slice(2, std::nullopt, length),
                        predict.slice(1, std::nullopt, length).slice(2, c_.positions, c_.positions + length)},
                       2);
    cut = repeat(both_parts, {batch, 1, 1});
    both_parts.reset();
    predict = std::move(cut);
    return leave(Pair{main, predict}, position_ids);
  }
  X prepare_attention_mask(I batch, I length, DType dtype) const {
    X causal_mask = full({length, length}, -1e30, dtype);
    causal_mask = aten("triu", {Tensor(causal_mask), I{1}});
    return causal_mask.unsqueeze(0).unsqueeze(1).expand({batch, c_.heads(true), length, length});
  }
  X prepare_predict_attention_mask(I batch, I length, DType dtype) const {
    X mask = ngram_attention_bias(c_.positions, c_.ngram, dtype);
    X cut = cat({mask.slice(1, std::nullopt, length).slice(2, std::nullopt, length),
                 mask.slice(1, std::nullopt, length).slice(2, c_.positions, c_.positions + length)},
                -1);
    mask = std::move(cut);
    return mask.unsqueeze(0).unsqueeze(1).expand({batch, c_.heads(true), c_.ngram, length, 2 * length});
  }

  const ProphetConfig c_;
  Embedding& word_embeddings;
  PositionalEmbeddings& position_embeddings;
  Embedding& ngram_embeddings;
  Layers<Layer> layers_;
  LayerNorm& embeddings_layer_norm;
};

/// ProphetNetModel, and ProphetNetDecoderWrapper without the encoder.
class ProphetModel final : public Base {
 public:
  ProphetModel(const ProphetConfig& c, bool encodes) : Base(encodes ? "ProphetNetModel" : "ProphetNetDecoderWrapper") {
    child<Embedding>("word_embeddings", c.vocab, c.hidden, c.pad_token);
    if (encodes) encoder = &child<Encoder>("encoder", c);
    decoder = &child<Decoder>("decoder", c);
    if (!c.tie) return;
    if (encodes) tie("encoder.word_embeddings.weight", "word_embeddings.weight");
    tie("decoder.word_embeddings.weight", "word_embeddings.weight");
  }
  Encoder* encoder = nullptr;
  Decoder* decoder;
};

class Prophet final : public Seq2SeqNetwork {
 public:
  explicit Prophet(const ProphetConfig& c) : Seq2SeqNetwork(name_of_class(c.options.task), c.options), c_(c) {
    model_ = &child<ProphetModel>("prophetnet", c, c.options.task != Task::causal_lm);
    if (c.options.task == Task::base) return;
    lm_head = &child<Linear>("lm_head", c.hidden, c.vocab, false);
    if (c.tie) tie("lm_head.weight", "prophetnet.word_embeddings.weight");
  }
  std::vector<nn::InputSpec> inputs() const override {
    return options_.task == Task::causal_lm ? Network::inputs() : Seq2SeqNetwork::inputs();
  }
  std::vector<std::pair<std::string, I>> default_sizes() const override { return {{"seq", std::min<I>(512, c_.positions - 2)}}; }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    const bool causal = options_.task == Task::causal_lm;
    X decoder_input_ids = causal ? batch.input : batch.decoder_input;
    if (!decoder_input_ids) {
      decoder_input_ids = shift_tokens_right(batch.labels);
      X all = like("all", aten("ge", {Tensor(decoder_input_ids), I{0}}));
    }
    X encoder_last_hidden_state;
    if (!causal) encoder_last_hidden_state = (*model_->encoder)(batch.input);
    Decoder::Output outputs = (*model_->decoder)(decoder_input_ids, encoder_last_hidden_state);
    if (!lm_head)
      return {seq2seq_output({outputs.last_hidden_state, outputs.last_hidden_state_ngram}, outputs.cache.get(), encoder_last_hidden_state),
              {}};
    const I batch_size = decoder_input_ids.size(0), length = decoder_input_ids.size(1);
    X predicting_streams = outputs.last_hidden_state_ngram.view({batch_size, c_.ngram, length, -1});
    X predict_logits = (*lm_head)(predicting_streams);
    X logits = predict_logits.select(1, 0);
    X logits_ngram;
    if (c_.ngram > 1) logits_ngram = predict_logits.slice(1, 1, std::nullopt);
    if (!causal) logits = logits.contiguous();
    X loss;
    if (batch.labels) loss = compute_loss(predict_logits, batch.labels);
    Value output = seq2seq_output({loss, logits, logits_ngram}, outputs.cache.get(), encoder_last_hidden_state);
    return leave(nn::Outcome{std::move(output), loss}, decoder_input_ids, outputs.last_hidden_state, outputs.last_hidden_state_ngram,
                 predicting_streams, predict_logits);
  }

 private:
  static std::string name_of_class(Task task) {
    return task == Task::causal_lm ? "ProphetNetForCausalLM"
           : task == Task::base    ? "ProphetNetModel"
                                   : "ProphetNetForConditionalGeneration";
  }
  X compute_loss(X logits, const X& labels) {
    X expend_targets = aten("new_zeros", {Tensor(labels), list_of(Dims{c_.ngram, labels.size(0), labels.size(1)})});
    aten("fill_", {Tensor(expend_targets), I{-100}});
    for (I i = 0; i < c_.ngram && (i == 0 || !c_.file.boolean_or("disable_ngram_loss", false)); ++i)
      aten("copy_", {Tensor(expend_targets.select(0, i)), Tensor(labels), false});
    logits = logits.transpose(0, 1).contiguous();
    X lprobs = ops::log_softmax(logits.view({-1, logits.size(-1)}), -1, DType::float32);
    X loss = aten("nll_loss", {Tensor(lprobs), Tensor(expend_targets.view({-1}))});
    return leave(std::move(loss), logits, expend_targets, lprobs);
  }

  const ProphetConfig c_;
  ProphetModel* model_;
  Linear* lm_head = nullptr;
};

NetworkPtr prophetnet(const Config& config, const Options& given) {
  Options o = given;
  o.target |= o.task != Task::causal_lm && !o.labels;  // the model does not shift input_ids
  return std::make_shared<Prophet>(ProphetConfig(config, o));
}
const Family prophetnet_family{{"prophetnet"}, seq2seq_classes("ProphetNet", prophetnet, {Task::seq2seq, Task::causal_lm, Task::base})};

}  // namespace
}  // namespace memest::hf
