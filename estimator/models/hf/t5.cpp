// models/t5/modeling_t5.py, and the copies of it: mt5 and umt5.
#include "fake/checkpoint.h"
#include "models/hf/encoder_decoder.h"
#include "models/hf/loss.h"
#include "models/hf/release.h"
#include "models/hf/seq2seq.h"
#include "ops/indexing.h"

namespace memest::hf {
namespace {

struct T5Config {
  T5Config(const Config& f, const Options& o, std::string name)
      : file(f), options(o), prefix(std::move(name)), each_layer(prefix == "UMT5") {
    vocab = f.size("vocab_size");
    width = f.size("d_model");
    head_dim = f.size("d_kv");
    intermediate = f.size("d_ff");
    layers = layer_count(f);
    decoder_layers = layers;
    if (f.has("num_decoder_layers")) {
      Config decoder = f;
      decoder.set("num_layers", *f.find("num_decoder_layers"));
      decoder_layers = layer_count(decoder);
    }
    heads = f.size("num_heads");
    buckets = f.size("relative_attention_num_buckets");
    if (buckets < 4) throw f.error("relative_attention_num_buckets", "expected at least 4, found " + std::to_string(buckets));
    dropout = f.number_or("dropout_rate", 0.1);
    classifier_dropout = f.number_or("classifier_dropout", 0.0);
    const std::string feed_forward = f.text("feed_forward_proj");
    const auto dash = feed_forward.find('-');
    gated = dash != std::string::npos;
    if (gated && (feed_forward.substr(0, dash) != "gated" || feed_forward.find('-', dash + 1) != std::string::npos))
      throw f.error("feed_forward_proj", "expected ACTIVATION or gated-ACTIVATION, found '" + feed_forward.substr(0, 60) + "'");
    act = feed_forward == "gated-gelu" ? "gelu_new" : gated ? feed_forward.substr(dash + 1) : feed_forward;
    // What the class computes, a file may say itself.
    gated = f.boolean_or("is_gated_act", gated);
    act = f.text_or("dense_act_fn", act);
    scales = prefix != "MT5" && f.boolean_or("scale_decoder_outputs", f.boolean_or("tie_word_embeddings", true));
    if (!release().t5_always_ties()) scales = tied = f.given("tie_word_embeddings") ? f.boolean("tie_word_embeddings") : prefix != "MT5";
  }
  Config file;
  Options options;
  std::string prefix;
  bool each_layer;  ///< each layer has its own bias (umt5); else the first makes it for all
  I vocab, width, head_dim, intermediate, layers, decoder_layers, heads, buckets;
  double dropout, classifier_dropout;
  std::string act;
  bool gated, scales, tied = true;
};

UnaryPtr make_t5_norm(const T5Config& c) { return make_norm(Norm::t5, c.width, c.prefix + "LayerNorm"); }

/// DenseActDense and DenseGatedActDense.
class DenseReluDense final : public Unary {
 public:
  explicit DenseReluDense(const T5Config& c) : Unary(c.prefix + (c.gated ? "DenseGatedActDense" : "DenseActDense")) {
    wi = &child<Linear>(c.gated ? "wi_0" : "wi", c.width, c.intermediate, false);
    if (c.gated) wi_1 = &child<Linear>("wi_1", c.width, c.intermediate, false);
    wo = &child<Linear>("wo", c.intermediate, c.width, false);
    dropout = &child<Dropout>("dropout", c.dropout);
    act = &child<Activation>("act", c.act);
  }

 protected:
  X forward(X hidden_states) override {
    X hidden_gelu, hidden_linear;
    if (wi_1) {
      hidden_gelu = (*act)((*wi)(hidden_states));
      hidden_linear = (*wi_1)(hidden_states);
      hidden_states = hidden_gelu.mul(hidden_linear);
    } else {
      hidden_states = (*wi)(hidden_states);
      hidden_states = (*act)(hidden_states);
    }
    hidden_states = (*dropout)(hidden_states);
    const DType dtype = wo->weight().dtype();
    if (hidden_states.dtype() != dtype && dtype != DType::int8) hidden_states = hidden_states.to(dtype);
    hidden_states = (*wo)(hidden_states);
    return leave(std::move(hidden_states), hidden_gelu, hidden_linear);
  }

