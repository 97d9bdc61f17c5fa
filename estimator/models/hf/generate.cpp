#include "models/hf/generate.h"

#include <algorithm>

#include "fake/autograd.h"
#include "models/hf/encoder_decoder.h"
#include "models/hf/experts.h"
#include "models/hf/masks.h"
#include "models/hf/multimodal.h"

namespace memest::hf {
namespace {

X compare(const char* op, const X& x, I number) { return aten(op, {Tensor(x), number}); }
X any(X x) { return aten("any", {Tensor(std::move(x))}); }
X all(X x) { return aten("all", {Tensor(std::move(x))}); }
X logical(const char* op, const X& a, const X& b) { return aten(op, {Tensor(a), Tensor(b)}); }
X bools(I count) { return empty({count}, DType::boolean); }

/// torch.isin of a few elements.
X isin(const X& elements, const X& tests) {
  X result = empty(elements.sizes(), DType::boolean);
  X equal = aten("eq", {Tensor(elements.unsqueeze(-1)), Tensor(tests)});
  X found = aten("any", {Tensor(equal), I{-1}, false});
  return result;
}

/// What _prepare_special_tokens puts on the device; the generation_config holds them until generate returns.
struct SpecialTokens {
  X bos, eos, pad, decoder_start;

  explicit SpecialTokens(const Config& config, bool is_encoder_decoder = false) {
    bos = tensor(config, "bos_token_id");
    eos = tensor(config, "eos_token_id");
    pad = tensor(config, "pad_token_id");
    decoder_start = tensor(config, "decoder_start_token_id");
    if (is_encoder_decoder && !decoder_start) decoder_start = bos;
    if (eos && eos.dim() == 0) eos = eos.unsqueeze(0);
    if (!pad && eos) pad = eos.select(0, 0);
    if (is_encoder_decoder && !decoder_start)
      throw config.error("decoder_start_token_id", "an encoder-decoder generates from this token, or from the bos_token_id");
    if (eos) {
      any(isin(eos, pad));
      any(compare("lt", eos, 0));
    }
  }

 private:
  static X tensor(const Config& config, const char* field) {
    if (!config.has(field)) return {};
    if (auto* list = config.find(field)->list()) return empty({I(list->size())}, DType::int64);
    return empty(Dims{}, DType::int64);
  }
};

/// _update_model_kwargs_for_generation, of the positions.
X next_positions(const X& position_ids) {
  X next;
  {
    X step = arange(1).view({1, -1});
    X sum = step.add(position_ids.slice(-1, -1, std::nullopt));
    step.reset();
    next = std::move(sum).add(Scalar(1));
  }
  X positions = cat({position_ids, next}, -1);
  return leave(std::move(positions), next);
}

/// StoppingCriteriaList of the greatest length and, where there is one, of the end token.
X stopping_criteria(const X& input_ids, const SpecialTokens& tokens) {
  const I batch = input_ids.size(0);
  X is_done = bools(batch);
  auto join = [&](X criterion) {
    X joined = logical("bitwise_or", is_done, criterion);
    criterion.reset();
    is_done = std::move(joined);
  };
  join(bools(batch));  // the greatest length
  if (!tokens.eos) return is_done;
  X found = isin(input_ids.slice(-1, -1, std::nullopt), tokens.eos);
  X ended = aten("any", {Tensor(found), I{-1}, false});
  found.reset();
  join(std::move(ended));
  return is_done;
}

/// The logits processors that a configuration turns on by naming tokens (generation/logits_process.py).
class LogitsProcessors {
 public:
  /// ForcedBOSTokenLogitsProcessor, ForcedEOSTokenLogitsProcessor.
  void add_forced(const Config& config, I max_length) {
    max_length_ = max_length;
    first_ = config.has("forced_bos_token_id");
    if (!config.has("forced_eos_token_id")) return;
    eos_ = tokens(config, "forced_eos_token_id");
    any(compare("lt", eos_, 0));
  }
  /// SuppressTokensLogitsProcessor, SuppressTokensAtBeginLogitsProcessor. `begin_first`: they are called in the other order.
  void add_suppressed(const Config& config, I begin_index, bool begin_first) {
    begin_index_ = begin_index;
    for (const char* field : {"suppress_tokens", "begin_suppress_tokens"})
      if (config.has(field)) suppressed_.push_back({tokens(config, field), field[0] == 'b'});
    if (begin_first) std::reverse(suppressed_.begin(), suppressed_.end());
  }
  X operator()(I length, X scores) const {
    for (const bool forced : {first_ && length == 1, eos_ && length == max_length_ - 1})
      if (forced) scores = aten("full_like", {Tensor(scores), -1e30});
    for (auto& [list, at_begin] : suppressed_) {
      X vocab_tensor = arange(scores.size(-1));
      X suppress_token_mask = aten("isin", {Tensor(vocab_tensor), Tensor(list)});
      X processed = scores;
      if (!at_begin || length == begin_index_) processed = aten("where", {Tensor(suppress_token_mask), -1e30, Tensor(scores)});
      leave(0, vocab_tensor, suppress_token_mask);
      scores = std::move(processed);
    }
    return scores;
  }

