#include "models/hf/seq2seq.h"

#include "fake/checkpoint.h"
#include "models/hf/encoder.h"
#include "models/hf/encoder_decoder.h"
#include "models/hf/loss.h"
#include "ops/indexing.h"

namespace memest::hf {

std::vector<nn::InputSpec> Seq2SeqNetwork::inputs() const {
  const nn::SizeExpression batch("batch"), src_seq("src_seq"), tgt_seq("tgt_seq");
  const bool classifies = options_.task == Task::seq_cls || options_.task == Task::question_answering;
  std::vector<nn::InputSpec> list = {{"input_ids", {batch, src_seq}, DType::int64}};
  if (options_.target && (classifies || !options_.labels)) list.push_back({"decoder_input_ids", {batch, tgt_seq}, DType::int64});
  if (!options_.labels) return list;
  if (options_.task == Task::question_answering) {
    list.push_back({"start_positions", {batch}, DType::int64});
    list.push_back({"end_positions", {batch}, DType::int64});
  } else if (classifies) {
    list.push_back({"labels", {batch}, DType::int64});
  } else {
    list.push_back({"labels", {batch, tgt_seq}, DType::int64});
  }
  return list;
}

namespace {

/// ids[:, 1:] = ids[:, :-1].clone()
void move_right(const X& from, const X& to) {
  X source = from.slice(1, std::nullopt, -1).clone();
  aten("copy_", {Tensor(to.slice(1, 1, std::nullopt)), Tensor(source), false});
}
void fill_padding(const X& ids) { aten("masked_fill_", {Tensor(ids), Tensor(aten("eq", {Tensor(ids), I{-100}})), I{0}}); }

}  // namespace

X shift_tokens_right(X input_ids) {
  X shifted_input_ids = aten("new_zeros", {Tensor(input_ids), list_of(input_ids.sizes())});
  move_right(input_ids, shifted_input_ids);
  aten("fill_", {Tensor(shifted_input_ids.select(1, 0)), I{0}});
  fill_padding(shifted_input_ids);
  return shifted_input_ids;
}
X wrap_tokens_right(X input_ids) {
  X prev_output_tokens = input_ids.clone();
  fill_padding(prev_output_tokens);
  X index_of_eos = aten("ne", {Tensor(prev_output_tokens), I{1}}).sum(1).sub(1).unsqueeze(-1);
  X decoder_start_tokens = aten("squeeze", {Tensor(aten("gather", {Tensor(prev_output_tokens), I{1}, Tensor(index_of_eos)}))});
  move_right(prev_output_tokens, prev_output_tokens);
  aten("copy_", {Tensor(prev_output_tokens.select(1, 0)), Tensor(decoder_start_tokens), false});
  return leave(std::move(prev_output_tokens), index_of_eos, decoder_start_tokens);
}
Value seq2seq_output(std::initializer_list<X> tensors, const EncoderDecoderCache* cache, const X& encoder_last_hidden_state) {
  Values items;
  for (auto& x : tensors)
    if (x) items.emplace_back(Tensor(x));
  if (cache) cache->collect(items);
  if (encoder_last_hidden_state) items.emplace_back(Tensor(encoder_last_hidden_state));
  return make_tuple(std::move(items));
}

// ---- BART ----------------------------------------------------------------------------------------------------------------------

Seq2SeqConfig::Seq2SeqConfig(const Config& f, const Options& o) : file(f), options(o) {
  vocab = f.size("vocab_size");
  decoder_vocab = f.size_or("decoder_vocab_size", vocab);
  hidden = f.size("d_model");
  positions = f.size("max_position_embeddings");
  auto stack = [&](const std::string& side) {
    constexpr I kMost = 10'000;
    const Stack s{f.size(side + "_layers"), f.size(side + "_attention_heads"), f.size(side + "_ffn_dim")};
    if (s.layers > kMost)
      throw f.error(side + "_layers", "expected at most " + std::to_string(kMost) + " layers, found " + std::to_string(s.layers));
    if (hidden % s.heads != 0)
      throw f.error(side + "_attention_heads",
                    "expected a divisor of the d_model " + std::to_string(hidden) + ", found " + std::to_string(s.heads));
    return s;
  };
  encoder = stack("encoder");
  decoder = stack("decoder");
  dropout = f.number_or("dropout", 0.1);
  attention_dropout = f.number_or("attention_dropout", 0.0);
  activation_dropout = f.number_or("activation_dropout", 0.0);
  act = f.text_or("activation_function", "gelu");
  pad_token = f.integer_if("pad_token_id");
  tie = f.boolean_or("tie_word_embeddings", true);
}

namespace {

using Form = Seq2SeqForm;

class BartAttention final : public CrossMixer {
 public:
  BartAttention(const Seq2SeqConfig& c, const std::string& prefix, I heads, I layer, bool causal, bool bias)
      : CrossMixer(prefix + "Attention"),
        options_(c.options),
        layer_(layer),
        head_dim_(c.hidden / heads),
        dropout_(c.attention_dropout),
        causal_(causal),
        k_proj(child<Linear>("k_proj", c.hidden, c.hidden, bias)),
        v_proj(child<Linear>("v_proj", c.hidden, c.hidden, bias)),
        q_proj(child<Linear>("q_proj", c.hidden, c.hidden, bias)),
        out_proj(child<Linear>("out_proj", c.hidden, c.hidden, bias)) {}

