#include "report/table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace memest::report {
namespace {

const char* title(Category c) {
  static constexpr const char* titles[kCategoryCount] = {"parameters",  "buffers",     "gradients",   "optimizer state",
                                                         "inputs",      "activations", "temporaries", "autocast cache",
                                                         "grad scaler", "workspaces",  "KV cache",    "assumed"};
  return titles[int(c)];
}

std::string bar(double share) {
  static constexpr const char* eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int units = int(share * 30 * 8 + 0.5);
  std::string text;
  for (int i = 0; i < units / 8; ++i) text += "█";
  return text + eighths[units % 8];
}

std::string headline(const Estimate& e) {
  const run::RunOptions& o = e.run;
  std::vector<std::string> parts{e.name, o.mode == run::Mode::train ? "training" : "inference"};
  std::vector<std::string> batches;
  for (auto b : o.batches) batches.push_back(std::to_string(b));
  parts.push_back("batch " + join(batches, ","));
  if (o.mode == run::Mode::train && o.grad_accum > 1) parts.push_back(fmt::format("accumulating {}", o.grad_accum));
  for (auto& input : e.states.inputs) {  // without the batch
    std::vector<std::string> sizes;
    for (int i = 1; i < input.sizes.size(); ++i) sizes.push_back(std::to_string(input.sizes[i]));
    if (!sizes.empty()) parts.push_back(join(sizes, "×"));
  }
  static constexpr const char* precisions[] = {"fp32", "AMP fp16", "AMP bf16", "bf16", "fp16"};
  parts.emplace_back(precisions[int(o.precision)]);
  if (o.mode == run::Mode::train) {
    std::string optimizer = o.optimizer;
    if (optimizer != "none" && optimizer.find("foreach=") == std::string::npos && optimizer.find("fused=true") == std::string::npos)
      optimizer += " (foreach)";
    parts.push_back(o.optimizer == "none" ? "no optimizer" : optimizer);
    if (o.checkpointing.where != run::Checkpointing::Where::none) parts.push_back("checkpoint " + o.checkpointing.text());
  }
  parts.push_back("PyTorch " + e.torch.name());
  if (e.transformers && *e.transformers != TransformersVersion::newest()) parts.push_back("transformers " + e.transformers->name());
  return join(parts, " · ");
}

std::string verdict(const Estimate& e) {
  if (!e.fit) return {};
  const Fit& fit = *e.fit;
  const std::string name = fit.gpu.empty() ? "the card" : fit.gpu;
  if (fit.fits && e.device_peak <= fit.capacity)
    return fmt::format("fits {}: needs {} of {}, {} to spare\n\n", name, human(e.device_peak), human(fit.capacity),
                       human(fit.capacity - e.device_peak));
  if (fit.fits)
    return fmt::format(
        "fits {}: {} of {} only because PyTorch gives cached memory back before it fails (reserved would reach {} without a limit)\n\n",
        name, human(fit.capacity), human(fit.capacity), human(e.replay.reserved_peak));
  const auto& oom = *fit.out_of_memory;
  const MemoryEvent& event = e.trace().events[oom.trace_event];
  int step = 0;
  Phase phase = Phase::load;
  for (auto& p : e.trace().phases)
    if (p.first_event <= oom.trace_event) step = p.step, phase = p.phase;
  std::string where = std::string(name_of(phase));
  if (step > 0) where = fmt::format("step {}, {}", step, where);
  const std::string module = e.trace().modules[event.module].path;
  if (!module.empty()) where += ", " + module;
  return fmt::format(
      "does not fit {}: needs {} of {}, {} too much\nout of memory in {} ({}): {} asked for with {} allocated, {} reserved\n\n", name,
      human(e.device_peak), human(fit.capacity), human(e.device_peak - fit.capacity), where, event.op, human(oom.requested),
      human(oom.allocated), human(oom.reserved));
}

/// "4.13 GFLOP".
std::string flops(std::int64_t n) {
  static constexpr const char* units[] = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"};
  double value = double(n);
  int unit = 0;
  while (value >= 1000 && unit < 6) value /= 1000, ++unit;
  return fmt::format("{:.{}f} {}", value, unit == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2, units[unit]);
}
std::string compute(const Compute& c) {
  if (c.forward_flops == 0) return {};
  std::string text = "compute per step: forward " + flops(c.forward_flops);
  if (c.backward_flops > 0) text += ", backward " + flops(c.backward_flops);
  if (c.recomputed_flops > 0)
    text += fmt::format(", of which {} recomputed ({:.0f} % of the forward)", flops(c.recomputed_flops),
                        100 * double(c.recomputed_flops) / double(c.forward_flops));
  return text + "\n";
}

std::string what_if(const Estimate& e) {
  if (e.alloc_what_if.empty()) return {};
  std::string text = "\nthe same allocations under other settings of the allocator\n";
  for (auto& row : e.alloc_what_if) {
    const Bytes cached = row.reserved_peak - e.replay.allocated_peak;
    std::string note = cached >= 0 ? human(cached) + " above allocated" : human(-cached) + " below allocated";
    if (row.fits) note += *row.fits ? ", fits" : ", does not fit";
    text +=
        fmt::format("  {:<66} {:>9} reserved    {}\n", row.alloc_conf.empty() ? "as run" : row.alloc_conf, human(row.reserved_peak), note);
  }
  return text + "\n";
}

/// "6.74 B".
std::string count(std::int64_t n) {
  static constexpr const char* units[] = {"", " k", " M", " B", " T"};
  double value = double(n);
  int unit = 0;
  while (value >= 999.5 && unit < 4) value /= 1000, ++unit;
  return fmt::format("{:.{}f}{}", value, unit == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2, units[unit]);
}
/// What a Hugging Face config tells beside: parameters by part, what a token and a sample take.
std::string figures(const Estimate& e) {
  std::string text;
  if (e.parts) {
    std::vector<std::string> parts;
    for (auto& [name, number] : named_parts(*e.parts))
      if (number) parts.push_back(fmt::format("{} {}", name, count(number)));
    text += "parameters by part: " + join(parts, " · ") + "\n";
    if (e.parts->experts)
      text += fmt::format("of them routed experts {}, {} of which work for one token\n", count(e.parts->experts),
                          count(e.parts->active_experts));
  }
  std::vector<std::string> token;
  if (e.cache && e.cache->per_token > 0) {
    std::string cache = "KV cache " + human(e.cache->per_token);
    if (e.cache->sliding_window)
      cache += fmt::format(" ({} of them within the last {} tokens only)", human(e.cache->sliding_per_token), e.cache->sliding_window);
    token.push_back(cache);
  }
  if (e.scaling && e.scaling->activations_per_token) token.push_back("activations " + human(*e.scaling->activations_per_token));
  if (e.cache && e.cache->state > 0) text += "recurrent and convolution states: " + human(e.cache->state) + " a sample, for any length\n";
  if (!token.empty()) text += "a token takes: " + join(token, " · ") + "\n";
  if (e.scaling)
    text +=
        fmt::format("max_memory_allocated around this batch: {} + {} a sample\n", human(e.scaling->constant), human(e.scaling->per_sample));
  return text;
}

/// --seq max, --batch max.
std::string largest(const Estimate& e) {
  if (!e.largest) return {};
  if (e.largest->value == 0) return fmt::format("not even --{} 1 fits\n\n", e.largest->option);
  return fmt::format("largest --{} that fits: {}{}\n\n", e.largest->option, e.largest->value,
                     e.largest->by_positions ? ", which is as many positions as the model has" : "");
}

/// Whether cuDNN runs, whose workspaces memest does not know.
bool convolves(const Estimate& e) {
  return std::any_of(e.trace().events.begin(), e.trace().events.end(),
                     [](auto& event) { return std::string_view(event.op) == "aten::convolution"; });
}

/// What the number rests on that memest does not know.
int unknowns(const Estimate& e) {
  auto& list = e.diagnostics.list();
  return int(std::count_if(list.begin(), list.end(), [](auto& d) { return d.code.starts_with("unknown-"); }));
}

std::string layers(const Estimate& e, int depth) {
  std::vector<const ModuleBytes*> rows;
  if (depth <= 1) {
    for (auto& m : e.modules)
      if (m.depth == 1) rows.push_back(&m);
    std::stable_sort(rows.begin(), rows.end(), [](auto* a, auto* b) { return a->activations_cumulative > b->activations_cumulative; });
    std::vector<std::string> top;
    for (auto* m : rows)
      if (m->activations_cumulative > 0 && top.size() < 4) top.push_back(m->path + " " + human(m->activations_cumulative));
    if (top.empty()) return {};
    return "saved by layers:  " + join(top, " · ") + "        --depth 3 for all, --json - for machines\n";
  }
  std::string text = fmt::format("{:<44} {:<22} {:>12} {:>14}\n", "module", "type", "parameters", "saved");
  for (auto& m : e.modules) {
    if (m.depth >= depth + (e.modules.size() > 0 ? 1 : 0)) continue;
    if (m.depth == 0 && m.parameters_cumulative == 0 && m.activations_cumulative == 0) continue;
    const std::string indent(std::size_t(2 * m.depth), ' ');
    const auto dot = m.path.rfind('.');
    const std::string shown = indent + (m.path.empty() ? "(all)" : m.path.substr(dot == std::string::npos ? 0 : dot + 1));
    text += fmt::format("{:<44} {:<22} {:>12} {:>14}\n", shown, m.type, human(m.parameters_cumulative), human(m.activations_cumulative));
  }
  return text;
}

}  // namespace