 private:
  static X tokens(const Config& config, const char* field) {
    auto* list = config.find(field)->list();
    return empty({list ? I(list->size()) : 1}, DType::int64);
  }
  struct Suppressed {
    X tokens;
    bool at_begin;
  };
  I max_length_ = 0, begin_index_ = 0;
  bool first_ = false;
  X eos_;
  std::vector<Suppressed> suppressed_;
};

/// create_masks_for_generate: what prepare_inputs_for_generation makes for a cache of fixed shapes.
/// `states`: the layers without a window keep states, and need no mask.
Cache::Masks create_masks_for_generate(const Options& options, const Cache& cache, I batch_size, I sequence_length, bool states) {
  Cache::Masks masks;
  const X inputs_embeds = empty({batch_size, sequence_length, 0}, runtime().default_dtype);
  const MaskArguments arguments{options, inputs_embeds, &cache};
  std::optional<I> window;
  bool full = false;
  for (auto& layer : cache.layers()) layer.window ? void(window = layer.window) : void(full = true);
  if (full && !states) masks.full = create_causal_mask(arguments);
  if (window) masks.sliding = create_sliding_window_causal_mask(arguments, *window);
  for (auto* mask : {&masks.full, &masks.sliding})
    if (*mask && **mask) *mask = (*mask)->contiguous();
  return masks;
}

/// Of the class itself, or of the body under its head.
template <class Kind>
bool is_a(const Network& model) {
  if (dynamic_cast<const Kind*>(&model)) return true;
  return std::any_of(model.children().begin(), model.children().end(),
                     [](auto& child) { return dynamic_cast<const Kind*>(child.second.get()); });
}

/// How _sample calls a model.
class Prepared {
 public:
  virtual ~Prepared() = default;
  /// _prefill, and prepare_inputs_for_generation with the call: outputs.logits.
  virtual X prefill(const X& input_ids) = 0;
  virtual X decode(const X& input_ids) = 0;
  /// _update_model_kwargs_for_generation
  virtual void update() {}
};

/// _sample without sampling: the sequences.
X sample(Network& model, Prepared& prepared, X input_ids, I most, const SpecialTokens& tokens, const LogitsProcessors& processors,
         const Generation& g) {
  X unfinished_sequences = aten("ones", {list_of(Dims{input_ids.size(0)})}, {{"dtype", DType::int64}});
  X logits = prepared.prefill(input_ids);                                   // of `outputs`
  const bool switched = switch_experts(model, "grouped_mm", "batched_mm");  // _optimize_model_for_decode
  X next_token_logits, next_token_scores, next_tokens;
  for (bool prefill = true;; prefill = false) {
    if (!prefill) logits = prepared.decode(input_ids);
    prepared.update();
    next_token_logits = ops::to_copy(logits.select(1, -1), DType::float32);
    next_token_scores = processors(input_ids.size(1), next_token_logits);
    next_tokens = aten("argmax", {Tensor(next_token_scores), I{-1}});
    if (tokens.eos) {
      X kept = next_tokens.mul(unfinished_sequences);
      X rest = aten("rsub", {Tensor(unfinished_sequences), I{1}});
      X padded = tokens.pad.mul(std::move(rest));
      X sum = kept.add(padded);
      kept.reset();
      padded.reset();
      next_tokens = std::move(sum);
    }
    input_ids = cat({input_ids, next_tokens.unsqueeze(1)}, -1);
    {
      X going_on = aten("bitwise_not", {Tensor(stopping_criteria(input_ids, tokens))});
      X still = logical("bitwise_and", unfinished_sequences, going_on);
      going_on.reset();
      unfinished_sequences = std::move(still);
    }
    {
      X most_unfinished = aten("max", {Tensor(unfinished_sequences)});
      X none = compare("eq", most_unfinished, 0);
      most_unfinished.reset();
    }
    logits = {};
    if (input_ids.size(1) >= most) break;
    if (prefill && g.on_decode) g.on_decode();
  }
  if (switched) switch_experts(model, "batched_mm", "grouped_mm");
  return input_ids;
}

/// A decoder-only model.
class PreparedDecoder final : public Prepared {
 public:
  PreparedDecoder(Network& model, const Config& config, const Options& options, const Generation& g, X positions, X token_type_ids, X mask,
                  CachePtr cache)
      : model_(model),
        images_(dynamic_cast<EncodesImages*>(&model)),
        states_(config.has("block_types")),  // of recurrent_gemma
        options_(options),
        g_(g),
        position_ids_(std::move(positions)),
        token_type_ids_(std::move(token_type_ids)),
        attention_mask_(std::move(mask)),
        cache_(std::move(cache)) {}