 private:
  Linear *wi, *wi_1 = nullptr, *wo;
  Dropout* dropout;
  Activation* act;
};

class LayerFF final : public Unary {
 public:
  explicit LayerFF(const T5Config& c) : Unary(c.prefix + "LayerFF") {
    dense = register_module("DenseReluDense", std::make_shared<DenseReluDense>(c));
    layer_norm = register_module("layer_norm", make_t5_norm(c));
    dropout = &child<Dropout>("dropout", c.dropout);
  }

 protected:
  X forward(X hidden_states) override {
    X forwarded_states = (*layer_norm)(hidden_states);
    forwarded_states = (*dense)(forwarded_states);
    hidden_states = hidden_states.add((*dropout)(forwarded_states));
    return hidden_states;
  }

 private:
  UnaryPtr dense, layer_norm;
  Dropout* dropout;
};

/// What goes into an attention and what comes out.
struct Attended {
  X hidden_states, position_bias, weights;
};
struct AttentionInputs {
  X mask, key_value_states, position_bias;
  Cache* cache = nullptr;
};

/// The softmax keeps the scores' type.
Pair t5_eager_attention_forward(X query, X key, X value, AttentionCall call) {
  X attn_weights = query.matmul(key.transpose(2, 3)).mul(1.0);
  if (call.position_bias) attn_weights = attn_weights.add(call.position_bias);
  if (call.mask) attn_weights = attn_weights.add(call.mask);
  attn_weights = attn_weights.softmax(-1);
  attn_weights = ops::dropout(attn_weights, call.dropout, call.training);
  X attn_output = attn_weights.matmul(value);
  attn_output = attn_output.transpose(1, 2).contiguous();
  return {attn_output, attn_weights};
}

// ---- before transformers 5.15

/// The scores, to which the bias is added in place, are cast for the softmax.
Pair scores_with_bias(X query_states, X key_states, X value_states, const AttentionCall& call) {
  X scores = query_states.matmul(key_states.transpose(3, 2));
  scores.add_(call.position_bias);
  X attn_weights = scores.to_float().softmax(-1).to(scores.dtype());
  attn_weights = ops::dropout(attn_weights, call.dropout, call.training);
  X attn_output = attn_weights.matmul(value_states);
  attn_output = attn_output.transpose(1, 2).contiguous();
  return {attn_output, attn_weights};
}
X ones(const Dims& sizes, DType dtype) { return aten("ones", {list_of(sizes)}, {{"dtype", dtype}}); }
/// invert_attention_mask, and what an encoder does likewise, of a mask that nobody gave.
X inverted_mask_of_ones(I batch, I length, DType ones_type, DType dtype) {
  X attention_mask = ones({batch, length}, ones_type);
  X extended = attention_mask.unsqueeze(1).unsqueeze(1).to(dtype);
  X inverted = extended.neg().mul(1.0);
  return leave(std::move(inverted), attention_mask, extended);
}
/// _prepare_4d_causal_attention_mask_with_cache_position of a mask of ones.
X causal_mask_of_ones(I batch, I length, DType dtype) {
  X attention_mask = ones({batch, length}, DType::float32);
  X cache_position = arange(length);
  X causal_mask = aten("full", {list_of(Dims{length, length}), 0.0}, {{"dtype", dtype}});
  if (length != 1) causal_mask = aten("triu", {Tensor(causal_mask), I{1}});
  {
    X later = aten("gt", {Tensor(arange(length)), Tensor(cache_position.reshape({-1, 1}))});
    aten("mul_", {Tensor(causal_mask), Tensor(later)});
  }
  causal_mask = causal_mask.unsqueeze(0).unsqueeze(0).expand({batch, 1, -1, -1});
  causal_mask = causal_mask.clone();
  X padding_mask = causal_mask.add(attention_mask.unsqueeze(1).unsqueeze(1));
  padding_mask = aten("eq", {Tensor(padding_mask), I{0}});
  {
    X filled = aten("masked_fill", {Tensor(causal_mask), Tensor(padding_mask), 0.0});
    aten("copy_", {Tensor(causal_mask), Tensor(filled)});
  }
  return leave(std::move(causal_mask), attention_mask, cache_position, padding_mask);
}

class T5Attention final : public Base {
 public:
  T5Attention(const T5Config& c, bool decoder, bool has_bias, bool causal, I layer)
      : Base(c.prefix + "Attention"),
        options_(c.options),
        decoder_(decoder),
        causal_(causal),
        layer_(layer),
        heads_(c.heads),
        head_dim_(c.head_dim),
        dropout_(c.dropout),
        shares_bias_(!c.each_layer),
        bias_needs_grad_(shares_bias_ && c.options.checkpoint) {
    const I inner = checked_mul(c.heads, c.head_dim);
    q = &child<Linear>("q", c.width, inner, false);
    k = &child<Linear>("k", c.width, inner, false);
    v = &child<Linear>("v", c.width, inner, false);
    o = &child<Linear>("o", inner, c.width, false);
    if (has_bias) relative_attention_bias = &child<Embedding>("relative_attention_bias", c.buckets, c.heads);
  }