std::string to_table(const Estimate& e, const TableOptions& options) {
  std::string text = headline(e) + "\n\n" + largest(e) + verdict(e);
  auto total = [](const char* name, Bytes bytes, const std::string& note) {
    std::string line = fmt::format("{:<24} {:>9}    {}", name, human(bytes), note);
    while (line.back() == ' ') line.pop_back();
    return line + "\n";
  };
  text += total("max_memory_allocated", e.replay.allocated_peak, "");
  text +=
      total("max_memory_reserved", e.replay.reserved_peak, human(e.replay.reserved_peak - e.replay.allocated_peak) + " cached and free");
  const std::string assumed = e.device_given ? e.device.name : e.device.name + ", assumed; name yours with --gpu";
  text += total("device (nvidia-smi)", e.device_peak, fmt::format("{} CUDA context ({})", human(e.context), assumed));
  std::string where = fmt::format("{}", name_of(e.peak_phase));
  if (e.peak_step > 0) where = fmt::format("step {}, {}", e.peak_step, where);
  if (!e.peak_module.empty()) where += ", " + e.peak_module;
  text += fmt::format("\nat the peak: {}{}\n", where, e.peak_op.empty() ? "" : " (" + e.peak_op + ")");
  std::vector<int> order;
  for (int i = 0; i < kCategoryCount; ++i)
    if (e.replay.at_peak[std::size_t(i)] > 0) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return e.replay.at_peak[std::size_t(a)] > e.replay.at_peak[std::size_t(b)]; });
  for (int i : order) {
    const Bytes bytes = e.replay.at_peak[std::size_t(i)];
    const double share = double(bytes) / double(e.replay.allocated_peak);
    std::string line = fmt::format("  {:<16} {:>9}  {:>3.0f} %  {}", title(Category(i)), human(bytes), share * 100, bar(share));
    while (line.back() == ' ') line.pop_back();
    text += line + "\n";
  }
  if (auto modules = layers(e, options.depth); !modules.empty()) text += "\n" + modules;
  if (auto lines = figures(e); !lines.empty()) text += "\n" + lines;
  text += what_if(e);
  if (const Bytes host = e.states.host_bytes.saved_peak)
    text += fmt::format("on the host (pinned): {} of saved tensors at most\n", human(host));
  if (auto work = compute(e.compute); !work.empty()) text += (options.depth > 1 ? "\n" : "") + work;
  if (const int count = unknowns(e))
    text += fmt::format("assumed: what {} that memest does not know {} and {} (the warnings name {})\n",
                        count == 1 ? "an op or layer" : fmt::format("{} ops and layers", count), count == 1 ? "returns" : "return",
                        count == 1 ? "saves" : "save", count == 1 ? "it" : "them");
  if (e.semantics == "cuda" && convolves(e)) text += "not modelled: cuDNN workspaces (usually 0-100 MiB)\n";
  return text;
}

}  // namespace memest::report
