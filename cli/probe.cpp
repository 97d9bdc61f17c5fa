// memest probe SPEC --device cpu|meta|cuda: LibTorch runs it, and what it takes stands beside the estimate.
#include "cli/probe.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include "base/text.h"
#include "cli/command.h"
#include "cli/estimate_options.h"
#include "cli/parse.h"

namespace memest::cli {
namespace {

/// "2%" or "0.02".
double share(const std::string& text) {
  const bool percent = text.ends_with('%');
  const auto value = parse_number(percent ? text.substr(0, text.size() - 1) : text);
  if (!value || *value < 0) throw Error(fmt::format("--tolerance: '{}' is no share", text.substr(0, 40)), "for example 2% or 0.02");
  return percent ? *value / 100 : *value;
}

std::size_t kind_of(Category c) {
  switch (c) {
    case Category::parameter: return 0;
    case Category::buffer: return 1;
    case Category::input: return 2;
    case Category::gradient: return 3;
    case Category::optimizer_state: return 4;
    default: return kKinds.size() - 1;
  }
}

void check(const EstimateRequest& r, const ProbeOptions& o) {
  static const std::set<std::string> kTaken{
      "input",        "batch",     "set",           "seq",       "src-seq",   "tgt-seq",   "image",       "method",
      "task",         "attn",      "logits",        "use-cache", "classes",   "lifetimes", "mode",        "infer-mode",
      "optimizer",    "loss",      "steps",         "precision", "freeze",    "strict",    "keep-output", "grad-accum",
      "zero-grad-at", "leak-loss", "memory-format", "device",    "tolerance", "validate",  "lora",        "checkpoint"};
  static const std::set<std::string> kTakenOnGpu{"gpu", "batches", "strategies"};
  const bool gpu = o.device == "cuda";
  for (auto& name : r.given)
    if (!kTaken.contains(name) && !(gpu && kTakenOnGpu.contains(name)))
      throw Error(fmt::format("a probe{} does not take --{}", kTakenOnGpu.contains(name) ? " without a GPU" : "", name),
                  "LibTorch runs the plain loop: forward, backward, step");
  if (!gpu && run::autocast_dtype(r.run.precision))
    throw Error("a probe without a GPU runs without autocast", "--precision fp32, bf16 or fp16");
  if (gpu && r.run.batches.size() > 1) throw Error("a probe runs one batch size in all steps", "--batches 8,16 runs it once with each");
}

/// Whether the plugin's loop around a script, which needs no recording, does what the options ask for.
bool script_runs_it(const EstimateRequest& r) {
  static const std::set<std::string> kKnown{"input",     "batch", "set",   "seq",       "image",  "method",    "mode",
                                            "optimizer", "loss",  "steps", "precision", "device", "tolerance", "validate"};
  return std::all_of(r.given.begin(), r.given.end(), [](auto& name) { return kKnown.contains(name); });
}

int probe_counted(EstimateRequest r, const ProbeOptions& o, double tolerance) {
  r.semantics = RunSettings::Semantics::fake_tensor;
  r.counted_device = o.device;
  Estimate e = estimate(r);
  Program program;
  spec::ProbeResult probe = spec::probe(probe_request(r, e, o.device, program));
  if (take_release(r, probe.torch)) {  // what a model runs depends on the release, too
    e = estimate(r);
    probe = spec::probe(probe_request(r, e, o.device, program));
  }
  print_notes(e.diagnostics);
  const std::vector<PhaseEnd> ends = ends_of(e);

  fmt::print("{} · {} · {} on {} · LibTorch {}\n\n", e.name, name_of(r.run.mode),
             r.run.mode == run::Mode::train ? r.run.optimizer : "forward", o.device, probe.torch);
  print_phases(ends, probe);
  bool within = true;
  std::array<Bytes, kKinds.size()> most{};
  for (std::size_t i = 0; i < ends.size(); ++i) {
    within &= is_within(ends[i].end, probe.phases[i].end, tolerance);
    for (std::size_t k = 0; k < kKinds.size(); ++k)
      if (const Bytes d = ends[i].kinds[k] - probe.phases[i].kinds[k]; std::abs(d) > std::abs(most[k])) most[k] = d;
  }
  if (std::all_of(most.begin(), most.end(), [](Bytes b) { return b == 0; })) {
    fmt::print("\nequal to the byte at the end of each phase, {} allocations\n", probe.allocations);
  } else {
    fmt::print("\nlargest difference by category\n");
    for (std::size_t k = 0; k < kKinds.size(); ++k)
      if (most[k]) fmt::print("  {:<24}{:>14}\n", kKinds[k], signed_text(most[k]));
  }
  if (probe.constants) fmt::print("not counted: {} bytes of the script's constants\n", probe.constants);
  if (!o.validate || within) return kDone;
  fmt::print("\nnot within {} of LibTorch\n", o.tolerance);
  return kDoesNotFit;
}

int run_probe(const EstimateRequest& r, const ProbeOptions& o) {
  if (o.device != "cpu" && o.device != "meta" && o.device != "cuda")
    throw Error(fmt::format("--device: '{}' is none of cpu, meta, cuda", o.device.substr(0, 40)));
  check(r, o);
  const double tolerance = share(o.tolerance);
  return o.device == "cuda" ? probe_gpu(r, o, tolerance) : probe_counted(r, o, tolerance);
}

}  // namespace

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

std::string signed_text(Bytes difference) { return difference == 0 ? "0" : fmt::format("{:+}", difference); }

bool is_within(Bytes estimated, Bytes measured, double tolerance) {
  return std::abs(double(estimated - measured)) <= tolerance * double(measured);
}

void print_phases(const std::vector<PhaseEnd>& estimated, const spec::ProbeResult& probe) {
  if (estimated.size() != probe.phases.size()) throw Error("LibTorch ran other phases than the estimate");
  fmt::print("{:<18}{:>18}{:>18}{:>14}{:>18}{:>18}\n", "end of", "memest", "LibTorch", "difference", "peak: memest", "LibTorch");
  for (std::size_t i = 0; i < estimated.size(); ++i) {
    const PhaseEnd& mine = estimated[i];
    const spec::ProbeResult::Phase& real = probe.phases[i];
    fmt::print("{:<18}{:>18}{:>18}{:>14}{:>18}{:>18}\n", fmt::format("{} {}", mine.step, name_of(mine.phase)), mine.end, real.end,
               signed_text(mine.end - real.end), mine.peak, real.peak);
  }
}

bool take_release(EstimateRequest& r, const std::string& release) {
  const auto version = TorchVersion::parse(release);
  if (!version) {
    fmt::print(stderr, "memest: note: LibTorch {} is no release that memest models; the estimate is of {}\n", release, r.torch.name());
    return false;
  }
  return std::exchange(r.torch, *version) != *version;
}

spec::ProbeRequest probe_request(const EstimateRequest& r, const Estimate& e, const std::string& device, Program& program) {
  spec::ProbeRequest asked;
  asked.path = r.spec;
  asked.device = device;
  asked.optimizer = r.run.optimizer;
  asked.training = r.run.mode == run::Mode::train;
  asked.math_attention = r.run.math_attention;
  if (device != "cuda" && e.kind == "torchscript" && script_runs_it(r)) {
    asked.method = r.read.method;
    asked.loss = r.run.loss.empty() ? "sum" : r.run.loss;
    asked.steps = r.run.steps;
    asked.dtype = run::model_dtype(r.run.precision);
    for (auto& input : e.states.inputs) asked.inputs.push_back({input.name, input.sizes, input.dtype});
    return asked;
  }
  program = record(r);
  asked.program = &program;
  if (device != "cuda")
    for (auto& instruction : program.instructions)
      if (auto* call = std::get_if<Program::Call>(&instruction); call && call->autocast)
        throw Error("a probe without a GPU runs without autocast, which the model turns on itself", "--device cuda");
  if (const auto autocast = run::autocast_dtype(r.run.precision)) asked.autocast = *autocast;
  asked.scaler = r.run.precision == run::Precision::amp_fp16;
  return asked;
}

Command add_probe(CLI::App& app) {
  auto options = std::make_shared<ProbeOptions>();
  CLI::App* sub = app.add_subcommand("probe", "Runs the model in LibTorch with its memory counted, beside the estimate");
  auto request = add_request_options(*sub);
  const char* group = "Probe";
  sub->add_option("--device", options->device,
                  "meta: LibTorch's own autograd and lifetimes without data; cpu: a real run, counted in the CPU's allocator; cuda: a real "
                  "run on the GPU, as its caching allocator counts")
      ->group(group)
      ->capture_default_str();
  sub->add_flag("--validate", options->validate, "Exit code 1 where an end of a phase differs by more than --tolerance")->group(group);
  sub->add_option("--tolerance", options->tolerance, "Share of LibTorch's bytes, as 2% or 0.02")->group(group)->capture_default_str();
  sub->add_option("--batches", options->batches, "On a GPU: a run with each batch size, as 8,16,32")->group(group);
  sub->add_option("--strategies", options->strategies,
                  "On a GPU: a run with each, as plain,amp-bf16,accum=4,checkpoint,amp-bf16+checkpoint")
      ->group(group);
  return {sub, [request, options] { return run_probe(request(), *options); }};
}

}  // namespace memest::cli