  Attended operator()(X hidden_states, AttentionInputs in) {
    Entered scope(*this);
    const Dims input_shape = hidden_states.sizes().slice(0, 2);
    const I past_seen_tokens = in.cache && !in.key_value_states ? in.cache->seen(layer_) : 0;
    X query_states = (*q)(hidden_states).view(input_shape + Dims{-1, head_dim_}).transpose(1, 2);
    X current_states = in.key_value_states ? in.key_value_states : hidden_states;
    X key_states, value_states;
    if (const CacheLayer* updated = updated_layer(in.key_value_states ? in.cache : nullptr, layer_)) {
      key_states = updated->keys;
      value_states = updated->values;
    } else {
      const Dims kv_shape = current_states.sizes().slice(0, 2) + Dims{-1, head_dim_};
      key_states = (*k)(current_states).view(kv_shape).transpose(1, 2);
      value_states = (*v)(current_states).view(kv_shape).transpose(1, 2);
      if (in.cache) std::tie(key_states, value_states) = in.cache->update(key_states, value_states, layer_);
    }
    X position_bias = in.position_bias;
    if (!position_bias && relative_attention_bias) {
      position_bias = compute_bias(input_shape[1], key_states.size(2), past_seen_tokens);
    } else if (!position_bias) {
      position_bias = zeros({1, heads_, input_shape[1], key_states.size(2)}, query_states.dtype());
      if (bias_needs_grad_ && training) position_bias->requires_grad = true;
    }
    if (!in.position_bias && in.mask && !release().t5_has_attention_interface()) position_bias = position_bias.add(in.mask);
    AttentionCall call{.mask = in.mask, .dropout = training ? dropout_ : 0.0, .training = training, .causal = causal_};
    call.position_bias = position_bias;
    auto [attn_output, attn_weights] =
        !release().t5_has_attention_interface() ? scores_with_bias(query_states, key_states, value_states, call)
        : options_.attention == Attention::sdpa ? sdpa_attention_forward(query_states, key_states, value_states, std::move(call))
                                                : t5_eager_attention_forward(query_states, key_states, value_states, std::move(call));
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = (*o)(attn_output);
    leave(0, query_states, current_states, key_states, value_states);
    if (!shares_bias_) position_bias.reset();
    return {attn_output, position_bias, attn_weights};
  }

 private:
  X relative_position_bucket(X relative_position) const {
    auto minimum = [](X a, X b) { return aten("minimum", {Tensor(std::move(a)), Tensor(std::move(b))}); };
    X relative_buckets;
    if (!decoder_) {
      relative_buckets = aten("gt", {Tensor(relative_position), I{0}}).to(DType::int64).mul(I{1}).add(I{0});
      relative_position = aten("abs", {Tensor(relative_position)});
    } else {
      relative_position = minimum(relative_position, aten("zeros_like", {Tensor(relative_position)})).neg();
    }
    X is_small = aten("lt", {Tensor(relative_position), I{1}});
    X log_ratio = ops::log(relative_position.to_float().div(I{1}));
    log_ratio = std::move(log_ratio).div(1.0);
    log_ratio = std::move(log_ratio).mul(I{1});
    X relative_position_if_large = log_ratio.to(DType::int64);
    if (shares_bias_) log_ratio.reset();  // umt5 names it
    relative_position_if_large = std::move(relative_position_if_large).add(I{1});
    relative_position_if_large = minimum(relative_position_if_large, aten("full_like", {Tensor(relative_position_if_large), I{1}}));
    X chosen = where(is_small, relative_position, relative_position_if_large);
    if (relative_buckets)
      relative_buckets = relative_buckets.add_(chosen);
    else
      relative_buckets = chosen.add(I{0});
    chosen.reset();
    return leave(std::move(relative_buckets), relative_position, is_small, log_ratio, relative_position_if_large);
  }
  X compute_bias(I query_length, I key_length, I past_seen_tokens) {
    X context_position = arange(query_length).unsqueeze(1).add(past_seen_tokens);
    X memory_position = arange(key_length).unsqueeze(0);
    X relative_position = memory_position.sub(context_position);
    X bucket = relative_position_bucket(relative_position);
    X values = (*relative_attention_bias)(bucket);
    values = values.permute({2, 0, 1}).unsqueeze(0);
    return leave(std::move(values), context_position, memory_position, relative_position, bucket);
  }

