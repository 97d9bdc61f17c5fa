// models/seamless_m4t/modeling_seamless_m4t.py and seamless_m4t_v2: text to text.
#include "fake/checkpoint.h"
#include "models/hf/encoder.h"
#include "models/hf/loss.h"
#include "models/hf/seq2seq.h"

namespace memest::hf {
namespace {

struct SeamlessConfig {
  SeamlessConfig(const Config& f, const Options& o, std::string name) : file(f), options(o), prefix(std::move(name)) {
    vocab = f.size("vocab_size");
    width = f.size("hidden_size");
    positions = f.size("max_position_embeddings");
    encoder = stack("encoder_");
    decoder = stack("decoder_");
    pad_token = f.integer_or("pad_token_id", 0);
    act = f.text_or("activation_function", "relu");
    dropout = f.number_or("dropout", 0.1);
    attention_dropout = f.number_or("attention_dropout", 0.1);
    activation_dropout = f.number_or("activation_dropout", 0.0);
  }
  struct Stack {
    I layers, heads, intermediate;
  };
  Stack stack(const std::string& which) const {
    constexpr I kMost = 10'000;
    Stack s{file.size(which + "layers"), file.size(which + "attention_heads"), file.size(which + "ffn_dim")};
    if (s.layers > kMost)
      throw file.error(which + "layers", "expected at most " + std::to_string(kMost) + " layers, found " + std::to_string(s.layers));
    if (width % s.heads != 0)
      throw file.error(which + "attention_heads",
                       "expected a divisor of the hidden_size " + std::to_string(width) + ", found " + std::to_string(s.heads));
    if (options.labels && file.number_or(which + "layerdrop", 0.0) > 0)
      runtime().diagnostics.add({Diagnostic::Severity::note, "layerdrop",
                                 "layers are skipped at random in training, and a step that skips one takes less: every layer is run here",
                                 file.pointer() + "/" + which + "layerdrop", ""});
    return s;
  }
  Config file;
  Options options;
  std::string prefix;
  I vocab, width, positions, pad_token;
  Stack encoder, decoder;
  std::string act;
  double dropout, attention_dropout, activation_dropout;
};

/// SeamlessM4TScaledWordEmbedding.
class ScaledEmbedding final : public Module<ScaledEmbedding>, public nn::InputEmbedding {
 public:
  explicit ScaledEmbedding(const SeamlessConfig& c) : Module(c.prefix + "ScaledWordEmbedding"), padding_idx_(c.pad_token) {
    new_parameter("weight", {c.vocab, c.width});
  }
  X forward(const X& input_ids) { return hooked(X(ops::embedding(parameter(0), input_ids, padding_idx_, false, false)).mul(1.0)); }

 private:
  I padding_idx_;
};

/// SeamlessM4TSinusoidalPositionalEmbedding: rows of a buffer, at the number of tokens so far that are no padding.
class SinusoidalPositions final : public Base {
 public:
  explicit SinusoidalPositions(const SeamlessConfig& c)
      : Base(c.prefix + "SinusoidalPositionalEmbedding"), rows_(c.positions + 2), width_(c.width), padding_idx_(c.pad_token) {
    new_buffer("weights", {rows_, width_}, runtime().default_dtype);
  }
  X operator()(const X& input_ids) {
    Entered scope(*this);
    NoGrad no_grad;
    const I bsz = input_ids.size(0), seq_len = input_ids.size(1);
    if (padding_idx_ + 1 + seq_len > rows_)
      throw Error("the sequence of " + std::to_string(seq_len) + " tokens is longer than the table of positions",
                  "its length is at most the config's max_position_embeddings");
    X position_ids;
    {
      X mask = aten("ne", {Tensor(input_ids), padding_idx_}).to(DType::int32);
      X incremental_indices = aten("cumsum", {Tensor(mask), I{1}}).to(DType::int32).add(I{0}).mul(mask);
      position_ids = incremental_indices.to(DType::int64).add(I{0});
      leave(0, mask, incremental_indices);
    }
    X rows = aten("index_select", {Tensor(buffer(0)), I{0}, Tensor(position_ids.view({-1}))});
    return std::move(rows).view({bsz, seq_len, width_}).detach();
  }

