// models/whisper/modeling_whisper.py.
#include "models/hf/whisper.h"

#include "fake/checkpoint.h"
#include "models/hf/encoder.h"
#include "models/hf/encoder_decoder.h"
#include "models/hf/loss.h"
#include "models/hf/seq2seq.h"

namespace memest::hf {
namespace {

struct WhisperConfig {
  WhisperConfig(const Config& f, const Options& o) : WhisperConfig(f, o, "Whisper") {
    vocab = f.size("vocab_size");
    target_positions = f.size("max_target_positions");
    decoder = stack("decoder_");
    pad_token = f.integer_if("pad_token_id");
  }
  /// Of an encoder alone; `prefix`: of its class names.
  WhisperConfig(const Config& f, const Options& o, std::string class_prefix) : file(f), options(o), prefix(std::move(class_prefix)) {
    width = f.size("d_model");
    mel_bins = f.size("num_mel_bins");
    source_positions = f.size("max_source_positions");
    encoder = stack("encoder_");
    act = f.text_or("activation_function", "gelu");
    dropout = f.number_or("dropout", 0.0);
    attention_dropout = f.number_or("attention_dropout", 0.0);
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
                       "expected a divisor of the d_model " + std::to_string(width) + ", found " + std::to_string(s.heads));
    if (options.labels && file.number_or(which + "layerdrop", 0.0) > 0)
      runtime().diagnostics.add({Diagnostic::Severity::note, "layerdrop",
                                 "layers are skipped at random in training, and a step that skips one takes less: every layer is run here",
                                 file.pointer() + "/" + which + "layerdrop", ""});
    return s;
  }
  Config file;
  Options options;
  std::string prefix;
  I vocab = 0, width, mel_bins, source_positions, target_positions = 0;
  Stack encoder, decoder = {};
  std::optional<I> pad_token;
  std::string act;
  double dropout, attention_dropout, activation_dropout;
};

class WhisperAttention final : public Base {
 public:
  WhisperAttention(const WhisperConfig& c, I heads, bool causal, I layer)
      : Base(c.prefix + "Attention"),
        options_(c.options),
        layer_(layer),
        heads_(heads),
        head_dim_(c.width / heads),
        dropout_(c.attention_dropout),
        causal_(causal),
        k_proj(child<Linear>("k_proj", c.width, c.width, false)),
        v_proj(child<Linear>("v_proj", c.width, c.width)),
        q_proj(child<Linear>("q_proj", c.width, c.width)),
        out_proj(child<Linear>("out_proj", c.width, c.width)) {}
  Pair operator()(X hidden_states, X key_value_states, X attention_mask, Cache* cache) {
    Entered scope(*this);
    const Dims input_shape = hidden_states.sizes().slice(0, 2);
    X query_states = q_proj(hidden_states).mul(1.0).view(input_shape + Dims{-1, head_dim_}).transpose(1, 2).contiguous();
    X current_states = key_value_states ? key_value_states : hidden_states;
    X key_states, value_states;
    if (const CacheLayer* updated = updated_layer(key_value_states ? cache : nullptr, layer_)) {
      key_states = updated->keys;
      value_states = updated->values;
    } else {
      const Dims kv_shape{input_shape[0], -1, heads_, head_dim_};
      key_states = k_proj(current_states).view(kv_shape).transpose(1, 2).contiguous();
      value_states = v_proj(current_states).view(kv_shape).transpose(1, 2).contiguous();
      if (cache) std::tie(key_states, value_states) = cache->update(key_states, value_states, layer_);
    }
    auto [attn_output, attn_weights] =
        bert_attention_interface(options_, query_states, key_states, value_states,
                                 {.mask = attention_mask, .dropout = training ? dropout_ : 0.0, .training = training, .causal = causal_});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = out_proj(attn_output);
    return leave(Pair{attn_output, attn_weights}, hidden_states, query_states, current_states, key_states, value_states, attn_output);
  }