 protected:
  Pair forward(const X& hidden_states, const X& key_value_states, X attention_mask, Cache* cache) override {
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1);
    X query_states = q_proj(hidden_states).view(input_shape + Dims{-1, head_dim_}).transpose(1, 2);
    const X& current_states = key_value_states ? key_value_states : hidden_states;
    X key_states, value_states;
    if (const CacheLayer* updated = updated_layer(key_value_states ? cache : nullptr, layer_)) {
      key_states = updated->keys;
      value_states = updated->values;
    } else {
      key_states = k_proj(current_states);
      value_states = v_proj(current_states);
      const Dims kv_shape = current_states.sizes().slice(0, current_states.dim() - 1) + Dims{-1, head_dim_};
      key_states = key_states.view(kv_shape).transpose(1, 2);
      value_states = value_states.view(kv_shape).transpose(1, 2);
      if (cache) std::tie(key_states, value_states) = cache->update(key_states, value_states, layer_);
    }
    auto [attn_output, attn_weights] =
        bert_attention_interface(options_, query_states, key_states, value_states,
                                 {.mask = attention_mask, .dropout = training ? dropout_ : 0.0, .training = training, .causal = causal_});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = out_proj(attn_output);
    return leave(Pair{attn_output, attn_weights}, attention_mask, query_states, key_states, value_states, attn_output);
  }

 private:
  const Options options_;
  I layer_, head_dim_;
  double dropout_;
  bool causal_;
  Linear &k_proj, &v_proj, &q_proj, &out_proj;
};

X clamped(const X& hidden_states) { return aten("clamp", {Tensor(hidden_states), -64504.0, 64504.0}); }

CrossMixerPtr attention_of(const Seq2SeqConfig& c, const Form& form, I heads, I layer, bool causal) {
  if (form.attention) return form.attention(c, heads, layer);
  return make_cross_attention(c, form.prefix, heads, layer, causal);
}

class EncoderLayer final : public DecoderLayer {
 public:
  EncoderLayer(const Seq2SeqConfig& c, const Form& form, I layer)
      : DecoderLayer(form.prefix + "EncoderLayer", c.options),
        norm_before_(form.norm_before),
        clamp_(form.clamp),
        dropout_(c.dropout),
        activation_dropout_(c.activation_dropout),
        self_attn_(register_module("self_attn", attention_of(c, form, c.encoder.heads, layer, false))),
        self_attn_layer_norm(child<LayerNorm>("self_attn_layer_norm", c.hidden)),
        activation_fn(child<Activation>("activation_fn", c.act)),
        fc1(child<Linear>("fc1", c.hidden, c.encoder.intermediate)),
        fc2(child<Linear>("fc2", c.encoder.intermediate, c.hidden)),
        final_layer_norm(child<LayerNorm>("final_layer_norm", c.hidden)) {}

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states;
    if (norm_before_) hidden_states = self_attn_layer_norm(hidden_states);
    X weights;
    std::tie(hidden_states, weights) = (*self_attn_)(hidden_states, {}, call.mask, nullptr);
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    hidden_states = residual.add(hidden_states);
    if (!norm_before_) hidden_states = self_attn_layer_norm(hidden_states);
    residual = hidden_states;
    if (norm_before_) hidden_states = final_layer_norm(hidden_states);
    hidden_states = activation_fn(fc1(hidden_states));
    hidden_states = ops::dropout(hidden_states, activation_dropout_, training);
    hidden_states = fc2(hidden_states);
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    hidden_states = residual.add(hidden_states);
    if (!norm_before_) hidden_states = final_layer_norm(hidden_states);
    if (clamp_ == Form::Clamp::if_overflown)
      hidden_states = clamp_overflown(std::move(hidden_states));
    else if (hidden_states.dtype() == DType::float16)
      hidden_states = clamped(hidden_states);
    return leave(std::move(hidden_states), residual, weights);
  }