  X prefill(const X& input_ids) override {
    X logits;
    {
      X call_ids = input_ids.clone();
      prepare_masks(call_ids);
      X call_positions = images_ ? images_->call_positions(position_ids_) : position_ids_;
      logits = step(call_ids, call_positions, token_type_ids_);
    }
    if (cache_) cache_->prepared = {};
    first_positions_ = position_ids_;
    first_token_types_ = token_type_ids_;
    return logits;
  }
  X decode(const X& input_ids) override {
    X new_ids = g_.use_cache ? input_ids.slice(1, -1, std::nullopt).clone() : input_ids.clone();
    X new_positions = g_.use_cache && position_ids_ ? position_ids_.slice(-1, -1, std::nullopt).clone() : position_ids_;
    X new_token_types;
    if (token_type_ids_) new_token_types = g_.use_cache ? token_type_ids_.slice(-1, -1, std::nullopt).clone() : token_type_ids_;
    if (g_.use_cache && images_ && images_->token_types() == EncodesImages::TokenTypes::prompt) new_token_types.reset();
    Cache::Masks former = prepare_masks(new_ids);
    if (images_) new_positions = images_->call_positions(std::move(new_positions));
    ids_ = std::move(new_ids);
    positions_ = std::move(new_positions);
    token_types_ = std::move(new_token_types);
    former = {};
    return step(ids_, positions_, token_types_);
  }
  void update() override {
    const X types = token_type_ids_;
    const auto kind = images_ ? images_->token_types() : EncodesImages::TokenTypes::prompt;
    if (types && kind == EncodesImages::TokenTypes::modality)
      grow_token_types(types, aten("new_zeros", {Tensor(types), list_of(Dims{types.size(0), 1})}));
    else if (types)
      grow_token_types(types, types.slice(1, -1, std::nullopt));
    if (position_ids_) position_ids_ = next_positions(position_ids_);
    if (types && kind == EncodesImages::TokenTypes::suffix)  // a generated token belongs to the causal suffix
      grow_token_types(types, aten("new_ones", {Tensor(types), list_of(Dims{types.size(0), 1})}));
    if (!attention_mask_) return;
    X last = aten("new_ones", {Tensor(attention_mask_), list_of(Dims{attention_mask_.size(0), 1})});
    X longer = cat({attention_mask_, last}, -1);
    last.reset();
    attention_mask_ = std::move(longer);
  }

 private:
  /// Gives those of the last call, which live as long as its other arguments.
  Cache::Masks prepare_masks(const X& call_ids) {
    if (!cache_ || !cache_->is_compileable() || is_a<WithoutPositions>(model_)) return {};  // Bloom's calls are prepared without
    Cache::Masks former = std::exchange(cache_->prepared, {});
    cache_->prepared = create_masks_for_generate(options_, *cache_, call_ids.size(0), call_ids.size(1), states_);
    return former;
  }
  void grow_token_types(const X& types, X last) {
    X longer = cat({types, last}, -1);
    last.reset();
    token_type_ids_ = std::move(longer);
  }
  X step(const X& call_ids, const X& call_positions, const X& call_token_types) {
    Batch call;
    call.input = call_ids;
    call.position_ids = call_positions;
    call.token_type_ids = call_token_types;
    call.cache = cache_;
    if (!g_.all_logits) call.logits_to_keep = 1;
    return model_.step(std::move(call)).logits;
  }

