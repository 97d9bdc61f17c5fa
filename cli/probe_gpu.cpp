// memest probe SPEC --device cuda: the estimate beside what PyTorch's caching allocator says on the GPU.
#include <fmt/core.h>

#include <algorithm>

#include "base/text.h"
#include "cli/command.h"
#include "cli/estimate_options.h"
#include "cli/parse.h"
#include "cli/probe.h"

namespace memest::cli {
namespace {

/// "amp-bf16+accum=4": changes what the command line asks for.
void apply(EstimateRequest& r, const std::string& strategy) {
  for (auto& part : split(strategy, '+')) {
    const auto equals = part.find('=');
    const std::string name = part.substr(0, equals), value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (name == "plain") continue;
    if (name == "accum") {
      r.run.grad_accum = int(positive("--strategies: accum", value));
    } else if (name == "checkpoint") {
      r.run.checkpointing = run::parse_checkpointing(value.empty() ? "full" : value);
      r.run.checkpointing_given = true;
      r.read.checkpoint = r.run.checkpointing.where == run::Checkpointing::Where::full;
      r.read.reentrant = r.run.checkpointing.reentrant;
    } else {
      try {
        r.run.precision = run::parse_precision(name);
      } catch (const Error&) {
        throw Error(fmt::format("--strategies: '{}' is no strategy", part.substr(0, 60)),
                    "plain, fp32, bf16, fp16, amp-bf16, amp-fp16, accum=K, checkpoint[=MODE], joined by +");
      }
      r.given.emplace_back("precision");
    }
  }
}

std::string gib(Bytes bytes) { return fmt::format("{:.2f}", double(bytes) / double(kGiB)); }

/// The middle one; the first step warms up.
std::string step_time(std::vector<double> milliseconds) {
  if (milliseconds.size() > 1) milliseconds.erase(milliseconds.begin());
  if (milliseconds.empty()) return "-";
  std::sort(milliseconds.begin(), milliseconds.end());
  return fmt::format("{:.1f} ms", milliseconds[milliseconds.size() / 2]);
}

std::string place(int step, std::string_view phase, const std::string& op, const std::string& module) {
  std::string text = fmt::format("step {}, {}", step, phase);
  if (!op.empty()) text += ", " + op;
  if (!module.empty()) text += " in " + module;
  return text;
}

/// Where the estimate says that the card's memory ends.
std::string shortage_of(const Estimate& e) {
  if (!e.fit || e.fit->fits) return "it fits";
  const MemoryTrace& trace = e.trace();
  const OutOfMemory& short_of = *e.fit->out_of_memory;
  const MemoryEvent& event = trace.events[short_of.trace_event];
  PhaseMark at = trace.phases.front();
  for (auto& p : trace.phases)
    if (p.first_event <= short_of.trace_event) at = p;
  return fmt::format("does not fit: {} more with {} allocated and {} reserved, {}", human(short_of.requested), human(short_of.allocated),
                     human(short_of.reserved), place(at.step, name_of(at.phase), event.op, trace.modules[event.module].path));
}

struct Row {
  std::string batch, strategy;
  Estimate estimate;
  spec::ProbeResult probe;
};

void print_table(const std::vector<Row>& rows) {
  fmt::print("{:>6}  {:<22}{:>28}{:>28}{:>12}\n", "", "", "max_memory_allocated, GiB", "max_memory_reserved, GiB", "");
  fmt::print("{:>6}  {:<22}{:>10}{:>8}{:>10}{:>10}{:>8}{:>10}{:>12}\n", "batch", "strategy", "memest", "GPU", "off by", "memest", "GPU",
             "off by", "step");
  auto difference = [](Bytes mine, Bytes real) {
    return mine == real ? std::string("0")
           : real == 0  ? std::string("-")
                        : fmt::format("{:+.2f} %", 100 * double(mine - real) / double(real));
  };
  for (auto& row : rows) {
    const auto& gpu = *row.probe.gpu;
    const ReplayResult& mine = row.estimate.replay;
    if (gpu.out_of_memory) {
      fmt::print("{:>6}  {:<22}{:>10}{:>8}{:>10}{:>10}{:>8}\n", row.batch, row.strategy, gib(mine.allocated_peak), "OOM", "",
                 gib(mine.reserved_peak), "OOM");
      continue;
    }
    fmt::print("{:>6}  {:<22}{:>10}{:>8}{:>10}{:>10}{:>8}{:>10}{:>12}\n", row.batch, row.strategy, gib(mine.allocated_peak),
               gib(gpu.allocated_peak), difference(mine.allocated_peak, gpu.allocated_peak), gib(mine.reserved_peak),
               gib(gpu.reserved_peak), difference(mine.reserved_peak, gpu.reserved_peak), step_time(gpu.milliseconds));
  }
}

void explain_shortages(const std::vector<Row>& rows) {
  for (auto& row : rows) {
    if (!row.probe.gpu->out_of_memory) continue;
    const auto& o = *row.probe.gpu->out_of_memory;
    fmt::print("\nout of memory with batch {}, {}: {}\n  LibTorch: {}\n  memest:   {}\n", row.batch, row.strategy,
               place(o.step, o.phase, o.op, o.module), o.message, shortage_of(row.estimate));
  }
}

bool agrees(const Row& row, double tolerance) {
  const auto& gpu = *row.probe.gpu;
  if (gpu.out_of_memory) return row.estimate.fit && !row.estimate.fit->fits;
  return is_within(row.estimate.replay.allocated_peak, gpu.allocated_peak, tolerance) &&
         is_within(row.estimate.replay.reserved_peak, gpu.reserved_peak, tolerance);
}

}  // namespace

int probe_gpu(const EstimateRequest& asked, const ProbeOptions& o, double tolerance) {
  EstimateRequest base = asked;
  const auto [product, memory, release] = spec::gpu_of_libtorch();
  take_release(base, release);
  if (!base.gpu) {
    try {
      base.gpu = find_device(product).name;
    } catch (Error&) {
      throw Error(fmt::format("memest does not know the GPU '{}'", product), "name the card that is nearest with --gpu; memest list gpus");
    }
  }
  base.gpu_memory = memory;
  std::vector<std::int64_t> batches;
  for (auto& text : split(o.batches.empty() ? std::to_string(base.run.batches[0]) : o.batches, ','))
    batches.push_back(positive("--batches", text));
  const std::vector<std::string> strategies = split(o.strategies.empty() ? "plain" : o.strategies, ',');

  std::vector<Row> rows;
  for (auto& strategy : strategies)
    for (std::int64_t batch : batches) {
      EstimateRequest r = base;
      r.run.batches = {batch};
      apply(r, strategy);
      Row row{std::to_string(batch), strategy, estimate(r), {}};
      if (rows.empty()) print_notes(row.estimate.diagnostics);
      Program program;
      row.probe = spec::probe(probe_request(r, row.estimate, "cuda", program));
      rows.push_back(std::move(row));
    }

  const Row& first = rows.front();
  const auto& gpu = *first.probe.gpu;
  fmt::print("{} · {} · {} on {} · LibTorch {}\n", first.estimate.name, name_of(base.run.mode),
             base.run.mode == run::Mode::train ? base.run.optimizer : "forward", gpu.name, first.probe.torch);
  fmt::print("context: memest {}, GPU {}, other programs on it included\n\n", human(first.estimate.context), human(gpu.context));
  if (rows.size() == 1 && !gpu.out_of_memory) {
    print_phases(ends_of(first.estimate), first.probe);
    fmt::print("\n");
  }
  print_table(rows);
  explain_shortages(rows);
  for (auto& row : rows)
    if (row.probe.gpu->retries > 0)
      fmt::print("\nwith batch {}, {}, the allocator gave its cache back {} times: what it reserves depends on that\n", row.batch,
                 row.strategy, row.probe.gpu->retries);
  if (!o.validate || std::all_of(rows.begin(), rows.end(), [&](auto& row) { return agrees(row, tolerance); })) return kDone;
  fmt::print("\nnot within {} of LibTorch\n", o.tolerance);
  return kDoesNotFit;
}

}  // namespace memest::cli