 private:
  bool norm_before_;
  Form::Clamp clamp_;
  double dropout_, activation_dropout_;
  CrossMixerPtr self_attn_;
  LayerNorm& self_attn_layer_norm;
  Activation& activation_fn;
  Linear &fc1, &fc2;
  LayerNorm& final_layer_norm;
};

class CrossLayer final : public Base {
 public:
  CrossLayer(const Seq2SeqConfig& c, const Form& form, I layer)
      : Base(form.prefix + "DecoderLayer"),
        norm_before_(form.norm_before),
        checkpoint_(c.options.checkpoint),
        reentrant_(c.options.reentrant),
        dropout_(c.dropout),
        activation_dropout_(c.activation_dropout),
        self_attn_(register_module("self_attn", attention_of(c, form, c.decoder.heads, layer, true))),
        activation_fn(child<Activation>("activation_fn", c.act)),
        self_attn_layer_norm(child<LayerNorm>("self_attn_layer_norm", c.hidden)),
        encoder_attn_(register_module("encoder_attn", attention_of(c, form, c.decoder.heads, layer, false))),
        encoder_attn_layer_norm(child<LayerNorm>("encoder_attn_layer_norm", c.hidden)),
        fc1(child<Linear>("fc1", c.hidden, c.decoder.intermediate)),
        fc2(child<Linear>("fc2", c.decoder.intermediate, c.hidden)),
        final_layer_norm(child<LayerNorm>("final_layer_norm", c.hidden)) {}

  X operator()(X hidden_states, X attention_mask, X encoder_hidden_states, EncoderDecoderCache* cache) {
    Entered scope(*this);
    if (checkpoint_ && training && runtime().grad_mode) {
      const bool masked = bool(attention_mask), crosses = bool(encoder_hidden_states);
      Region region = [this, masked, crosses](const Tensors& in) {
        return Tensors{forward(X(in[0]), masked ? X(in[1]) : X(), crosses ? X(in.back()) : X(), nullptr)};
      };
      Tensors inputs = {hidden_states};
      if (masked) inputs.push_back(attention_mask);
      if (crosses) inputs.push_back(encoder_hidden_states);
      return reentrant_ ? checkpoint_reentrant(std::move(region), std::move(inputs))[0]
                        : memest::checkpoint(std::move(region), std::move(inputs))[0];
    }
    X result = forward(hidden_states, attention_mask, encoder_hidden_states, cache);
    hidden_states.reset();
    return result;
  }

 private:
  using Base::forward;
  X forward(X hidden_states, const X& attention_mask, const X& encoder_hidden_states, EncoderDecoderCache* cache) {
    X residual = hidden_states;
    if (norm_before_) hidden_states = self_attn_layer_norm(hidden_states);
    X weights;
    std::tie(hidden_states, weights) = (*self_attn_)(hidden_states, {}, attention_mask, cache ? &cache->self_attention : nullptr);
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    hidden_states = residual.add(hidden_states);
    if (!norm_before_) hidden_states = self_attn_layer_norm(hidden_states);
    if (encoder_hidden_states) {
      residual = hidden_states;
      if (norm_before_) hidden_states = encoder_attn_layer_norm(hidden_states);
      std::tie(hidden_states, weights) =
          (*encoder_attn_)(hidden_states, encoder_hidden_states, {}, cache ? &cache->cross_attention : nullptr);
      hidden_states = ops::dropout(hidden_states, dropout_, training);
      hidden_states = residual.add(hidden_states);
      if (!norm_before_) hidden_states = encoder_attn_layer_norm(hidden_states);
    }
    residual = hidden_states;
    if (norm_before_) hidden_states = final_layer_norm(hidden_states);
    hidden_states = activation_fn(fc1(hidden_states));
    hidden_states = ops::dropout(hidden_states, activation_dropout_, training);
    hidden_states = fc2(hidden_states);
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    hidden_states = residual.add(hidden_states);
    if (!norm_before_) hidden_states = final_layer_norm(hidden_states);
    return leave(std::move(hidden_states), residual, weights);
  }