  const Options options_;
  bool decoder_, causal_;
  I layer_, heads_, head_dim_;
  double dropout_;
  bool shares_bias_, bias_needs_grad_;
  Linear *q, *k, *v, *o;
  Embedding* relative_attention_bias = nullptr;
};

/// LayerSelfAttention and LayerCrossAttention.
class LayerAttention final : public Base {
 public:
  LayerAttention(const T5Config& c, bool decoder, bool cross, bool has_bias, I layer)
      : Base(c.prefix + (cross ? "LayerCrossAttention" : "LayerSelfAttention")), keeps_attention_output_(cross || c.each_layer) {
    attention_ = register_module(cross ? "EncDecAttention" : "SelfAttention",
                                 std::make_shared<T5Attention>(c, decoder, has_bias, decoder && !cross, layer));
    layer_norm = register_module("layer_norm", make_t5_norm(c));
    dropout = &child<Dropout>("dropout", c.dropout);
  }
  Attended operator()(X hidden_states, AttentionInputs in) {
    Entered scope(*this);
    X normed_hidden_states = (*layer_norm)(hidden_states);
    Attended r = (*attention_)(normed_hidden_states, in);
    X output = hidden_states.add((*dropout)(r.hidden_states));
    hidden_states.reset();
    if (keeps_attention_output_) normed_hidden_states.reset();
    r.hidden_states = std::move(output);
    return leave(std::move(r), normed_hidden_states);
  }