 private:
  const Options options_;
  I layer_, heads_, head_dim_;
  double dropout_;
  bool causal_;
  Linear &k_proj, &v_proj, &q_proj, &out_proj;
};

/// WhisperEncoderLayer and WhisperDecoderLayer.
class WhisperLayer final : public AudioEncoderLayer {
 public:
  struct Call {
    X mask, encoder_hidden_states;
    Cache *cache = nullptr, *cross_cache = nullptr;
  };
  WhisperLayer(const WhisperConfig& c, bool decoder, I layer)
      : AudioEncoderLayer(c.prefix + (decoder ? "DecoderLayer" : "EncoderLayer")), c_(c), decoder_(decoder) {
    const auto& stack = decoder ? c.decoder : c.encoder;
    self_attn = &child<WhisperAttention>("self_attn", c, stack.heads, decoder, layer);
    if (decoder) activation_fn = &child<Activation>("activation_fn", c.act);
    self_attn_layer_norm = &child<LayerNorm>("self_attn_layer_norm", c.width);
    if (decoder) {
      encoder_attn = &child<WhisperAttention>("encoder_attn", c, stack.heads, false, layer);
      encoder_attn_layer_norm = &child<LayerNorm>("encoder_attn_layer_norm", c.width);
    } else {
      activation_fn = &child<Activation>("activation_fn", c.act);
    }
    fc1 = &child<Linear>("fc1", c.width, stack.intermediate);
    fc2 = &child<Linear>("fc2", stack.intermediate, c.width);
    final_layer_norm = &child<LayerNorm>("final_layer_norm", c.width);
  }
  X operator()(X hidden_states, Call call) {
    Entered scope(*this);
    if (!(c_.options.checkpoint && training && runtime().grad_mode)) {
      X result = forward(hidden_states, call);
      hidden_states.reset();
      return result;
    }
    Region region = [this](const Tensors& in) { return Tensors{forward(X(in[0]), {in[1], in[2]})}; };
    const Tensors inputs{hidden_states, call.mask, call.encoder_hidden_states};
    return c_.options.reentrant ? checkpoint_reentrant(std::move(region), inputs)[0] : memest::checkpoint(std::move(region), inputs)[0];
  }

 protected:
  X layer(X hidden_states, X attention_mask) override { return (*this)(std::move(hidden_states), Call{std::move(attention_mask), {}}); }

 private:
  X forward(X hidden_states, const Call& call) {
    auto dropped = [this](X x, double p) { return X(ops::dropout(std::move(x), p, training)); };
    X ignored;
    X residual = hidden_states;
    hidden_states = (*self_attn_layer_norm)(hidden_states);
    std::tie(hidden_states, ignored) = (*self_attn)(hidden_states, {}, call.mask, call.cache);
    hidden_states = dropped(hidden_states, c_.dropout);
    hidden_states = residual.add(hidden_states);
    if (call.encoder_hidden_states) {
      residual = hidden_states;
      hidden_states = (*encoder_attn_layer_norm)(hidden_states);
      std::tie(hidden_states, ignored) = (*encoder_attn)(hidden_states, call.encoder_hidden_states, {}, call.cross_cache);
      hidden_states = dropped(hidden_states, c_.dropout);
      hidden_states = residual.add(hidden_states);
    }
    residual = hidden_states;
    hidden_states = (*final_layer_norm)(hidden_states);
    hidden_states = (*activation_fn)((*fc1)(hidden_states));
    hidden_states = dropped(hidden_states, c_.activation_dropout);
    hidden_states = (*fc2)(hidden_states);
    hidden_states = dropped(hidden_states, c_.dropout);
    hidden_states = residual.add(hidden_states);
    if (!decoder_ && hidden_states.dtype() == DType::float16) hidden_states = aten("clamp", {Tensor(hidden_states), -64504.0, 64504.0});
    return leave(std::move(hidden_states), residual, ignored);
  }

  const WhisperConfig c_;
  bool decoder_;
  WhisperAttention *self_attn, *encoder_attn = nullptr;
  LayerNorm *self_attn_layer_norm, *encoder_attn_layer_norm = nullptr, *final_layer_norm;
  Activation* activation_fn;
  Linear *fc1, *fc2;
};

class WhisperEncoder final : public Base {
 public:
  explicit WhisperEncoder(const WhisperConfig& c)
      : Base("WhisperEncoder"),
        c_(c),
        conv1(child<Conv1d>("conv1", c.mel_bins, c.width, 3, 1, 1)),
        conv2(child<Conv1d>("conv2", c.width, c.width, 3, 2, 1)),
        embed_positions(child<Embedding>("embed_positions", c.source_positions, c.width)),
        layers_(*this, "layers", c.encoder.layers, [&](I i) { return std::make_shared<WhisperLayer>(c, false, i); }),
        layer_norm(child<LayerNorm>("layer_norm", c.width)) {
    embed_positions.weight()->requires_grad = false;
  }
  X operator()(X input_features) {
    Entered scope(*this);
    const I expected = checked_mul(2, c_.source_positions);
    if (input_features.size(-1) != expected)
      throw Error("Whisper expects the mel input features to be of length " + std::to_string(expected) + ", but found " +
                  std::to_string(input_features.size(-1)) + ".");
    X inputs_embeds = ops::gelu(conv1(input_features), "none");
    inputs_embeds = ops::gelu(conv2(inputs_embeds), "none");
    inputs_embeds = inputs_embeds.permute({0, 2, 1});
    X all_positions = arange(c_.source_positions);
    X hidden_states = inputs_embeds.add(embed_positions(all_positions));
    hidden_states = ops::dropout(hidden_states, c_.dropout, training);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, {});
    hidden_states = layer_norm(hidden_states);
    return leave(std::move(hidden_states), inputs_embeds, all_positions);
  }

