#include "estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <future>

#include "base/text.h"
#include "fake/kernel.h"
#include "fake/runtime.h"

namespace memest {
namespace {

RunSettings settings_of(const EstimateRequest& request, const Device& device, AllocatorConfig& config) {
  RunSettings settings = RunSettings::for_device(device, request.torch);
  settings.semantics = request.semantics;
  settings.strict = request.strict;
  if (!request.counted_device.empty()) settings.device.name = request.counted_device;
  for (auto& [name, value] : request.environment) {
    if (name == "PYTORCH_CUDA_ALLOC_CONF" || name == "PYTORCH_ALLOC_CONF")
      config = AllocatorConfig::parse(value);
    else
      settings.set_environment(name, value);
  }
  if (!request.alloc_conf.empty()) config = AllocatorConfig::parse(request.alloc_conf);
  return settings;
}

int last_step_of(const MemoryTrace& trace) {
  int last = 0;
  for (auto& p : trace.phases) last = std::max(last, p.step);
  return last;
}

/// Bytes of each module: parameters as they load, activations alive at the end of the last step's first forward.
std::vector<ModuleBytes> module_table(const MemoryTrace& trace) {
  struct Live {
    ModuleId module;
    Category category;
    Bytes bytes;
    bool alive;
  };
  std::vector<Live> blocks(trace.blocks, Live{0, Category::temporary, 0, false});
  std::vector<ModuleBytes> table;
  for (std::size_t i = 0; i < trace.modules.size(); ++i) {
    auto& m = trace.modules[i];
    ModuleBytes row{ModuleId(i), m.path, m.type};
    row.depth = i == 0 ? 0 : table[m.parent].depth + 1;
    table.push_back(std::move(row));
  }
  std::size_t stop = trace.events.size();  // the end of the last step's first forward
  const int last_step = last_step_of(trace);
  for (std::size_t i = 0; i < trace.phases.size(); ++i)
    if (trace.phases[i].phase == Phase::forward && trace.phases[i].step == last_step && trace.phases[i].micro <= 1)
      stop = i + 1 < trace.phases.size() ? trace.phases[i + 1].first_event : trace.events.size();
  for (std::size_t i = 0; i < stop; ++i) {
    const MemoryEvent& e = trace.events[i];
    if (e.kind == MemoryEvent::Kind::alloc)
      blocks[e.block] = {e.module, e.category, e.bytes, true};
    else if (e.kind == MemoryEvent::Kind::free)
      blocks[e.block].alive = false;
    else if (e.kind == MemoryEvent::Kind::categorize)
      blocks[e.block].category = e.category;
  }
  for (auto& b : blocks) {
    if (!b.alive) continue;
    if (b.category == Category::parameter) table[b.module].parameters += b.bytes;
    if (b.category == Category::activation || b.category == Category::autocast_cache || b.category == Category::assumed)
      table[b.module].activations += b.bytes;
  }
  for (auto& row : table) row.parameters_cumulative = row.parameters, row.activations_cumulative = row.activations;
  for (std::size_t i = table.size(); i-- > 1;) {
    table[trace.modules[i].parent].parameters_cumulative += table[i].parameters_cumulative;
    table[trace.modules[i].parent].activations_cumulative += table[i].activations_cumulative;
  }
  return table;
}

void place_peak(Estimate& e) {
  const MemoryTrace& trace = e.trace();
  if (trace.events.empty()) return;
  const MemoryEvent& event = trace.events[e.replay.peak_event];
  e.peak_op = event.op;
  e.peak_module = trace.modules[event.module].path;
  e.peak_module_type = trace.modules[event.module].type;
  for (auto& p : trace.phases)
    if (p.first_event <= e.replay.peak_event) e.peak_step = p.step, e.peak_phase = p.phase;
}

Compute compute_of(const MemoryTrace& trace) {
  Compute compute;
  const int last_step = last_step_of(trace);
  for (auto& p : trace.phases) {
    if (p.step != last_step) continue;
    if (p.phase == Phase::forward) compute.forward_flops = saturated_add(compute.forward_flops, p.flops);
    if (p.phase == Phase::backward) compute.backward_flops = saturated_add(compute.backward_flops, p.flops);
    compute.recomputed_flops = saturated_add(compute.recomputed_flops, p.recomputed_flops);
  }
  return compute;
}

/// The verdict is a replay of its own: the allocator may get no more than the card has, and frees its cache before it gives up.
Fit fit_of(const EstimateRequest& request, const Estimate& e, ReplayOptions options) {
  Fit fit;
  fit.gpu = request.gpu ? e.device.name : "";
  fit.capacity = request.gpu_memory.value_or(e.device.total_memory);
  fit.free = fit.capacity - e.context;
  options.record_events = false;
  options.device_limit = std::max<Bytes>(fit.free, 0);
  options.device_memory = std::max<Bytes>(fit.capacity, 1);
  const ReplayResult limited = replay(e.trace(), options);
  fit.fits = !limited.out_of_memory;
  fit.out_of_memory = limited.out_of_memory;
  return fit;
}

/// The settings that people try against fragmentation, each replayed beside those of the run.
std::vector<AllocWhatIf> alloc_what_if(const EstimateRequest& request, const Estimate& e, const ReplayOptions& as_run) {
  struct Change {
    const char* text;
    void (*apply)(AllocatorConfig&);
  };
  static constexpr Change kChanges[] = {
      {"expandable_segments:True", [](AllocatorConfig& c) { c.expandable_segments = true; }},
      {"max_split_size_mb:512", [](AllocatorConfig& c) { c.max_split_size = 512 * kMiB; }},
      {"max_split_size_mb:128", [](AllocatorConfig& c) { c.max_split_size = 128 * kMiB; }},
      {"max_split_size_mb:32", [](AllocatorConfig& c) { c.max_split_size = 32 * kMiB; }},
      {"roundup_power2_divisions:8", [](AllocatorConfig& c) { c.roundup_power2_divisions.fill(8); }},
      {"garbage_collection_threshold:0.8,per_process_memory_fraction:1.0",
       [](AllocatorConfig& c) { c.garbage_collection_threshold = 0.8, c.per_process_memory_fraction = 1.0; }},
  };
  std::vector<AllocWhatIf> rows{{"", e.replay.reserved_peak, e.device_peak, {}}};
  if (e.fit) rows[0].fits = e.fit->fits;
  for (auto& change : kChanges) {
    ReplayOptions options = as_run;
    options.record_events = false;
    change.apply(options.config);
    AllocWhatIf row{change.text, replay(e.trace(), options).reserved_peak, 0, {}};
    row.device_peak = row.reserved_peak + e.context;
    if (e.fit) row.fits = fit_of(request, e, options).fits;
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<Setting> resolved(const EstimateRequest& r, const Estimate& e) {
  std::vector<Setting> list;
  auto add = [&](const char* name, std::string value, bool from_spec = false) {
    const bool given = std::find(r.given.begin(), r.given.end(), name) != r.given.end();
    list.push_back({name, std::move(value), given ? "given" : from_spec ? "spec" : "default"});
  };
  auto flag = [](bool b) { return std::string(b ? "yes" : "no"); };
  const run::RunOptions& o = e.run;
  std::vector<std::string> batches;
  for (auto b : o.batches) batches.push_back(std::to_string(b));
  add("mode", std::string(name_of(o.mode)));
  add("batch", join(batches, ","));
  add("precision", std::string(name_of(o.precision)));
  if (o.mode == run::Mode::train) {
    add("optimizer", o.optimizer);
    add("grad-accum", std::to_string(o.grad_accum));
    add("zero-grad", o.zero_grad_to_none ? "none" : "zero");
    add("zero-grad-at", std::string(name_of(o.zero_grad_at)));
    add("checkpoint", o.checkpointing.text());
    add("saved-tensors", std::string(name_of(o.saved_tensors)));
    add("input-grad", flag(o.input_grad));
    if (!o.no_decay.empty()) add("no-decay", join(o.no_decay, ","));
    std::vector<std::string> groups;
    for (auto& globs : o.parameter_groups) groups.push_back(join(globs, ","));
    if (!groups.empty()) add("param-group", join(groups, " "));
    if (!o.freeze.empty()) add("freeze", join(o.freeze, ","));
    if (!o.master_weights.empty()) add("master-weights", o.master_weights);
    if (o.lora) add("lora", o.lora->text());
    if (o.kbit_training) add("kbit-training", "yes");
  }
  if (o.quantization) add("quant", o.quantization->text());
  add("loss", e.states.loss, o.loss.empty());
  add("steps", std::to_string(o.steps));
  add("inputs", o.inputs_resident ? "resident" : "loader");
  add("keep-output", flag(o.keep_output));
  if (o.math_attention) add("attn", "math");
  if (o.new_tokens > 0) add("new-tokens", std::to_string(o.new_tokens));
  if (!r.read.cache.empty()) add(r.read.cache == "fp8" ? "cache-dtype" : "cache", r.read.cache);
  add("memory-format", o.memory_format == MemoryFormat::channels_last ? "channels_last" : "contiguous");
  add("gpu", e.device.name);
  add("torch-version", r.torch.name());
  if (e.transformers) add("transformers-version", e.transformers->name());
  add("alloc-conf", r.alloc_conf);
  add("semantics", e.semantics);
  for (auto& [name, value] : r.read.sizes)
    if (name != "batch") add(name.c_str(), std::to_string(value));
  for (auto& [name, value] : r.environment) list.push_back({"env " + name, value, "given"});
  return list;
}

/// An error that may only come of a shape that memest assumed says so.
Error after_assumptions(const Error& error, const Diagnostics& diagnostics) {
  const auto& list = diagnostics.list();
  const auto unknown = std::find_if(list.begin(), list.end(), [](auto& d) { return d.code.starts_with("unknown-"); });
  if (unknown == list.end() || error.kind() == Error::Kind::unknown) return error;
  const std::string hint = "before it, " + unknown->where + ": " + unknown->message + (unknown->hint.empty() ? "" : "\n  " + unknown->hint);
  return Error(error.message(), error.hint().empty() ? hint : error.hint() + "\n  " + hint, error.kind()).within(error.where());
}

/// Of a run that this request asks for.
void set_up(Runtime& runtime, const EstimateRequest& request) {
  runtime.default_dtype = run::model_dtype(request.run.precision);
  if (request.run.math_attention) runtime.sdp = {.flash = false, .efficient = false};
  if (request.run.quantization && request.run.quantization->dtype) runtime.default_dtype = *request.run.quantization->dtype;
}

/// What the file fixes and the user did not give.
void take_from_file(EstimateRequest& request, const nn::Model& model) {
  auto given = [&](const char* name) { return std::find(request.given.begin(), request.given.end(), name) != request.given.end(); };
  if (model.file_batch && !given("batch")) request.run.batches = {model.file_batch};
  if (given("precision") || (request.run.quantization && request.run.quantization->dtype)) return;
  if (model.file_dtype == DType::bfloat16) request.run.precision = run::Precision::bf16;
  if (model.file_dtype == DType::float16) request.run.precision = run::Precision::fp16;
}

/// One token more, where nothing else runs: what the cache grows by.
std::optional<nn::CacheBytes> cache_bytes(const Runtime& run, const run::RunOptions& options, nn::Model& model) {
  Runtime alone(run.settings);
  alone.default_dtype = run.default_dtype;
  NoGrad guard;
  std::optional<AutocastContext> autocast;
  if (auto type = run::autocast_dtype(options.precision)) autocast.emplace(true, *type);
  try {
    return model.cache_bytes();
  } catch (const Error&) {  // of a model that takes no single token
    return {};
  }
}

using ModelRead = std::function<void(const nn::Model& model)>;
Estimate estimate_once(const EstimateRequest& asked, const ModelRead& model_read = {}) {
  EstimateRequest request = asked;
  Estimate e;
  e.torch = request.torch;
  e.device = request.gpu ? find_device(*request.gpu) : default_device();
  e.device_given = request.gpu.has_value();
  e.semantics = request.semantics == RunSettings::Semantics::cuda ? "cuda" : "fake-tensor";
  if (!request.counted_device.empty()) e.semantics = request.counted_device;
  e.source = request.spec;

  ReplayOptions replay_options;
  replay_options.record_events = request.record_events;
  replay_options.block_order = request.torch.block_order();
  replay_options.device_memory = request.gpu_memory.value_or(e.device.total_memory);
  replay_options.whole_blocks = request.counted_device.empty();
  const RunSettings settings = settings_of(request, e.device, replay_options.config);

  Runtime runtime(settings);
  set_up(runtime, request);
  auto model = spec::read_model(request.spec, request.read);
  if (asked.figures) e.parts = model->parameter_parts();
  e.stored = model->stored;
  e.most_tokens = model->most_tokens;
  if (model->is_transformers()) e.transformers = request.read.transformers.value_or(TransformersVersion::beside(request.torch));
  if (model_read) model_read(*model);
  take_from_file(request, *model);
  e.run = request.run;
  run::settle(e.run, *model);
  e.name = model->name;
  e.kind = model->kind;
  try {
    e.states = run::run_loop(*model, e.run);
  } catch (Error& error) {
    if (error.has_place()) error.within(request.spec);
    throw after_assumptions(error, runtime.diagnostics);
  }
  e.diagnostics = runtime.diagnostics;
  if (asked.figures) e.cache = cache_bytes(runtime, e.run, *model);

  e.replay = replay(e.trace(), replay_options);
  e.context = request.semantics == RunSettings::Semantics::cuda ? e.device.context : 0;
  e.device_peak = e.replay.reserved_peak + e.context;
  place_peak(e);
  e.modules = module_table(e.trace());
  e.compute = compute_of(e.trace());
  if (request.gpu || request.gpu_memory) e.fit = fit_of(request, e, replay_options);
  if (request.alloc_what_if) e.alloc_what_if = alloc_what_if(request, e, replay_options);
  e.settings = resolved(request, e);
  return e;
}

/// The request with another value of a size.
EstimateRequest with_size(EstimateRequest r, const std::string& symbol, std::int64_t value) {
  if (symbol == "batch") r.run.batches = {value};
  if (symbol == "batch") r.read.batches = {value};
  auto size = std::find_if(r.read.sizes.begin(), r.read.sizes.end(), [&](auto& s) { return s.first == symbol; });
  if (size == r.read.sizes.end()) size = r.read.sizes.insert(size, {symbol, 0});
  size->second = value;
  return r;
}

/// The same with one sample more: two steps reach the steady state. Nothing where the model takes no such batch.
std::optional<Estimate> with_one_sample_more(const EstimateRequest& asked) {
  EstimateRequest more = with_size(asked, "batch", asked.run.batches[0] + 1);
  more.run.steps = std::min(more.run.steps, 2);
  more.gpu_memory.reset();
  more.record_events = more.alloc_what_if = more.figures = false;
  try {
    return estimate_once(more);
  } catch (const Error&) {
    return {};
  }
}
Scaling scaling_of(const Estimate& e, const Estimate& larger) {
  Scaling s;
  s.per_sample = larger.replay.allocated_peak - e.replay.allocated_peak;
  s.constant = e.replay.allocated_peak - s.per_sample * e.run.batches[0];
  const auto& inputs = e.states.inputs;
  if (e.run.mode == run::Mode::train && !inputs.empty() && inputs[0].name == "input_ids" && inputs[0].sizes.size() == 2 &&
      inputs[0].sizes[1] > 0)
    s.activations_per_token = (larger.modules[0].activations_cumulative - e.modules[0].activations_cumulative) / inputs[0].sizes[1];
  return s;
}

/// The larger batch runs beside, on a thread of its own.
Estimate with_scaling(const EstimateRequest& asked) {
  std::future<std::optional<Estimate>> larger;
  constexpr std::int64_t kMostNewTokens = 64;  // a long generation is not run twice
  const bool wanted = asked.figures && asked.run.batches.size() == 1 && asked.run.new_tokens <= kMostNewTokens;
  Estimate e = estimate_once(asked, [&](const nn::Model& model) {
    if (wanted && model.is_transformers()) larger = std::async(std::launch::async, with_one_sample_more, asked);
  });
  if (!larger.valid()) return e;
  if (const auto other = larger.get(); other && other->replay.allocated_peak != e.replay.allocated_peak) e.scaling = scaling_of(e, *other);
  return e;
}

/// --seq max, --batch max: doubled until it does not fit, then halved.
Estimate estimate_largest(const EstimateRequest& asked) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const std::string& option = asked.largest;
  if (!asked.gpu && !asked.gpu_memory)
    throw Error("--" + option + " max: what fits depends on the card", "name it with --gpu, or its memory with --gpu-memory");
  EstimateRequest trial = asked;
  trial.figures = trial.record_events = trial.alloc_what_if = false;
  const auto at = [&](std::int64_t value) { return estimate_once(with_size(trial, option, value)); };
  std::int64_t low = 1, refused = 0;
  Estimate smallest;
  for (;; low *= 2) {  // batch normalisation trains on two samples or more, and images take tokens
    try {
      smallest = at(low);
      break;
    } catch (const Error&) {
      if (low >= kMost / 2) throw;
      refused = low;
    }
  }
  while (low - refused > 1) {
    const std::int64_t middle = refused + (low - refused) / 2;
    try {
      smallest = at(middle);
      low = middle;
    } catch (const Error&) {
      refused = middle;
    }
  }
  if (!smallest.fit->fits) {
    smallest.largest = Largest{option, 0, false};
    return smallest;
  }
  if (smallest.states.inputs == at(low + 1).states.inputs) throw Error("--" + option + " max: no input of the model has this size");
  const auto fits = [&](std::int64_t value) {
    try {
      return at(value).fit->fits;
    } catch (const Error&) {  // beyond what the model takes
      return false;
    }
  };
  const bool limited = option == "seq" && smallest.most_tokens > 0;
  if (limited && smallest.most_tokens <= asked.run.new_tokens)
    throw Error(fmt::format("--seq max: the model has positions for {} tokens, and --new-tokens asks for {}", smallest.most_tokens,
                            asked.run.new_tokens));
  const std::int64_t most = limited ? smallest.most_tokens - asked.run.new_tokens : kMost;
  std::int64_t high = 2 * low;
  while (high <= most && fits(high)) low = high, high *= 2;
  high = std::min(high, most + 1);
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  Estimate e = with_scaling(with_size(asked, option, low));
  e.largest = Largest{option, low, limited && low == most};
  return e;
}

}  // namespace

Estimate estimate(const EstimateRequest& asked) { return asked.largest.empty() ? with_scaling(asked) : estimate_largest(asked); }

Program record(const EstimateRequest& asked) {
  EstimateRequest request = asked;
  AllocatorConfig config;
  Runtime runtime(settings_of(request, request.gpu ? find_device(*request.gpu) : default_device(), config));
  set_up(runtime, request);
  auto model = spec::read_model(request.spec, request.read);
  take_from_file(request, *model);
  run::settle(request.run, *model);
  Recorder recorder;
  run::run_loop(*model, request.run);
  return recorder.finish();
}

}  // namespace memest