 private:
  bool keeps_attention_output_;  ///< its name is not bound to the sum
  std::shared_ptr<T5Attention> attention_;
  UnaryPtr layer_norm;
  Dropout* dropout;
};

/// Keeps the infinities of half precision out of what follows.
void clamp(X& hidden_states, X& clamp_value) {
  if (hidden_states.dtype() != DType::float16) return;
  X overflown = aten("isinf", {Tensor(hidden_states)});
  overflown = aten("any", {Tensor(overflown)});
  X limit = aten("where", {Tensor(overflown), 64504.0, 65504.0});
  overflown.reset();
  clamp_value = std::move(limit);
  X low = clamp_value.neg();
  X result = aten("clamp", {Tensor(hidden_states), Tensor(low), Tensor(clamp_value)});
  low.reset();
  hidden_states = std::move(result);
}

class T5Block final : public Base {
 public:
  /// The hidden states, and the biases that the next block takes.
  struct State {
    X hidden_states, position_bias, cross_bias;
  };
  struct Call {
    X mask, encoder_hidden_states, encoder_mask;
    EncoderDecoderCache* cache = nullptr;
  };
  T5Block(const T5Config& c, bool decoder, I layer)
      : Base(c.prefix + "Block"), checkpoint_(c.options.checkpoint), reentrant_(c.options.reentrant) {
    auto list = register_module("layer", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
    self_ = std::make_shared<LayerAttention>(c, decoder, false, c.each_layer || layer == 0, layer);
    list->append(self_);
    if (decoder) list->append(cross_ = std::make_shared<LayerAttention>(c, decoder, true, false, layer));
    list->append(feed_forward_ = std::make_shared<LayerFF>(c));
  }

  State operator()(State state, Call call) {
    Entered scope(*this);
    if (!(checkpoint_ && training && runtime().grad_mode)) return forward(state, call);
    call.cache = nullptr;
    Region region = [this](const Tensors& in) {
      State s = forward({in[0], in[2], in[4]}, {in[1], in[3], in[5]});
      Tensors out{s.hidden_states};
      for (auto* x : {&s.position_bias, &s.cross_bias})
        if (*x) out.emplace_back(*x);
      return out;
    };
    const Tensors inputs{state.hidden_states,        call.mask,        state.position_bias,
                         call.encoder_hidden_states, state.cross_bias, call.encoder_mask};
    Tensors out = reentrant_ ? checkpoint_reentrant(std::move(region), inputs) : memest::checkpoint(std::move(region), inputs);
    out.resize(3);
    return {out[0], out[1], out[2]};
  }

 private:
  State forward(State state, const Call& call) {
    X hidden_states = std::move(state.hidden_states), position_bias, cross_bias, ignored, clamp_value;
    auto take = [&](Attended r, X& bias) {
      hidden_states = std::move(r.hidden_states);
      bias = std::move(r.position_bias);
      ignored = std::move(r.weights);
    };
    take((*self_)(hidden_states, {call.mask, {}, state.position_bias, call.cache ? &call.cache->self_attention : nullptr}), position_bias);
    clamp(hidden_states, clamp_value);
    if (cross_ && call.encoder_hidden_states) {
      take((*cross_)(hidden_states, {call.encoder_mask, call.encoder_hidden_states, state.cross_bias,
                                     call.cache ? &call.cache->cross_attention : nullptr}),
           cross_bias);
      clamp(hidden_states, clamp_value);
    }
    hidden_states = (*feed_forward_)(hidden_states);
    clamp(hidden_states, clamp_value);
    return leave(State{hidden_states, position_bias, cross_bias}, ignored, clamp_value);
  }

  bool checkpoint_, reentrant_;
  std::shared_ptr<LayerAttention> self_, cross_;
  std::shared_ptr<LayerFF> feed_forward_;
};

class T5Stack final : public Base {
 public:
  T5Stack(const T5Config& c, bool decoder)
      : Base(c.prefix + "Stack"),
        options_(c.options),
        decoder_(decoder),
        mask_is_argument_(!c.each_layer),
        embed_tokens(child<Embedding>("embed_tokens", c.vocab, c.width)),
        block_(*this, "block", decoder ? c.decoder_layers : c.layers, [&](I i) { return std::make_shared<T5Block>(c, decoder, i); }),
        final_layer_norm(register_module("final_layer_norm", make_t5_norm(c))),
        dropout(child<Dropout>("dropout", c.dropout)) {}

  /// `padding`: the attention_mask of the encoder's tokens, where there is one.
  X operator()(X input_ids, X padding = {}, X encoder_hidden_states = {}, EncoderDecoderCache* cache = nullptr) {
    Entered scope(*this);
    X inputs_embeds = embed_tokens(input_ids);
    X mask, encoder_mask;
    if (release().t5_makes_masks_of_ones()) {
      const I batch = inputs_embeds.size(0), length = inputs_embeds.size(1);
      const DType dtype = inputs_embeds.dtype();
      mask = decoder_ ? causal_mask_of_ones(batch, length, dtype) : inverted_mask_of_ones(batch, length, DType::float32, dtype);
      if (decoder_ && encoder_hidden_states)
        encoder_mask = inverted_mask_of_ones(batch, encoder_hidden_states.size(1), DType::int64, dtype);
    } else {
      if (decoder_) mask = create_causal_mask({options_, inputs_embeds, cache ? &cache->self_attention : nullptr});
      if (padding)
        (decoder_ ? encoder_mask : mask) =
            create_bidirectional_mask({.options = options_, .inputs_embeds = inputs_embeds, .attention_mask = padding});
    }
    T5Block::State state;
    state.hidden_states = dropout(inputs_embeds);
    for (auto& layer : block_) state = (*layer)(state, {mask, encoder_hidden_states, encoder_mask, cache});
    state.hidden_states = (*final_layer_norm)(state.hidden_states);
    state.hidden_states = dropout(state.hidden_states);
    if (mask_is_argument_) mask.reset();
    return leave(std::move(state.hidden_states), inputs_embeds, mask, encoder_mask, state.position_bias, state.cross_bias);
  }