 private:
  const WhisperConfig c_;
  Conv1d &conv1, &conv2;
  Embedding& embed_positions;
  Layers<WhisperLayer> layers_;
  LayerNorm& layer_norm;
};

/// The cache of a decoder: EncoderDecoderCache, or the DynamicCache of a decoder alone.
using WhisperCache = std::shared_ptr<EncoderDecoderCache>;

class PositionalEmbedding final : public Base {
 public:
  PositionalEmbedding(I count, I width) : Base("WhisperPositionalEmbedding") { new_parameter("weight", {count, width}); }
  X operator()(X position_ids) {
    Entered scope(*this);
    return aten("index", {Tensor(parameter(0)), make_list({Tensor(position_ids)})});
  }
};

class WhisperDecoder final : public Base {
 public:
  explicit WhisperDecoder(const WhisperConfig& c)
      : Base("WhisperDecoder"),
        c_(c),
        embed_tokens(child<Embedding>("embed_tokens", c.vocab, c.width, c.pad_token)),
        embed_positions(child<PositionalEmbedding>("embed_positions", c.target_positions, c.width)),
        layers_(*this, "layers", c.decoder.layers, [&](I i) { return std::make_shared<WhisperLayer>(c, true, i); }),
        layer_norm(child<LayerNorm>("layer_norm", c.width)) {}
  std::pair<X, WhisperCache> operator()(X input_ids, X encoder_hidden_states, WhisperCache cache = nullptr) {
    Entered scope(*this);
    const Options& o = c_.options;
    const I cache_length = cache ? cache->self_attention.seen() : 0;
    if (cache_length + input_ids.size(1) > c_.target_positions)
      throw Error("Whisper's decoder has " + std::to_string(c_.target_positions) + " positions, but the sequence has " +
                      std::to_string(cache_length + input_ids.size(1)),
                  "its length is at most the config's max_target_positions");
    X inputs_embeds = embed_tokens(input_ids);
    if (o.use_cache && !cache && !(o.checkpoint && training && runtime().grad_mode)) {
      cache = std::make_shared<EncoderDecoderCache>();
      cache->self_attention = Cache(std::vector<I>(std::size_t(c_.decoder.layers), 0));
    }
    X position_ids = arange(inputs_embeds.size(1)).add(cache_length);
    position_ids = aten("repeat", {Tensor(position_ids.unsqueeze(0)), list_of(Dims{inputs_embeds.size(0), 1})});
    X positions = embed_positions(position_ids);
    X hidden_states = inputs_embeds.add(positions);
    hidden_states = ops::dropout(hidden_states, c_.dropout, training);
    X causal_mask = create_causal_mask({o, inputs_embeds, cache ? &cache->self_attention : nullptr, position_ids});
    for (auto& layer : layers_)
      hidden_states = (*layer)(hidden_states, {causal_mask, encoder_hidden_states, cache ? &cache->self_attention : nullptr,
                                               cache ? &cache->cross_attention : nullptr});
    hidden_states = layer_norm(hidden_states);
    hidden_states = leave(std::move(hidden_states), inputs_embeds, position_ids, positions, causal_mask);
    return {hidden_states, cache};
  }

 private:
  const WhisperConfig c_;
  Embedding& embed_tokens;
  PositionalEmbedding& embed_positions;
  Layers<WhisperLayer> layers_;
  LayerNorm& layer_norm;
};