  bool norm_before_, checkpoint_, reentrant_;
  double dropout_, activation_dropout_;
  CrossMixerPtr self_attn_;
  Activation& activation_fn;
  LayerNorm& self_attn_layer_norm;
  CrossMixerPtr encoder_attn_;
  LayerNorm& encoder_attn_layer_norm;
  Linear &fc1, &fc2;
  LayerNorm& final_layer_norm;
};

/// nn.Embedding, or BartScaledWordEmbedding.
class WordEmbedding final : public Unary, public nn::InputEmbedding {
 public:
  WordEmbedding(const Seq2SeqConfig& c, const std::string& prefix, bool scales_itself, I vocab)
      : Unary(scales_itself ? prefix + "ScaledWordEmbedding" : "Embedding"),
        scales_itself_(scales_itself),
        padding_idx_(c.pad_token.value_or(-1)) {
    new_parameter("weight", {vocab, c.hidden});
  }

 protected:
  X forward(X indices) override {
    X embeddings = ops::embedding(parameter(0), indices, padding_idx_, false, false);
    if (scales_itself_) embeddings = std::move(embeddings).mul(1.0);
    return hooked(embeddings);
  }

 private:
  bool scales_itself_;
  I padding_idx_;
};

class Positions final : public PositionEmbedding {
 public:
  Positions(const Seq2SeqConfig& c, const Form& form) : PositionEmbedding(type_of(form)), kind_(form.positions) {
    const I rows = c.positions + (kind_ == Form::Positions::offset || kind_ == Form::Positions::counted ? 2 : 0);
    if (kind_ == Form::Positions::counted) {
      new_buffer("weights", {rows, c.hidden}, runtime().default_dtype);
      return;
    }
    new_parameter("weight", {rows, c.hidden});
    if (kind_ == Form::Positions::sinusoidal) parameter(0)->requires_grad = false;
  }

 protected:
  X forward(const X& input_ids, const X&, X position_ids) override {
    const I bsz = input_ids.size(0), seq_len = input_ids.size(1);
    if (kind_ == Form::Positions::counted) return counted(input_ids, bsz, seq_len);
    if (kind_ != Form::Positions::offset) {
      if (!position_ids) position_ids = arange(seq_len);
      return embed(position_ids);
    }
    if (position_ids)
      position_ids = position_ids.unsqueeze(0);
    else
      position_ids = arange(seq_len).expand({bsz, -1});
    return embed(position_ids.add(2));
  }

 private:
  static std::string type_of(const Form& form) {
    const bool sinusoidal = form.positions == Form::Positions::sinusoidal || form.positions == Form::Positions::counted;
    return form.prefix + (sinusoidal ? "SinusoidalPositionalEmbedding" : "LearnedPositionalEmbedding");
  }
  X embed(X ids) { return ops::embedding(parameter(0), ids, -1, false, false); }
  /// M2M100SinusoidalPositionalEmbedding.
  X counted(const X& input_ids, I bsz, I seq_len) {
    NoGrad no_grad;
    X position_ids;
    {
      X mask = aten("ne", {Tensor(input_ids), I{1}}).to(DType::int32);
      X incremental_indices = aten("cumsum", {Tensor(mask), I{1}}).to(DType::int32).add(0).mul(mask);
      position_ids = incremental_indices.to(DType::int64).add(1);
      position_ids = leave(std::move(position_ids), mask, incremental_indices);
    }
    X rows = aten("index_select", {Tensor(buffer(0)), I{0}, Tensor(position_ids.view({-1}))});
    return std::move(rows).view({bsz, seq_len, buffer(0).size(-1)}).detach();
  }

  Form::Positions kind_;
};
class Encoder final : public Seq2SeqEncoder {
 public:
  Encoder(const Seq2SeqConfig& c, const Form& form)
      : Seq2SeqEncoder(form.prefix + "Encoder"),
        options_(c.options),
        scales_(!form.scales_itself),
        dropout_(c.dropout),
        embed_tokens(child<WordEmbedding>("embed_tokens", c, form.prefix, form.scales_itself, c.vocab)),
        embed_positions(register_module("embed_positions", make_positions(c, form))),
        layers_(*this, "layers", c.encoder.layers, [&](I i) { return std::make_shared<EncoderLayer>(c, form, i); }) {
    if (form.norms_embedding) layernorm_embedding = &child<LayerNorm>("layernorm_embedding", c.hidden);
    if (form.norms_end) layer_norm = &child<LayerNorm>(form.end_norm, c.hidden);
  }