 private:
  const Options options_;
  bool decoder_, mask_is_argument_;  ///< the mask takes the name of an argument, which goes first
  Embedding& embed_tokens;
  Layers<T5Block> block_;
  UnaryPtr final_layer_norm;
  Dropout& dropout;
};

/// What the encoder and the decoder give.
struct T5Output {
  X last_hidden_state, encoder_last_hidden_state;
  std::shared_ptr<EncoderDecoderCache> cache;
};

/// `shared` and the stacks, as every class of the family registers them.
class T5Stacks {
 public:
  T5Stacks(nn::Module& owner, const T5Config& c, bool decodes) : options_(c.options) {
    owner.register_module("shared", std::make_shared<Embedding>(c.vocab, c.width));
    encoder_ = owner.register_module("encoder", std::make_shared<T5Stack>(c, false));
    if (decodes) decoder_ = owner.register_module("decoder", std::make_shared<T5Stack>(c, true));
    owner.tie("encoder.embed_tokens.weight", "shared.weight");
    if (decodes) owner.tie("decoder.embed_tokens.weight", "shared.weight");
  }
  X encode(const X& input_ids, X attention_mask = {}) const { return (*encoder_)(input_ids, std::move(attention_mask)); }
  X decode_ids(X decoder_input_ids, X encoder_hidden_states, X attention_mask, EncoderDecoderCache* cache) const {
    return (*decoder_)(std::move(decoder_input_ids), std::move(attention_mask), std::move(encoder_hidden_states), cache);
  }

  /// `targets` is called between the stacks, where the class makes the decoder's ids then.
  template <class F>
  T5Output decode(const X& input_ids, F targets, bool training, bool use_cache) const {
    X hidden_states = encode(input_ids);
    X decoder_input_ids = targets();
    std::shared_ptr<EncoderDecoderCache> cache;
    if (use_cache && !(options_.checkpoint && training && runtime().grad_mode)) cache = std::make_shared<EncoderDecoderCache>();
    X last_hidden_state = (*decoder_)(decoder_input_ids, {}, hidden_states, cache.get());
    return {last_hidden_state, hidden_states, cache};
  }

 private:
  const Options options_;
  std::shared_ptr<T5Stack> encoder_, decoder_;
};

/// The decoder's ids are an input where the class does not make them from the labels.
class T5Network : public Seq2SeqNetwork {
 public:
  T5Network(const T5Config& c, const char* suffix) : Seq2SeqNetwork(c.prefix + suffix, targeted(c.options)), c_(c) {}

 protected:
  const T5Config c_;

 private:
  static Options targeted(Options o) {
    if (o.task == Task::base || (o.task == Task::seq2seq && !o.labels)) o.target = true;
    return o;
  }
};

class T5ForConditionalGeneration final : public T5Network, public EncoderDecoder {
 public:
  explicit T5ForConditionalGeneration(const T5Config& c) : T5Network(c, "ForConditionalGeneration"), stacks_(*this, c, true) {
    lm_head = &child<Linear>("lm_head", c.width, c.vocab, false);
    if (c.tied) tie("lm_head.weight", "shared.weight");
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    X decoder_input_ids = batch.decoder_input;
    T5Output outputs = stacks_.decode(
        batch.input, [&] { return decoder_input_ids = batch.labels ? shift_tokens_right(batch.labels) : decoder_input_ids; }, training,
        options_.use_cache);
    X sequence_output = outputs.last_hidden_state;
    if (c_.scales) sequence_output = sequence_output.mul(1.0);
    X lm_logits = (*lm_head)(sequence_output);
    X loss;
    if (batch.labels) loss = flat_cross_entropy(lm_logits, batch.labels, lm_logits.size(-1));
    Value output = seq2seq_output({loss, lm_logits}, outputs.cache.get(), outputs.encoder_last_hidden_state);
    return leave(nn::Outcome{std::move(output), loss}, decoder_input_ids, outputs.last_hidden_state, sequence_output);
  }
  bool generates() const override { return true; }
  X encode(X input_ids, X attention_mask) override { return stacks_.encode(input_ids, attention_mask); }
  X decode(X decoder_input_ids, X encoder_hidden_states, X attention_mask, EncoderDecoderCachePtr cache) override {
    Entered scope(*this);
    X last_hidden_state = stacks_.decode_ids(decoder_input_ids, encoder_hidden_states, attention_mask, cache.get());
    X sequence_output = last_hidden_state;
    if (c_.scales) sequence_output = sequence_output.mul(1.0);
    X lm_logits = (*lm_head)(sequence_output);
    return leave(std::move(lm_logits), last_hidden_state, sequence_output);
  }
  I decoder_layers() const override {
    if (c_.decoder_layers > c_.layers)
      throw c_.file.error("num_decoder_layers", "generate() makes a cache of num_layers = " + std::to_string(c_.layers) +
                                                    " layers, and fails where the decoder has more");
    return c_.decoder_layers;
  }