 private:
  I rows_, width_, padding_idx_;
};

class SeamlessAttention final : public Base {
 public:
  SeamlessAttention(const SeamlessConfig& c, I heads, bool causal, I layer)
      : Base(c.prefix + "Attention"),
        options_(c.options),
        layer_(layer),
        head_dim_(c.width / heads),
        dropout_(c.attention_dropout),
        causal_(causal),
        k_proj(child<Linear>("k_proj", c.width, c.width)),
        v_proj(child<Linear>("v_proj", c.width, c.width)),
        q_proj(child<Linear>("q_proj", c.width, c.width)),
        out_proj(child<Linear>("out_proj", c.width, c.width)) {}
  Pair operator()(X hidden_states, X encoder_hidden_states, X attention_mask, Cache* cache) {
    Entered scope(*this);
    const Dims input_shape = hidden_states.sizes().slice(0, 2);
    X query_states = q_proj(hidden_states).view(input_shape + Dims{-1, head_dim_}).transpose(1, 2);
    X current_states = encoder_hidden_states ? encoder_hidden_states : hidden_states;
    const Dims kv_shape = current_states.sizes().slice(0, 2) + Dims{-1, head_dim_};
    X key_states = k_proj(current_states);
    X value_states = v_proj(current_states);
    key_states = key_states.view(kv_shape).transpose(1, 2);
    value_states = value_states.view(kv_shape).transpose(1, 2);
    if (cache) std::tie(key_states, value_states) = cache->update(key_states, value_states, layer_);
    auto [attn_output, attn_weights] =
        bert_attention_interface(options_, query_states, key_states, value_states,
                                 {.mask = attention_mask, .dropout = training ? dropout_ : 0.0, .training = training, .causal = causal_});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = out_proj(attn_output);
    return leave(Pair{attn_output, attn_weights}, hidden_states, query_states, current_states, key_states, value_states, attn_output);
  }

 private:
  const Options options_;
  I layer_, head_dim_;
  double dropout_;
  bool causal_;
  Linear &k_proj, &v_proj, &q_proj, &out_proj;
};

class SeamlessFeedForward final : public Module<SeamlessFeedForward> {
 public:
  SeamlessFeedForward(const SeamlessConfig& c, I intermediate)
      : Module(c.prefix + "FeedForwardNetwork"),
        fc1(child<Linear>("fc1", c.width, intermediate)),
        fc2(child<Linear>("fc2", intermediate, c.width)),
        dropout(child<Dropout>("dropout", c.activation_dropout)),
        act(child<Activation>("act", c.act)) {}
  X forward(X hidden_states) {
    hidden_states = fc1(hidden_states);
    hidden_states = act(hidden_states);
    hidden_states = dropout(hidden_states);
    if (hidden_states.dtype() != fc2.weight().dtype()) hidden_states = hidden_states.to(fc2.weight().dtype());
    hidden_states = fc2(hidden_states);
    return hidden_states;
  }