 protected:
  X forward(const X& input_ids, X attention_mask) override {
    X inputs_embeds = embed_tokens(input_ids);
    if (scales_) inputs_embeds = std::move(inputs_embeds).mul(1.0);
    X embed_pos = (*embed_positions)(input_ids, inputs_embeds);
    X hidden_states = inputs_embeds.add(embed_pos);
    if (layernorm_embedding) hidden_states = (*layernorm_embedding)(hidden_states);
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    if (attention_mask) {
      X mask = create_bidirectional_mask({.options = options_, .inputs_embeds = inputs_embeds, .attention_mask = attention_mask});
      attention_mask = std::move(mask);
    }
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, LayerCall{attention_mask, {}, {}, nullptr});
    if (layer_norm) hidden_states = (*layer_norm)(hidden_states);
    return leave(std::move(hidden_states), inputs_embeds, embed_pos);
  }

 private:
  const Options options_;
  bool scales_;
  double dropout_;
  WordEmbedding& embed_tokens;
  PositionEmbeddingPtr embed_positions;
  Layers<EncoderLayer> layers_;
  LayerNorm *layernorm_embedding = nullptr, *layer_norm = nullptr;
};

using CachesPtr = std::shared_ptr<EncoderDecoderCache>;

class Decoder final : public Base {
 public:
  Decoder(const Seq2SeqConfig& c, const Form& form)
      : Base(form.prefix + "Decoder"),
        options_(c.options),
        form_(form),
        dropout_(c.dropout),
        embed_tokens(child<WordEmbedding>("embed_tokens", c, form.prefix, form.scales_itself, c.decoder_vocab)),
        embed_positions(register_module("embed_positions", make_positions(c, form))),
        layers_(*this, "layers", c.decoder.layers, [&](I i) { return std::make_shared<CrossLayer>(c, form, i); }) {
    if (form.norms_embedding) layernorm_embedding = &child<LayerNorm>("layernorm_embedding", c.hidden);
    if (form.norms_end) layer_norm = &child<LayerNorm>(form.end_norm, c.hidden);
  }
  /// `cache` and `encoder_attention_mask`: as generate() gives them.
  std::pair<X, CachesPtr> operator()(X input_ids, X encoder_hidden_states, bool use_cache, CachesPtr cache = nullptr,
                                     X encoder_attention_mask = {}) {
    Entered scope(*this);
    X inputs_embeds = embed_tokens(input_ids);
    if (!form_.scales_itself && form_.decoder_scales) inputs_embeds = std::move(inputs_embeds).mul(1.0);
    if (use_cache && !cache && !(options_.checkpoint && training && runtime().grad_mode)) cache = std::make_shared<EncoderDecoderCache>();
    const I batch_size = inputs_embeds.size(0), seq_length = inputs_embeds.size(1);
    const I cache_length = cache ? cache->self_attention.seen() : 0;
    X position_ids;
    if (form_.position_ids == Form::PositionIds::before_mask) position_ids = arange(seq_length).add(cache_length);
    X attention_mask;
    if (form_.ones_mask) attention_mask = ones({batch_size, cache_length + seq_length}, DType::float32);
    X causal_mask = create_causal_mask({.options = options_,
                                        .inputs_embeds = inputs_embeds,
                                        .cache = cache ? &cache->self_attention : nullptr,
                                        .attention_mask = attention_mask});
    if (!form_.keeps_ones_mask) attention_mask.reset();
    if (encoder_attention_mask) {
      X mask = create_bidirectional_mask(
          {.options = options_, .inputs_embeds = encoder_hidden_states, .attention_mask = encoder_attention_mask});
      encoder_attention_mask = std::move(mask);
    }
    if (form_.position_ids == Form::PositionIds::after_mask) position_ids = arange(seq_length).add(0);
    X positions = (*embed_positions)(input_ids, inputs_embeds, position_ids);
    if (!form_.keeps_position_ids) position_ids.reset();
    X hidden_states;
    if (form_.norms_before_positions) {
      inputs_embeds = (*layernorm_embedding)(inputs_embeds);
      hidden_states = inputs_embeds.add(positions);
    } else {
      hidden_states = inputs_embeds.add(positions);
      if (layernorm_embedding) hidden_states = (*layernorm_embedding)(hidden_states);
    }
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, causal_mask, encoder_hidden_states, cache.get());
    X layer_outputs;
    if (form_.names_layer_outputs) layer_outputs = hidden_states;
    if (layer_norm) hidden_states = (*layer_norm)(hidden_states);
    attention_mask.reset();
    if (!form_.keeps_ones_mask) causal_mask.reset();
    inputs_embeds.reset();
    if (!form_.keeps_position_ids && form_.position_ids == Form::PositionIds::before_mask) position_ids = std::move(positions);
    return leave(std::pair<X, CachesPtr>{hidden_states, cache}, position_ids, causal_mask, positions, layer_outputs);
  }

 private:
  const Options options_;
  const Form form_;
  double dropout_;
  WordEmbedding& embed_tokens;
  PositionEmbeddingPtr embed_positions;
  Layers<CrossLayer> layers_;
  LayerNorm *layernorm_embedding = nullptr, *layer_norm = nullptr;
};

