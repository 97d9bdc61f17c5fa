// memest probe SPEC --device cpu|meta: LibTorch runs it, and what it takes stands beside the estimate.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <set>

#include "base/text.h"
#include "cli/command.h"
#include "cli/estimate_options.h"
#include "cli/parse.h"
#include "spec/probe.h"

namespace memest::cli {
namespace {

struct ProbeOptions {
  std::string device = "meta", tolerance = "0%";
  bool validate = false;
};

/// "2%" or "0.02".
double share(const std::string& text) {
  const bool percent = text.ends_with('%');
  const auto value = parse_number(percent ? text.substr(0, text.size() - 1) : text);
  if (!value || *value < 0) throw Error(fmt::format("--tolerance: '{}' is no share", text.substr(0, 40)), "for example 2% or 0.02");
  return percent ? *value / 100 : *value;
}

/// The kinds of bytes that LibTorch's run is told apart by.
constexpr std::array kKinds = {"parameters", "buffers", "inputs", "gradients", "optimizer state", "activations and others"};
constexpr std::size_t kOthers = kKinds.size() - 1;
std::size_t kind_of(Category c) {
  switch (c) {
    case Category::parameter: return 0;
    case Category::buffer: return 1;
    case Category::input: return 2;
    case Category::gradient: return 3;
    case Category::optimizer_state: return 4;
    default: return kOthers;
  }
}

struct PhaseEnd {
  int step;
  Phase phase;
  Bytes end = 0, peak = 0;
  std::array<Bytes, kKinds.size()> kinds{};
};

/// Of the estimate: what lives at each phase's end.
std::vector<PhaseEnd> ends_of(const Estimate& e) {
  const MemoryTrace& trace = e.trace();
  std::vector<PhaseEnd> ends;
  std::vector<std::pair<Bytes, std::size_t>> live(trace.blocks);
  std::array<Bytes, kKinds.size()> now{};
  for (std::size_t i = 0, event = 0; i < trace.phases.size(); ++i) {
    const std::size_t stop = i + 1 < trace.phases.size() ? trace.phases[i + 1].first_event : trace.events.size();
    for (; event < stop; ++event) {
      const MemoryEvent& m = trace.events[event];
      if (m.kind == MemoryEvent::Kind::empty_cache) continue;
      auto& [bytes, kind] = live[m.block];
      if (m.kind != MemoryEvent::Kind::alloc) now[kind] -= bytes;
      if (m.kind == MemoryEvent::Kind::free) continue;
      if (m.kind == MemoryEvent::Kind::alloc) bytes = m.bytes;
      now[kind = kind_of(m.category)] += bytes;
    }
    if (trace.phases[i].phase == Phase::load) continue;
    ends.push_back({trace.phases[i].step, trace.phases[i].phase, e.replay.phases[i].end, e.replay.phases[i].peak, now});
  }
  return ends;
}

void check(const EstimateRequest& r) {
  static const std::set<std::string> kTaken{"input", "batch", "set",       "seq",    "image",     "method",   "mode",  "optimizer",
                                            "loss",  "steps", "precision", "device", "tolerance", "validate", "strict"};
  for (auto& name : r.given)
    if (!kTaken.contains(name))
      throw Error(fmt::format("a probe does not take --{}", name), "LibTorch runs the plain loop: forward, backward, step");
  if (r.run.precision == run::Precision::amp_fp16 || r.run.precision == run::Precision::amp_bf16)
    throw Error("a probe runs without autocast", "--precision fp32, bf16 or fp16");
  if (r.run.batches.size() > 1) throw Error("a probe runs one batch size");
}

int run_probe(EstimateRequest r, const ProbeOptions& o) {
  check(r);
  if (o.device != "cpu" && o.device != "meta")
    throw Error(fmt::format("--device: '{}' is none of cpu, meta", o.device.substr(0, 40)), "a probe of a GPU is not built yet");
  const double tolerance = share(o.tolerance);
  r.semantics = RunSettings::Semantics::fake_tensor;
  r.counted_device = o.device;
  const Estimate e = estimate(r);
  if (e.kind != "torchscript")
    throw Error(fmt::format("a probe runs TorchScript files, this is one of {}", e.kind), "torch.jit.script(model).save(\"model.pt\")")
        .within(r.spec);
  print_notes(e.diagnostics);
  spec::ProbeRequest asked;
  asked.path = r.spec;
  asked.method = r.read.method;
  asked.device = o.device;
  asked.optimizer = r.run.optimizer;
  asked.loss = r.run.loss.empty() ? "sum" : r.run.loss;
  asked.training = r.run.mode == run::Mode::train;
  asked.steps = r.run.steps;
  asked.dtype = run::model_dtype(r.run.precision);
  for (auto& input : e.states.inputs) asked.inputs.push_back({input.name, input.sizes, input.dtype});
  const spec::ProbeResult probe = spec::probe_torchscript(asked);
  const std::vector<PhaseEnd> ends = ends_of(e);
  if (ends.size() != probe.phases.size()) throw Error("LibTorch ran other phases than the estimate");

  fmt::print("{} · {} · {} on {} · LibTorch {}\n\n", e.name, name_of(r.run.mode),
             r.run.mode == run::Mode::train ? r.run.optimizer : "forward", o.device, probe.torch);
  fmt::print("{:<18}{:>18}{:>18}{:>14}{:>18}{:>18}\n", "end of", "memest", "LibTorch", "difference", "peak: memest", "LibTorch");
  bool within = true;
  std::array<Bytes, kKinds.size()> most{};
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const PhaseEnd& mine = ends[i];
    const spec::ProbeResult::Phase& real = probe.phases[i];
    const Bytes difference = mine.end - real.end;
    within &= std::abs(double(difference)) <= tolerance * double(real.end);
    fmt::print("{:<18}{:>18}{:>18}{:>14}{:>18}{:>18}\n", fmt::format("{} {}", mine.step, name_of(mine.phase)), mine.end, real.end,
               difference == 0 ? "0" : fmt::format("{:+}", difference), mine.peak, real.peak);
    for (std::size_t k = 0; k < kKinds.size(); ++k)
      if (const Bytes d = mine.kinds[k] - real.kinds[k]; std::abs(d) > std::abs(most[k])) most[k] = d;
  }
  if (std::all_of(most.begin(), most.end(), [](Bytes b) { return b == 0; })) {
    fmt::print("\nequal to the byte at the end of each phase, {} allocations\n", probe.allocations);
  } else {
    fmt::print("\nlargest difference by category\n");
    for (std::size_t k = 0; k < kKinds.size(); ++k)
      if (most[k]) fmt::print("  {:<24}{:>14}\n", kKinds[k], fmt::format("{:+}", most[k]));
    if (!probe.recurrent.empty())
      fmt::print("{} runs in single steps on this device, each of which autograd keeps; a GPU has a kernel for the whole\n",
                 probe.recurrent);
  }
  if (probe.constants) fmt::print("not counted: {} bytes of the script's constants\n", probe.constants);
  if (!o.validate || within) return kDone;
  fmt::print("\nnot within {} of LibTorch\n", o.tolerance);
  return kDoesNotFit;
}

}  // namespace

Command add_probe(CLI::App& app) {
  auto options = std::make_shared<ProbeOptions>();
  CLI::App* sub = app.add_subcommand("probe", "Runs a TorchScript file in LibTorch with its memory counted, beside the estimate");
  auto request = add_request_options(*sub);
  const char* group = "Probe";
  sub->add_option("--device", options->device,
                  "meta: LibTorch's own autograd and lifetimes without data; cpu: a real run, counted in the CPU's allocator")
      ->group(group)
      ->capture_default_str();
  sub->add_flag("--validate", options->validate, "Exit code 1 where an end of a phase differs by more than --tolerance")->group(group);
  sub->add_option("--tolerance", options->tolerance, "Share of LibTorch's bytes, as 2% or 0.02")->group(group)->capture_default_str();
  return {sub, [request, options] { return run_probe(request(), *options); }};
}

}  // namespace memest::cli