/// A class that takes input_features: the spectrogram of 30 seconds, two frames a position.
class WhisperNetwork : public Network {
 public:
  WhisperNetwork(const char* type, const WhisperConfig& c) : Network(type, c.options), c_(c) {}
  std::vector<nn::InputSpec> inputs() const override {
    const nn::SizeExpression batch("batch"), seq("tgt_seq");
    std::vector<nn::InputSpec> list{
        {"input_features",
         {batch, nn::SizeExpression(std::to_string(c_.mel_bins)), nn::SizeExpression(std::to_string(checked_mul(2, c_.source_positions)))},
         DType::float32}};
    if (options_.task == Task::audio_cls) {
      if (options_.labels) list.push_back({"labels", {batch}, DType::int64});
    } else {
      list.push_back({options_.labels ? "labels" : "decoder_input_ids", {batch, seq}, DType::int64});
    }
    return list;
  }
  std::vector<std::pair<std::string, I>> default_sizes() const override {
    if (options_.task == Task::audio_cls) return {};
    return {{"seq", c_.target_positions}};
  }

 protected:
  const WhisperConfig c_;
};

class WhisperModel final : public Base {
 public:
  explicit WhisperModel(const WhisperConfig& c)
      : Base("WhisperModel"), c_(c), encoder_(child<WhisperEncoder>("encoder", c)), decoder_(child<WhisperDecoder>("decoder", c)) {}
  struct Output {
    X last_hidden_state, encoder_last_hidden_state;
    WhisperCache cache;
  };
  Output operator()(X input_features, X decoder_input_ids) {
    Entered scope(*this);
    mask_input_features(input_features);
    X encoder_outputs = encoder_(input_features);
    auto [last_hidden_state, cache] = decoder_(decoder_input_ids, encoder_outputs);
    return {last_hidden_state, encoder_outputs, cache};
  }
  X encode(X input_features) { return encoder_(input_features); }
  /// forward with encoder_outputs.
  X decode(X decoder_input_ids, X encoder_outputs, WhisperCache cache) {
    Entered scope(*this);
    return decoder_(decoder_input_ids, encoder_outputs, cache).first;
  }

 private:
  /// _mask_input_features (SpecAugment), in place; the masks come from the host.
  void mask_input_features(const X& input_features) {
    if (!training || !c_.file.boolean_or("apply_spec_augment", false)) return;
    const I batch = input_features.size(0), bins = input_features.size(1), length = input_features.size(2);
    X mask_time_indices, mask_feature_indices;
    if (c_.file.number_or("mask_time_prob", 0.05) > 0) {
      mask_time_indices = empty({batch, length}, DType::boolean);
      mask_time_indices = mask_time_indices.unsqueeze(1).expand({-1, bins, -1});
      aten("masked_fill_", {Tensor(input_features), Tensor(mask_time_indices), I{0}});
    }
    if (c_.file.number_or("mask_feature_prob", 0.0) > 0) {
      mask_feature_indices = empty({batch, bins}, DType::boolean);
      aten("masked_fill_", {Tensor(input_features), Tensor(mask_feature_indices.unsqueeze(2)), I{0}});
    }
    leave(0, mask_time_indices, mask_feature_indices);
  }

  const WhisperConfig c_;
  WhisperEncoder& encoder_;
  WhisperDecoder& decoder_;
};

class WhisperForConditionalGeneration final : public WhisperNetwork, public EncoderDecoder, public Transcribes {
 public:
  explicit WhisperForConditionalGeneration(const WhisperConfig& c)
      : WhisperNetwork("WhisperForConditionalGeneration", c),
        model_(child<WhisperModel>("model", c)),
        proj_out(child<Linear>("proj_out", c.width, c.vocab, false)) {
    if (c.file.boolean_or("tie_word_embeddings", true)) tie("proj_out.weight", "model.decoder.embed_tokens.weight");
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    X decoder_input_ids = batch.decoder_input;
    if (batch.labels) decoder_input_ids = shift_tokens_right(batch.labels);
    WhisperModel::Output outputs = model_(batch.input, decoder_input_ids);
    X lm_logits = proj_out(outputs.last_hidden_state);
    X loss;
    if (batch.labels) loss = flat_cross_entropy(lm_logits, batch.labels, c_.vocab);
    Value output = seq2seq_output({loss, lm_logits}, outputs.cache.get(), outputs.encoder_last_hidden_state);
    return leave(nn::Outcome{std::move(output), loss}, decoder_input_ids, outputs.last_hidden_state);
  }
  bool generates() const override { return true; }
  X encode(X input_features, X) override { return model_.encode(input_features); }
  X decode(X decoder_input_ids, X encoder_hidden_states, X, EncoderDecoderCachePtr cache) override {
    Entered scope(*this);
    X last_hidden_state = model_.decode(decoder_input_ids, encoder_hidden_states, cache);
    X lm_logits = proj_out(last_hidden_state);
    return leave(std::move(lm_logits), last_hidden_state);
  }
  I decoder_layers() const override { return c_.decoder.layers; }