struct Shared {
  Seq2SeqConfig c;
  Form form;
};
using SharedPtr = std::shared_ptr<const Shared>;

class Model final : public Base {
 public:
  struct Output {
    X last_hidden_state;
    CachesPtr cache;
    X encoder_last_hidden_state;
  };
  explicit Model(SharedPtr s) : Base(s->form.prefix + "Model"), s_(s) {
    if (!s->form.shared.empty()) child<WordEmbedding>(s->form.shared, s->c, s->form.prefix, s->form.scales_itself, s->c.vocab);
    encoder_ = register_module("encoder", s->form.encoder ? s->form.encoder(s->c) : std::make_shared<Encoder>(s->c, s->form));
    decoder_ = &child<Decoder>("decoder", s->c, s->form);
    if (!s->c.tie || s->form.shared.empty()) return;
    for (const char* stack : {"decoder", "encoder"}) tie(std::string(stack) + ".embed_tokens.weight", s->form.shared + ".weight");
  }
  X encode(X input_ids, X attention_mask) { return (*encoder_)(input_ids, attention_mask); }
  /// forward with encoder_outputs.
  Output decode(X decoder_input_ids, X encoder_outputs, X attention_mask, bool use_cache, CachesPtr cache) {
    Entered scope(*this);
    X last_hidden_state = (*decoder_)(decoder_input_ids, encoder_outputs, use_cache, cache, attention_mask).first;
    return {last_hidden_state, cache, encoder_outputs};
  }
  Output operator()(X input_ids, X decoder_input_ids, bool use_cache) {
    Entered scope(*this);
    if (!decoder_input_ids) decoder_input_ids = s_->form.shift(input_ids);
    X encoder_last_hidden_state = (*encoder_)(input_ids);
    auto [last_hidden_state, cache] = (*decoder_)(decoder_input_ids, encoder_last_hidden_state, use_cache);
    return {last_hidden_state, cache, encoder_last_hidden_state};
  }

 private:
  SharedPtr s_;
  Seq2SeqEncoderPtr encoder_;
  Decoder* decoder_;
};

class ModelNetwork : public Seq2SeqNetwork {
 public:
  ModelNetwork(SharedPtr s, const std::string& suffix)
      : Seq2SeqNetwork(s->form.prefix + suffix, s->c.options), s_(s), model_(child<Model>(s->form.model_name, s)) {}

 protected:
  bool use_cache(const X& labels) const { return options_.use_cache && !labels; }
  SharedPtr s_;
  Model& model_;
};

class ForConditionalGeneration final : public ModelNetwork, public EncoderDecoder {
 public:
  explicit ForConditionalGeneration(SharedPtr s) : ModelNetwork(s, s->form.generation_suffix) {
    const I vocab = s->form.shared.empty() ? s->c.decoder_vocab : s->c.vocab;
    if (s->form.logits_bias) new_buffer("final_logits_bias", {1, vocab}, runtime().default_dtype);
    lm_head = &child<Linear>("lm_head", s->c.hidden, vocab, false);
    if (s->c.tie)
      tie("lm_head.weight", s->form.model_name + "." + (s->form.shared.empty() ? "decoder.embed_tokens" : s->form.shared) + ".weight");
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    X decoder_input_ids = batch.decoder_input;
    if (batch.labels && !decoder_input_ids) decoder_input_ids = s_->form.shift(batch.labels);
    Model::Output outputs =
        model_(batch.input, decoder_input_ids, s_->form.labels_end_cache ? use_cache(batch.labels) : options_.use_cache);
    X lm_logits = (*lm_head)(outputs.last_hidden_state);
    if (s_->form.logits_bias) lm_logits = lm_logits.add(X(buffer(0)));
    X loss;
    if (batch.labels) loss = flat_cross_entropy(lm_logits, batch.labels, lm_logits.size(-1));
    Value output = seq2seq_output({loss, lm_logits}, outputs.cache.get(), outputs.encoder_last_hidden_state);
    return leave(nn::Outcome{std::move(output), loss}, decoder_input_ids, outputs.last_hidden_state);
  }
  bool generates() const override { return s_->form.generates; }
  X encode(X input_ids, X attention_mask) override { return model_.encode(input_ids, attention_mask); }
  X decode(X decoder_input_ids, X encoder_hidden_states, X attention_mask, CachesPtr cache) override {
    Entered scope(*this);
    Model::Output outputs = model_.decode(decoder_input_ids, encoder_hidden_states, attention_mask, options_.use_cache, cache);
    X lm_logits = (*lm_head)(outputs.last_hidden_state);
    if (s_->form.logits_bias) lm_logits = lm_logits.add(X(buffer(0)));
    return leave(std::move(lm_logits), outputs.last_hidden_state);
  }
  I decoder_layers() const override { return s_->c.decoder.layers; }