 private:
  Linear &fc1, &fc2;
  Dropout& dropout;
  Activation& act;
};

/// SeamlessM4TEncoderLayer and SeamlessM4TDecoderLayer.
class SeamlessLayer final : public Base {
 public:
  struct Call {
    X mask, encoder_hidden_states;
    EncoderDecoderCache* cache = nullptr;
  };
  SeamlessLayer(const SeamlessConfig& c, bool decoder, I layer)
      : Base(c.prefix + (decoder ? "DecoderLayer" : "EncoderLayer")), checkpoint_(c.options.checkpoint), reentrant_(c.options.reentrant) {
    const auto& stack = decoder ? c.decoder : c.encoder;
    self_attn = &child<SeamlessAttention>("self_attn", c, stack.heads, decoder, layer);
    attn_dropout = &child<Dropout>("attn_dropout", c.dropout);
    self_attn_layer_norm = &child<LayerNorm>("self_attn_layer_norm", c.width);
    if (decoder) {
      cross_attention = &child<SeamlessAttention>("cross_attention", c, stack.heads, false, layer);
      cross_attention_layer_norm = &child<LayerNorm>("cross_attention_layer_norm", c.width);
    }
    ffn = &child<SeamlessFeedForward>("ffn", c, stack.intermediate);
    ffn_layer_norm = &child<LayerNorm>("ffn_layer_norm", c.width);
    ffn_dropout = &child<Dropout>("ffn_dropout", c.activation_dropout);
  }
  X operator()(X hidden_states, Call call) {
    Entered scope(*this);
    if (!(checkpoint_ && training && runtime().grad_mode)) {
      X result = forward(hidden_states, call);
      hidden_states.reset();
      return result;
    }
    Region region = [this](const Tensors& in) { return Tensors{forward(X(in[0]), {in[1], in[2]})}; };
    const Tensors inputs{hidden_states, call.mask, call.encoder_hidden_states};
    return reentrant_ ? checkpoint_reentrant(std::move(region), inputs)[0] : memest::checkpoint(std::move(region), inputs)[0];
  }

 private:
  X forward(X hidden_states, const Call& call) {
    X residual = hidden_states, weights;
    hidden_states = (*self_attn_layer_norm)(hidden_states);
    std::tie(hidden_states, weights) = (*self_attn)(hidden_states, {}, call.mask, call.cache ? &call.cache->self_attention : nullptr);
    hidden_states = (*attn_dropout)(hidden_states);
    hidden_states = residual.add(hidden_states);
    if (call.encoder_hidden_states) {
      residual = hidden_states;
      hidden_states = (*cross_attention_layer_norm)(hidden_states);
      std::tie(hidden_states, weights) =
          (*cross_attention)(hidden_states, call.encoder_hidden_states, {}, call.cache ? &call.cache->cross_attention : nullptr);
      hidden_states = (*attn_dropout)(hidden_states);
      hidden_states = residual.add(hidden_states);
    }
    residual = hidden_states;
    hidden_states = (*ffn_layer_norm)(hidden_states);
    hidden_states = (*ffn)(hidden_states);
    hidden_states = (*ffn_dropout)(hidden_states);
    hidden_states = residual.add(hidden_states);
    return leave(std::move(hidden_states), residual, weights);
  }

  bool checkpoint_, reentrant_;
  SeamlessAttention *self_attn, *cross_attention = nullptr;
  LayerNorm *self_attn_layer_norm, *cross_attention_layer_norm = nullptr, *ffn_layer_norm;
  SeamlessFeedForward* ffn;
  Dropout *attn_dropout, *ffn_dropout;
};

/// SeamlessM4TEncoder and SeamlessM4TDecoder.
class SeamlessStack final : public Base {
 public:
  SeamlessStack(const SeamlessConfig& c, bool decoder)
      : Base(c.prefix + (decoder ? "Decoder" : "Encoder")),
        options_(c.options),
        decoder_(decoder),
        dropout_(c.dropout),
        embed_tokens(child<ScaledEmbedding>("embed_tokens", c)),
        embed_positions(child<SinusoidalPositions>("embed_positions", c)),
        layers_(*this, "layers", decoder ? c.decoder.layers : c.encoder.layers,
                [&](I i) { return std::make_shared<SeamlessLayer>(c, decoder, i); }),
        layer_norm(child<LayerNorm>("layer_norm", c.width)) {}
  X operator()(X input_ids, X encoder_hidden_states = {}, EncoderDecoderCache* cache = nullptr) {
    Entered scope(*this);
    X inputs_embeds = embed_tokens(input_ids);
    X attention_mask;
    if (decoder_) attention_mask = create_causal_mask({options_, inputs_embeds, cache ? &cache->self_attention : nullptr});
    X positions = embed_positions(input_ids);
    X hidden_states = inputs_embeds.add(positions);
    hidden_states = ops::dropout(hidden_states, dropout_, training);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, {attention_mask, encoder_hidden_states, cache});
    hidden_states = layer_norm(hidden_states);
    return leave(std::move(hidden_states), attention_mask, inputs_embeds, positions);
  }