  Network& model_;
  EncodesImages* images_;
  bool states_;
  const Options& options_;
  const Generation& g_;
  X position_ids_, token_type_ids_, attention_mask_;
  CachePtr cache_;
  X first_positions_, first_token_types_;  ///< generate's own model_kwargs
  X ids_, positions_, token_types_;        ///< model_inputs
};

/// mm_encoder_outputs, which generate's model_kwargs hold.
class EncodedImages {
 public:
  EncodedImages(Network& model, const Batch& batch) : images_(dynamic_cast<EncodesImages*>(&model)) {
    if (images_) images_->encode_images(batch);
  }
  ~EncodedImages() {
    if (images_) images_->forget_images();
  }
  EncodedImages(const EncodedImages&) = delete;
  EncodedImages& operator=(const EncodedImages&) = delete;

 private:
  EncodesImages* images_;
};

/// GenerationConfig.from_model_config: what the configuration does not say, its text_config may.
Config generation_config(Config config) {
  if (const auto text = config.section_if("text_config"))
    for (const char* field : {"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_bos_token_id",
                              "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens"})
      if (!config.has(field) && text->has(field)) config.set(field, *text->find(field));
  return config;
}

X generate_from_prompt(Network& model, const Config& given_config, const Options& options, const Batch& given, X attention_mask,
                       const Generation& g) {
  const Config config = generation_config(given_config);
  X input_ids = given.input;
  const SpecialTokens tokens(config);
  const I batch = input_ids.size(0), most = input_ids.size(1) + g.new_tokens;
  if (tokens.pad && batch > 1) any(compare("eq", attention_mask.select(1, -1), 0));
  X position_ids;
  if (!is_a<WithoutPositions>(model)) {
    X summed = attention_mask.to(DType::int64);
    summed = aten("cumsum", {Tensor(summed), I{-1}});
    position_ids = std::move(summed).sub(Scalar(1));
    X padding = compare("eq", attention_mask, 0);
    X filled = aten("masked_fill", {Tensor(position_ids), Tensor(padding), I{0}});
    padding.reset();
    position_ids = std::move(filled);
  }
  if (auto* images = dynamic_cast<EncodesImages*>(&model))
    position_ids = images->generation_positions(given, std::move(position_ids), attention_mask);
  const bool keeps_mask = is_a<WithoutMask>(model);
  if (!keeps_mask) all(compare("eq", attention_mask, 1));  // no padding: the mask is dropped
  const EncodedImages encoded(model, given);
  CachePtr cache = g.use_cache ? model.new_generation_cache() : nullptr;
  if (auto* images = dynamic_cast<const EncodesImages*>(&model); images && images->makes_masks() && g.cache == Generation::CacheKind::fixed)
    throw Error("--cache static: memest does not model the masks that " + model.type() + " makes for it", "leave --cache out");
  if (cache && cache->layers().empty() && g.cache != Generation::CacheKind::dynamic)
    throw Error("--cache: " + model.type() + " keeps states of its own, and no Cache", "leave --cache and --cache-dtype out");
  if (cache && g.cache == Generation::CacheKind::fixed) cache->make_static(most - 1);
  if (cache && g.cache == Generation::CacheKind::fp8) cache->make_fp8();
  any(compare("lt", input_ids, 0));  // _get_logits_processor
  LogitsProcessors processors;
  processors.add_forced(config, most);
  processors.add_suppressed(config, input_ids.size(1), false);
  X token_type_ids = given.token_type_ids;
  for (auto& [name, x] : given.others)
    if (name == "mm_token_type_ids") token_type_ids = x;
  PreparedDecoder prepared(model, config, options, g, std::move(position_ids), std::move(token_type_ids), keeps_mask ? attention_mask : X(),
                           std::move(cache));
  return sample(model, prepared, std::move(input_ids), most, tokens, processors, g);
}

/// An encoder-decoder, whose decoder starts from one token.
class PreparedPair final : public Prepared {
 public:
  PreparedPair(EncoderDecoder& model, X encoder_outputs, X attention_mask, EncoderDecoderCachePtr cache)
      : model_(model), encoder_outputs_(std::move(encoder_outputs)), attention_mask_(std::move(attention_mask)), cache_(std::move(cache)) {}
  X prefill(const X& input_ids) override {
    const X call_ids = input_ids.clone();
    return model_.decode(call_ids, encoder_outputs_, attention_mask_, cache_);
  }
  X decode(const X& input_ids) override {
    X new_ids = cache_ ? input_ids.slice(1, -1, std::nullopt).clone() : input_ids.clone();
    ids_ = std::move(new_ids);
    return model_.decode(ids_, encoder_outputs_, attention_mask_, cache_);
  }