 private:
  WhisperModel& model_;
  Linear& proj_out;
};

class WhisperAlone final : public WhisperNetwork {
 public:
  explicit WhisperAlone(const WhisperConfig& c) : WhisperNetwork("WhisperModel", c), model_(child<WhisperModel>("model", c)) {}
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    WhisperModel::Output outputs = model_(batch.input, batch.decoder_input);
    return {seq2seq_output({outputs.last_hidden_state}, outputs.cache.get(), outputs.encoder_last_hidden_state), {}};
  }

 private:
  WhisperModel& model_;
};

/// The decoder alone.
class WhisperDecoderWrapper final : public Base {
 public:
  explicit WhisperDecoderWrapper(const WhisperConfig& c) : Base("WhisperDecoderWrapper"), decoder(child<WhisperDecoder>("decoder", c)) {}
  WhisperDecoder& decoder;
};

class WhisperForCausalLM final : public Network {
 public:
  explicit WhisperForCausalLM(const WhisperConfig& c)
      : Network("WhisperForCausalLM", c.options),
        c_(c),
        model_(child<WhisperDecoderWrapper>("model", c)),
        proj_out(child<Linear>("proj_out", c.width, c.vocab, false)) {
    if (c.file.boolean_or("tie_word_embeddings", true)) tie("proj_out.weight", "model.decoder.embed_tokens.weight");
  }
  std::vector<std::pair<std::string, I>> default_sizes() const override { return {{"seq", c_.target_positions}}; }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto [last_hidden_state, cache] = model_.decoder(batch.input, {});
    X logits = proj_out(last_hidden_state);
    X loss;
    if (batch.labels) loss = flat_cross_entropy(logits, batch.labels, c_.vocab);
    return {seq2seq_output({loss, logits}, cache.get(), {}), loss};
  }

 private:
  const WhisperConfig c_;
  WhisperDecoderWrapper& model_;
  Linear& proj_out;
};

class WhisperForAudioClassification final : public WhisperNetwork {
 public:
  explicit WhisperForAudioClassification(const WhisperConfig& c)
      : WhisperNetwork("WhisperForAudioClassification", c), encoder_(child<WhisperEncoder>("encoder", c)) {
    if (c.file.boolean_or("use_weighted_layer_sum", false))
      throw c.file.error("use_weighted_layer_sum", "memest does not build the weighted sum of the layers", "set it to false");
    const I width = c.file.size("classifier_proj_size");
    projector = &child<Linear>("projector", c.width, width);
    classifier = &child<Linear>("classifier", width, num_labels(c.file));
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    X encoder_outputs = encoder_(batch.input);
    X hidden_states = encoder_outputs;
    hidden_states = (*projector)(hidden_states);
    X pooled_output = hidden_states.mean(1);
    X logits = (*classifier)(pooled_output);
    X loss;
    if (batch.labels) loss = flat_cross_entropy(logits, batch.labels, num_labels(c_.file));
    return leave(nn::Outcome{model_output({loss, logits}), loss}, encoder_outputs, hidden_states, pooled_output);
  }

 private:
  WhisperEncoder& encoder_;
  Linear *projector, *classifier;
};

template <class N>
NetworkPtr whisper(const Config& config, const Options& o) {
  return std::make_shared<N>(WhisperConfig(config, o));
}
const Family whisper_family{{"whisper"},
                            {{Task::seq2seq, "WhisperForConditionalGeneration", whisper<WhisperForConditionalGeneration>},
                             {Task::causal_lm, "WhisperForCausalLM", whisper<WhisperForCausalLM>},
                             {Task::audio_cls, "WhisperForAudioClassification", whisper<WhisperForAudioClassification>},
                             {Task::base, "WhisperModel", whisper<WhisperAlone>}}};

}  // namespace

std::shared_ptr<AudioEncoderLayer> make_whisper_encoder_layer(const Config& encoder, const Options& options, const std::string& prefix) {
  return std::make_shared<WhisperLayer>(WhisperConfig(encoder, options, prefix), false, 0);
}

}  // namespace memest::hf
