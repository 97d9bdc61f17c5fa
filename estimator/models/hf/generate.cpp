#include "models/hf/generate.h"

#include "fake/autograd.h"
#include "models/hf/experts.h"
#include "models/hf/masks.h"

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

  explicit SpecialTokens(const Config& config) {
    bos = tensor(config, "bos_token_id");
    eos = tensor(config, "eos_token_id");
    pad = tensor(config, "pad_token_id");
    decoder_start = tensor(config, "decoder_start_token_id");
    if (eos && eos.dim() == 0) eos = eos.unsqueeze(0);
    if (!pad && eos) pad = eos.select(0, 0);
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

/// create_masks_for_generate: what prepare_inputs_for_generation makes for a cache of fixed shapes.
Cache::Masks create_masks_for_generate(const Options& options, const Cache& cache, I batch_size, I sequence_length) {
  Cache::Masks masks;
  const X inputs_embeds = empty({batch_size, sequence_length, 0}, runtime().default_dtype);
  const MaskArguments arguments{options, inputs_embeds, &cache};
  std::optional<I> window;
  bool full = false;
  for (auto& layer : cache.layers()) layer.window ? void(window = layer.window) : void(full = true);
  if (full) masks.full = create_causal_mask(arguments);
  if (window) masks.sliding = create_sliding_window_causal_mask(arguments, *window);
  for (auto* mask : {&masks.full, &masks.sliding})
    if (*mask && **mask) *mask = (*mask)->contiguous();
  return masks;
}

}  // namespace

X generate(Network& model, const Config& config, const Options& options, X input_ids, X attention_mask, const Generation& g) {
  NoGrad guard;
  const SpecialTokens tokens(config);
  const I batch = input_ids.size(0), most = input_ids.size(1) + g.new_tokens;
  const bool positioned = !dynamic_cast<const WithoutPositions*>(&model);
  if (tokens.pad && batch > 1) any(compare("eq", attention_mask.select(1, -1), 0));
  X position_ids;
  if (positioned) {
    X summed = attention_mask.to(DType::int64);
    summed = aten("cumsum", {Tensor(summed), I{-1}});
    position_ids = std::move(summed).sub(Scalar(1));
  }
  if (positioned) {
    X padding = compare("eq", attention_mask, 0);
    X filled = aten("masked_fill", {Tensor(position_ids), Tensor(padding), I{0}});
    padding.reset();
    position_ids = std::move(filled);
  }
  all(compare("eq", attention_mask, 1));  // no padding: the mask is dropped
  CachePtr cache = g.use_cache ? model.new_generation_cache() : nullptr;
  if (cache && g.cache == Generation::CacheKind::fixed) cache->make_static(most - 1);
  if (cache && g.cache == Generation::CacheKind::fp8) cache->make_fp8();
  any(compare("lt", input_ids, 0));  // _get_logits_processor

  X unfinished_sequences = aten("ones", {list_of(Dims{batch})}, {{"dtype", DType::int64}});
  Network::Step outputs;
  /// Gives those of the last call, which live as long as its other arguments.
  auto prepare_masks = [&](const X& call_ids) {
    if (!cache || !cache->is_compileable()) return Cache::Masks();
    Cache::Masks former = std::exchange(cache->prepared, {});
    cache->prepared = create_masks_for_generate(options, *cache, batch, call_ids.size(1));
    return former;
  };
  auto step = [&](const X& call_ids, const X& call_positions) {
    Batch call;
    call.input = call_ids;
    call.position_ids = call_positions;
    call.cache = cache;
    if (!g.all_logits) call.logits_to_keep = 1;
    return model.step(std::move(call));
  };
  {
    X ids = input_ids.clone();
    prepare_masks(ids);
    outputs = step(ids, position_ids);
  }
  if (cache) cache->prepared = {};
  const X first_positions = position_ids;                                   // generate's own model_kwargs
  const bool switched = switch_experts(model, "grouped_mm", "batched_mm");  // _optimize_model_for_decode
  X next_token_logits, next_tokens, ids, positions;
  for (bool prefill = true;; prefill = false) {
    if (!prefill) {
      X new_ids = g.use_cache ? input_ids.slice(1, -1, std::nullopt).clone() : input_ids.clone();
      X new_positions = g.use_cache && positioned ? position_ids.slice(-1, -1, std::nullopt).clone() : position_ids;
      Cache::Masks former = prepare_masks(new_ids);
      ids = std::move(new_ids);
      positions = std::move(new_positions);
      former = {};
      outputs = step(ids, positions);
    }
    if (positioned) position_ids = next_positions(position_ids);
    next_token_logits = ops::to_copy(outputs.logits.select(1, -1), DType::float32);
    next_tokens = aten("argmax", {Tensor(next_token_logits), I{-1}});
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
    outputs = {};
    if (input_ids.size(1) >= most) break;
    if (prefill && g.on_decode) g.on_decode();
  }
  if (switched) switch_experts(model, "batched_mm", "grouped_mm");
  return input_ids;
}

}  // namespace memest::hf