 private:
  EncoderDecoder& model_;
  X encoder_outputs_, attention_mask_;
  EncoderDecoderCachePtr cache_;
  X ids_;  ///< model_inputs
};

EncoderDecoderCachePtr new_cache(const EncoderDecoder& model) {
  auto cache = std::make_shared<EncoderDecoderCache>();
  for (auto* part : {&cache->self_attention, &cache->cross_attention})
    *part = Cache(std::vector<I>(std::size_t(model.decoder_layers()), 0));
  return cache;
}

X generate_from_source(Network& network, EncoderDecoder& model, const Config& config, X input_ids, X attention_mask, const Generation& g) {
  const SpecialTokens tokens(config, true);
  const I most = 1 + g.new_tokens;
  X encoder_outputs = model.encode(input_ids, attention_mask);
  X decoder_input_ids = ones({input_ids.size(0), 1}, DType::int64).mul(tokens.decoder_start);
  EncoderDecoderCachePtr cache = g.use_cache ? new_cache(model) : nullptr;
  any(compare("lt", input_ids, 0));  // _get_logits_processor
  LogitsProcessors processors;
  processors.add_forced(config, most);
  processors.add_suppressed(config, 1, false);
  PreparedPair prepared(model, std::move(encoder_outputs), std::move(attention_mask), std::move(cache));
  return sample(network, prepared, decoder_input_ids, most, tokens, processors, g);
}

/// config.forced_decoder_ids: language, task and timestamps follow the start token. Without a generation_config there are no others.
I initial_tokens(const Config& config) {
  I count = 1;
  if (!config.has("forced_decoder_ids")) return count;
  if (auto* list = config.find("forced_decoder_ids")->list()) count += I(list->size());
  return count;
}

/// WhisperGenerationMixin.generate of sound that is no longer than a segment, without timestamps.
X transcribe(Network& network, EncoderDecoder& model, const Config& config, X input_features, const Generation& g) {
  const I batch = input_features.size(0), prompt = initial_tokens(config);
  const I most = prompt + g.new_tokens, positions = config.size("max_target_positions");
  if (most > positions)
    throw Error("--new-tokens: Whisper's decoder has " + std::to_string(positions) + " positions, and " + std::to_string(prompt) +
                    " tokens precede the new ones",
                "at most " + std::to_string(positions - prompt) + " fit");
  X init_tokens = empty({batch, prompt}, DType::int64);
  LogitsProcessors processors;
  processors.add_suppressed(config, prompt, true);
  X segment_input = cat(std::vector<X>(std::size_t(batch), input_features.slice(0, 0, 1)), 0);
  X decoder_input_ids;
  {
    X batch_idx_map = empty({batch}, DType::int64);
    decoder_input_ids = aten("index", {Tensor(init_tokens), make_list({Tensor(batch_idx_map)})});
  }
  X seek_sequences;
  {
    const SpecialTokens tokens(config, true);
    X encoder_outputs = model.encode(segment_input, {});
    { X decoder_start_token_id = ones({batch, 1}, DType::int64).mul(tokens.decoder_start); }
    PreparedPair prepared(model, std::move(encoder_outputs), {}, g.use_cache ? new_cache(model) : nullptr);
    X sequences = sample(network, prepared, decoder_input_ids, most, tokens, processors, g);
    seek_sequences = sequences.slice(1, prompt, std::nullopt);
  }
  std::vector<X> sequences;
  for (I i = 0; i < batch; ++i) {
    X seek_sequence = seek_sequences.select(0, i);
    for (int token = 0; token < 2; ++token) compare("eq", seek_sequence.select(0, -1), 0);  // padding, the end
    sequences.push_back(seek_sequence);
  }
  for (auto& x : sequences) x = cat({x}, -1);  // _pad_to_max_length
  for (auto& x : sequences) x = x.clone();     // F.pad
  for (auto& x : sequences) x = x.unsqueeze(0);
  return leave(cat(sequences, 0), init_tokens, segment_input, decoder_input_ids, seek_sequences);
}

}  // namespace

X generate(Network& model, const Config& config, const Options& options, Batch batch, X attention_mask, const Generation& g) {
  NoGrad guard;
  if (auto* pair = dynamic_cast<EncoderDecoder*>(&model); pair && dynamic_cast<const Transcribes*>(&model))
    return transcribe(model, *pair, config, std::move(batch.input), g);
  if (auto* pair = dynamic_cast<EncoderDecoder*>(&model))
    return generate_from_source(model, *pair, config, std::move(batch.input), std::move(attention_mask), g);
  return generate_from_prompt(model, config, options, batch, std::move(attention_mask), g);
}

}  // namespace memest::hf