 private:
  T5Stacks stacks_;
  Linear* lm_head;
};

class T5Model final : public T5Network {
 public:
  explicit T5Model(const T5Config& c) : T5Network(c, "Model"), stacks_(*this, c, true) {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    T5Output outputs = forward(batch.input, batch.decoder_input, options_.use_cache);
    return {seq2seq_output({outputs.last_hidden_state}, outputs.cache.get(), outputs.encoder_last_hidden_state), {}};
  }

  T5Output forward(X input_ids, X decoder_input_ids, bool use_cache) {
    Entered scope(*this);
    return stacks_.decode(
        input_ids, [&] { return decoder_input_ids; }, training, use_cache);
  }

 private:
  T5Stacks stacks_;
};

class T5EncoderModel final : public Network {
 public:
  explicit T5EncoderModel(const T5Config& c) : Network(c.prefix + "EncoderModel", c.options), stacks_(*this, c, false) {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    return {model_output({stacks_.encode(batch.input)}), {}};
  }
  X encode(X input_ids) {
    Entered scope(*this);
    return stacks_.encode(input_ids);
  }

 private:
  T5Stacks stacks_;
};

class T5ClassificationHead final : public Module<T5ClassificationHead> {
 public:
  explicit T5ClassificationHead(const T5Config& c)
      : Module(c.prefix + "ClassificationHead"),
        dense(child<Linear>("dense", c.width, c.width)),
        dropout(child<Dropout>("dropout", c.classifier_dropout)),
        out_proj(child<Linear>("out_proj", c.width, num_labels(c.file))) {}
  X forward(X hidden_states) {
    hidden_states = dropout(hidden_states);
    hidden_states = dense(hidden_states);
    hidden_states = hidden_states.tanh();
    hidden_states = dropout(hidden_states);
    hidden_states = out_proj(hidden_states);
    return hidden_states;
  }

 private:
  Linear& dense;
  Dropout& dropout;
  Linear& out_proj;
};

class T5ForSequenceClassification final : public T5Network {
 public:
  explicit T5ForSequenceClassification(const T5Config& c)
      : T5Network(c, "ForSequenceClassification"),
        transformer_(child<T5Model>("transformer", c)),
        classification_head(child<T5ClassificationHead>("classification_head", c)) {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    X decoder_input_ids = batch.decoder_input ? batch.decoder_input : shift_tokens_right(batch.input);
    T5Output outputs = transformer_.forward(batch.input, decoder_input_ids, options_.use_cache && !batch.labels);
    X sequence_output = outputs.last_hidden_state;
    X eos_mask = aten("eq", {Tensor(batch.input), I{1}});
    if (!(eos_mask.sizes() == sequence_output.sizes().slice(0, 2)))
      throw Error("the classes are read at the <eos> of input_ids: the target has the source's length", "leave out --tgt-seq");
    aten_list("unique_consecutive", {Tensor(eos_mask.sum(1))});
    const I batch_size = sequence_output.size(0);
    X selected;
    {
      ops::AssumedSelection one_of_each(batch_size);
      selected = aten("index", {Tensor(sequence_output), make_list({Tensor(eos_mask)})});
    }
    X sentence_representation = selected.view({batch_size, -1, sequence_output.size(-1)}).select(1, -1);
    X logits = classification_head(sentence_representation);
    X loss;
    if (batch.labels) loss = sequence_classification_loss(batch.labels, logits, num_labels(c_.file));
    Value output = seq2seq_output({loss, logits}, outputs.cache.get(), outputs.encoder_last_hidden_state);
    return leave(nn::Outcome{std::move(output), loss}, decoder_input_ids, outputs.last_hidden_state, sequence_output, eos_mask, selected,
                 sentence_representation);
  }

 private:
  T5Model& transformer_;
  T5ClassificationHead& classification_head;
};

class T5ForTokenClassification final : public Network {
 public:
  explicit T5ForTokenClassification(const T5Config& c)
      : Network(c.prefix + "ForTokenClassification", c.options),
        transformer_(child<T5EncoderModel>("transformer", c)),
        dropout(child<Dropout>("dropout", c.classifier_dropout)),
        classifier(child<Linear>("classifier", c.width, num_labels(c.file))) {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    X hidden_states = transformer_.encode(batch.input);
    hidden_states = dropout(hidden_states);
    X logits = classifier(hidden_states);
    X loss;
    if (batch.labels) loss = flat_cross_entropy(logits, batch.labels, logits.size(-1));
    return {model_output({loss, logits}), loss};
  }