 private:
  Linear* lm_head;
};

/// BartClassificationHead.
class ClassificationHead final : public Module<ClassificationHead> {
 public:
  ClassificationHead(const Seq2SeqConfig& c, const std::string& prefix, I classes)
      : Module(prefix + "ClassificationHead"),
        dense(child<Linear>("dense", c.hidden, c.hidden)),
        dropout(child<Dropout>("dropout", c.file.number_or("classifier_dropout", 0.0))),
        out_proj(child<Linear>("out_proj", c.hidden, classes)) {}
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

class ForSequenceClassification final : public ModelNetwork {
 public:
  explicit ForSequenceClassification(SharedPtr s)
      : ModelNetwork(s, "ForSequenceClassification"),
        classes_(num_labels(s->c.file)),
        classification_head(child<ClassificationHead>("classification_head", s->c, s->form.prefix, classes_)) {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    Model::Output outputs = model_(batch.input, batch.decoder_input, use_cache(batch.labels));
    X hidden_states = outputs.last_hidden_state;
    X eos_mask = aten("eq", {Tensor(batch.input), I{2}});
    if (!(eos_mask.sizes() == hidden_states.sizes().slice(0, 2)))
      throw Error("the classes are read at the <eos> of input_ids: the target has the source's length", "leave out --tgt-seq");
    aten_list("unique_consecutive", {Tensor(eos_mask.sum(1))});
    X selected;
    {
      ops::AssumedSelection one_of_each(hidden_states.size(0));
      selected = aten("index", {Tensor(hidden_states), make_list({Tensor(eos_mask)})});
    }
    X sentence_representation = selected.view({hidden_states.size(0), -1, hidden_states.size(-1)}).select(1, -1);
    X logits = classification_head(sentence_representation);
    X loss;
    if (batch.labels) loss = sequence_classification_loss(batch.labels, logits, classes_);
    return {seq2seq_output({loss, logits}, outputs.cache.get(), outputs.encoder_last_hidden_state), loss};
  }

 private:
  I classes_;
  ClassificationHead& classification_head;
};

class ForQuestionAnswering final : public ModelNetwork {
 public:
  explicit ForQuestionAnswering(SharedPtr s)
      : ModelNetwork(s, "ForQuestionAnswering"), qa_outputs(child<Linear>("qa_outputs", s->c.hidden, 2)) {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    Model::Output outputs = model_(batch.input, batch.decoder_input, use_cache(batch.labels));
    X logits = qa_outputs(outputs.last_hidden_state);
    std::vector<X> parts = logits.split(1, -1);
    X start_logits = parts[0].squeeze(-1).contiguous(), end_logits = parts[1].squeeze(-1).contiguous();
    parts.clear();
    X total_loss, start_positions, end_positions, start_loss, end_loss;
    if (batch.labels) {
      const I ignored_index = start_logits.size(1);
      start_positions = aten("clamp", {Tensor(batch.labels), I{0}, ignored_index});
      end_positions = aten("clamp", {Tensor(batch.end_positions), I{0}, ignored_index});
      start_loss = ops::cross_entropy_loss(start_logits, start_positions, Tensor(), 1, ignored_index, 0.0);
      end_loss = ops::cross_entropy_loss(end_logits, end_positions, Tensor(), 1, ignored_index, 0.0);
      total_loss = start_loss.add(end_loss).div(2);
    }
    Value output = seq2seq_output({total_loss, start_logits, end_logits}, outputs.cache.get(), outputs.encoder_last_hidden_state);
    return leave(nn::Outcome{std::move(output), total_loss}, start_positions, end_positions, outputs.last_hidden_state, logits, start_loss,
                 end_loss);
  }