 private:
  const Options options_;
  bool decoder_;
  double dropout_;
  ScaledEmbedding& embed_tokens;
  SinusoidalPositions& embed_positions;
  Layers<SeamlessLayer> layers_;
  LayerNorm& layer_norm;
};

class SeamlessForTextToText final : public Seq2SeqNetwork {
 public:
  explicit SeamlessForTextToText(const SeamlessConfig& c) : Seq2SeqNetwork(c.prefix + "ForTextToText", targeted(c.options)), c_(c) {
    child<Embedding>("shared", c.vocab, c.width, c.pad_token);
    text_encoder = &child<SeamlessStack>("text_encoder", c, false);
    text_decoder = &child<SeamlessStack>("text_decoder", c, true);
    lm_head = &child<Linear>("lm_head", c.width, c.vocab, false);
    if (!c.file.boolean_or("tie_word_embeddings", true)) return;
    for (const char* name : {"lm_head.weight", "text_encoder.embed_tokens.weight", "text_decoder.embed_tokens.weight"})
      tie(name, "shared.weight");
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    X decoder_input_ids = batch.decoder_input;
    if (batch.labels) decoder_input_ids = shift_tokens_right(batch.labels);
    const Options& o = options_;
    X encoder_outputs = (*text_encoder)(batch.input);
    std::shared_ptr<EncoderDecoderCache> cache;
    if (!batch.labels && o.use_cache && !(o.checkpoint && training && runtime().grad_mode)) {
      cache = std::make_shared<EncoderDecoderCache>();
      for (Cache* part : {&cache->self_attention, &cache->cross_attention})
        *part = Cache(std::vector<I>(std::size_t(c_.decoder.layers), 0));
    }
    X decoder_outputs = (*text_decoder)(decoder_input_ids, encoder_outputs, cache.get());
    X lm_logits = (*lm_head)(decoder_outputs);
    X loss;
    if (batch.labels) loss = flat_cross_entropy(lm_logits, batch.labels, c_.vocab);
    Value output = seq2seq_output({loss, lm_logits}, cache.get(), encoder_outputs);
    return leave(nn::Outcome{std::move(output), loss}, decoder_input_ids, decoder_outputs);
  }

 private:
  /// Without labels the class takes decoder_input_ids.
  static Options targeted(Options o) {
    o.target = !o.labels;
    return o;
  }
  const SeamlessConfig c_;
  SeamlessStack *text_encoder, *text_decoder;
  Linear* lm_head;
};

NetworkPtr seamless_m4t(const Config& config, const Options& o) {
  return std::make_shared<SeamlessForTextToText>(SeamlessConfig(config, o, "SeamlessM4T"));
}
NetworkPtr seamless_m4t_v2(const Config& config, const Options& o) {
  return std::make_shared<SeamlessForTextToText>(SeamlessConfig(config, o, "SeamlessM4Tv2"));
}
const Family seamless_family{{"seamless_m4t"}, {{Task::seq2seq, "SeamlessM4TForTextToText", seamless_m4t}}};
const Family seamless_v2_family{{"seamless_m4t_v2"}, {{Task::seq2seq, "SeamlessM4Tv2ForTextToText", seamless_m4t_v2}}};

}  // namespace
}  // namespace memest::hf
