// Events per second of the allocator model, on the recorded traces of tests/accuracy/traces and on a synthetic worst case.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <unordered_map>

#include "../accuracy/trace_text.h"
#include "allocator/replay.h"

#ifndef MEMEST_TRACES
#error "MEMEST_TRACES is the folder tests/accuracy/traces"
#endif

namespace memest {
namespace {

/// The recorded requests as memest's own events, several rounds one behind the other; what a round leaves is freed at its end.
MemoryTrace as_memory_trace(const accuracy::RecordedTrace& recorded, int rounds) {
  MemoryTrace trace;
  for (int round = 0; round < rounds; ++round) {
    trace.phases.push_back({Phase::forward, round + 1, 0, trace.events.size()});
    std::unordered_map<Bytes, MemoryEvent> live;
    for (const AllocatorEvent& event : recorded.events) {
      if (event.action == AllocatorEvent::Action::alloc) {
        const MemoryEvent alloc{MemoryEvent::Kind::alloc, Category(event.bytes % kCategoryCount), 0, trace.blocks++, event.bytes, ""};
        trace.events.push_back(live[event.address] = alloc);
      } else if (event.action == AllocatorEvent::Action::free_completed) {
        trace.events.push_back(live.at(event.address));
        trace.events.back().kind = MemoryEvent::Kind::free;
        live.erase(event.address);
      }
    }
    for (auto& [address, event] : live) {
      trace.events.push_back(event);
      trace.events.back().kind = MemoryEvent::Kind::free;
    }
  }
  return trace;
}

void run(benchmark::State& state, const MemoryTrace& trace, const ReplayOptions& options) {
  for (auto _ : state) benchmark::DoNotOptimize(replay(trace, options).reserved_peak);
  state.SetItemsProcessed(std::int64_t(state.iterations()) * std::int64_t(trace.events.size()));
}

/// Thousands of free blocks at once: blocks of random sizes and random lifetimes.
MemoryTrace fragmented(BlockId blocks) {
  MemoryTrace trace;
  std::mt19937 random(1);
  std::vector<MemoryEvent> live;
  for (trace.blocks = 0; trace.blocks < blocks;) {
    const Bytes bytes = Bytes(1) << (random() % 20 + 4);
    live.push_back({MemoryEvent::Kind::alloc, Category::activation, 0, trace.blocks++, bytes + Bytes(random() % std::uint32_t(bytes)), ""});
    trace.events.push_back(live.back());
    if (live.size() < 20000) continue;
    for (int i = 0; i < 10000; ++i) {
      std::swap(live[random() % live.size()], live.back());
      trace.events.push_back(live.back());
      trace.events.back().kind = MemoryEvent::Kind::free;
      live.pop_back();
    }
  }
  return trace;
}

/// One benchmark for each recorded trace, named after its file.
bool register_all() {
  std::error_code missing;
  std::vector<std::filesystem::path> files(std::filesystem::directory_iterator(MEMEST_TRACES, missing), {});
  std::sort(files.begin(), files.end());
  for (auto& file : files) {
    std::ifstream in(file);
    for (accuracy::RecordedTrace recorded; accuracy::read_trace(in, recorded);)
      benchmark::RegisterBenchmark(("replay/" + file.stem().string()).c_str(),
                                   [trace = as_memory_trace(recorded, 20), config = AllocatorConfig::parse(recorded.conf)](
                                       benchmark::State& state) { run(state, trace, {.config = config, .device_limit = {}}); });
  }
  benchmark::RegisterBenchmark("replay/fragmented", [](benchmark::State& state) {
    static const MemoryTrace trace = fragmented(200000);
    run(state, trace, {});
  });
  return true;
}
const bool kRegistered = register_all();

}  // namespace
}  // namespace memest