 private:
  T5EncoderModel& transformer_;
  Dropout& dropout;
  Linear& classifier;
};

class T5ForQuestionAnswering final : public T5Network {
 public:
  explicit T5ForQuestionAnswering(const T5Config& c) : T5Network(c, "ForQuestionAnswering"), stacks_(*this, c, true) {
    if (num_labels(c.file) != 2)
      throw c.file.error("num_labels", "expected 2, the start and the end, found " + std::to_string(num_labels(c.file)));
    qa_outputs = &child<Linear>("qa_outputs", c.width, 2);
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    X decoder_input_ids = batch.decoder_input ? batch.decoder_input : shift_tokens_right(batch.input);
    T5Output outputs = stacks_.decode(
        batch.input, [&] { return decoder_input_ids; }, training, options_.use_cache && !batch.labels);
    X logits = (*qa_outputs)(outputs.last_hidden_state);
    std::vector<X> parts = logits.split(1, -1);
    X start_logits = std::move(parts[0]), end_logits = std::move(parts[1]);
    start_logits = start_logits.squeeze(-1).contiguous();
    end_logits = end_logits.squeeze(-1).contiguous();
    X total_loss;
    if (batch.labels && batch.end_positions) {
      const I ignored_index = start_logits.size(1);
      X start_positions = aten("clamp", {Tensor(batch.labels), I{0}, ignored_index});
      X end_positions = aten("clamp", {Tensor(batch.end_positions), I{0}, ignored_index});
      X start_loss = ops::cross_entropy_loss(start_logits, start_positions, Tensor(), 1, ignored_index, 0.0);
      X end_loss = ops::cross_entropy_loss(end_logits, end_positions, Tensor(), 1, ignored_index, 0.0);
      total_loss = start_loss.add(end_loss).div(I{2});
    }
    Value output = seq2seq_output({total_loss, start_logits, end_logits}, outputs.cache.get(), outputs.encoder_last_hidden_state);
    return leave(nn::Outcome{std::move(output), total_loss}, decoder_input_ids, outputs.last_hidden_state, logits);
  }

 private:
  T5Stacks stacks_;
  Linear* qa_outputs;
};

template <class N>
NetworkPtr t5(const Config& config, const Options& o, const char* prefix) {
  return std::make_shared<N>(T5Config(config, o, prefix));
}
template <const char* Prefix>
std::vector<TaskClass> t5_classes() {
  const std::string prefix = Prefix;
  return {{Task::seq2seq, prefix + "ForConditionalGeneration",
           [](const Config& c, const Options& o) -> NetworkPtr { return t5<T5ForConditionalGeneration>(c, o, Prefix); }},
          {Task::base, prefix + "Model", [](const Config& c, const Options& o) -> NetworkPtr { return t5<T5Model>(c, o, Prefix); }},
          {Task::seq_cls, prefix + "ForSequenceClassification",
           [](const Config& c, const Options& o) -> NetworkPtr { return t5<T5ForSequenceClassification>(c, o, Prefix); }},
          {Task::token_cls, prefix + "ForTokenClassification",
           [](const Config& c, const Options& o) -> NetworkPtr { return t5<T5ForTokenClassification>(c, o, Prefix); }},
          {Task::question_answering, prefix + "ForQuestionAnswering",
           [](const Config& c, const Options& o) -> NetworkPtr { return t5<T5ForQuestionAnswering>(c, o, Prefix); }},
          {Task::text_encoding, prefix + "EncoderModel",
           [](const Config& c, const Options& o) -> NetworkPtr { return t5<T5EncoderModel>(c, o, Prefix); }}};
}
constexpr char kT5[] = "T5", kMT5[] = "MT5", kUMT5[] = "UMT5";
const Family t5_family{{"t5"}, t5_classes<kT5>()};
const Family mt5_family{{"mt5"}, t5_classes<kMT5>()};
const Family umt5_family{{"umt5"}, t5_classes<kUMT5>()};

}  // namespace
}  // namespace memest::hf