 private:
  Linear& qa_outputs;
};

class Alone final : public ModelNetwork {
 public:
  explicit Alone(SharedPtr s) : ModelNetwork(s, "Model") {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    Model::Output outputs = model_(batch.input, batch.decoder_input, options_.use_cache);
    return {seq2seq_output({outputs.last_hidden_state}, outputs.cache.get(), outputs.encoder_last_hidden_state), {}};
  }
};

class DecoderWrapper final : public Base {
 public:
  explicit DecoderWrapper(const Shared& s) : Base(s.form.prefix + "DecoderWrapper"), decoder(child<Decoder>("decoder", s.c, s.form)) {}
  Decoder& decoder;
};

class ForCausalLM final : public Network {
 public:
  explicit ForCausalLM(SharedPtr s)
      : Network(s->form.prefix + "ForCausalLM", s->c.options),
        s_(s),
        model_(child<DecoderWrapper>("model", *s)),
        lm_head(child<Linear>("lm_head", s->c.hidden, s->c.vocab, false)) {
    if (s->c.tie && s->form.ties_causal_head) tie("lm_head.weight", "model.decoder.embed_tokens.weight");
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto [last_hidden_state, cache] = model_.decoder(batch.input, {}, options_.use_cache);
    X hidden_states = last_hidden_state.whole_slices(3);
    X logits = lm_head(hidden_states);
    X loss;
    if (batch.labels) loss = flat_cross_entropy(logits, batch.labels, s_->c.vocab);
    return {seq2seq_output({loss, logits}, cache.get(), {}), loss};
  }

 private:
  SharedPtr s_;
  DecoderWrapper& model_;
  Linear& lm_head;
};

}  // namespace

CrossMixerPtr make_cross_attention(const Seq2SeqConfig& c, const std::string& prefix, I heads, I layer, bool causal, bool bias) {
  return std::make_shared<BartAttention>(c, prefix, heads, layer, causal, bias);
}
PositionEmbeddingPtr make_positions(const Seq2SeqConfig& c, const Seq2SeqForm& form) {
  if (form.own_positions) return form.own_positions(c);
  return std::make_shared<Positions>(c, form);
}
X clamp_overflown(X hidden_states) {
  if (hidden_states.dtype() != DType::float16) return hidden_states;
  { X finite = aten("all", {Tensor(aten("isfinite", {Tensor(hidden_states)}))}); }
  return clamped(hidden_states);
}
UnaryPtr make_scaled_embedding(const Seq2SeqConfig& c, const std::string& prefix, I vocab) {
  return std::make_shared<WordEmbedding>(c, prefix, true, vocab);
}

NetworkPtr make_seq2seq(const Config& config, const Options& options, Seq2SeqForm form) {
  Seq2SeqConfig c(config, options);
  if (!form.shifts_input) c.options.target = true;
  for (const char* key : {"encoder_layerdrop", "decoder_layerdrop"})
    if (options.labels && config.number_or(key, 0.0) > 0)
      runtime().diagnostics.add({Diagnostic::Severity::note, "layerdrop",
                                 "layers are skipped at random in training, and a step that skips one takes less: every layer is run here",
                                 config.pointer() + "/" + key, ""});
  const Task task = options.task;
  auto s = std::make_shared<const Shared>(Shared{std::move(c), std::move(form)});
  switch (task) {
    case Task::causal_lm: return std::make_shared<ForCausalLM>(s);
    case Task::seq_cls: return std::make_shared<ForSequenceClassification>(s);
    case Task::question_answering: return std::make_shared<ForQuestionAnswering>(s);
    case Task::base: return std::make_shared<Alone>(s);
    default: return std::make_shared<ForConditionalGeneration>(s);
  }
}
std::vector<TaskClass> seq2seq_classes(const std::string& prefix, NetworkPtr (*make)(const Config& config, const Options& options),
                                       std::vector<Task> tasks, const std::string& generation) {
  std::vector<TaskClass> classes;
  for (Task task : tasks) {
    const std::string suffix = task == Task::causal_lm            ? "ForCausalLM"
                               : task == Task::seq_cls            ? "ForSequenceClassification"
                               : task == Task::question_answering ? "ForQuestionAnswering"
                               : task == Task::base               ? "Model"
                                                                  : generation;
    classes.push_back({task, prefix + suffix, make});
  }
  return classes;
}

}  // namespace memest::hf
