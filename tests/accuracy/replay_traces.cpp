// Replays recorded PyTorch allocator traces: fed only with their alloc and free_completed, the model must make the same segments at the
// same instants, put every block at the same address and end with the same statistics.
//   replay_traces [--quiet] FILE|FOLDER|-...      exits 1 where a trace differs, 2 where there is none
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <unordered_map>

#include "base/error.h"
#include "trace_text.h"

using namespace memest;
using namespace memest::accuracy;
using Action = AllocatorEvent::Action;

namespace {

struct Verdict {
  std::size_t equal = 0;  ///< events before the first difference
  bool exact = false;
  std::string difference;
};

std::string show(const AllocatorEvent& e) {
  return std::string(name_of(e.action)) + " of " + std::to_string(e.bytes) + " B at " + std::to_string(e.address);
}

bool same(const AllocatorEvent& a, const AllocatorEvent& b) {
  return a.action == b.action && a.address == b.address && (a.bytes == b.bytes || a.action == Action::free_completed);
}

/// Feeds the allocator with the requests of a trace and compares what it does with what was recorded.
class Judge {
 public:
  explicit Judge(const RecordedTrace& trace) : trace_(trace), allocator_({AllocatorConfig::parse(trace.conf), trace.limit, trace.memory}) {
    allocator_.record_events(&made_);
  }

  Verdict run() {
    auto flush = trace_.flushes.begin();
    std::size_t i = 0;
    for (; i < trace_.events.size(); ++i) {
      for (; flush != trace_.flushes.end() && *flush == i; ++flush) allocator_.empty_cache();
      if (made_.size() == i && !request(i)) break;
      if (!same(made_[i], trace_.events[i])) return {i, false, "recorded " + show(trace_.events[i]) + ", replayed " + show(made_[i])};
    }
    for (; flush != trace_.flushes.end(); ++flush) allocator_.empty_cache();
    if (made_.size() > i) return {i, false, "replayed one event more: " + show(made_[i])};
    return compare_stats();
  }

 private:
  /// Makes the request behind event i: a free, or the alloc before which its segment was made. False where the trace is cut before it.
  bool request(std::size_t i) {
    if (trace_.events[i].action == Action::free_completed) {
      const auto block = live_.find(trace_.events[i].address);
      if (block == live_.end()) throw Error("the trace frees what it did not allocate");
      allocator_.free(block->second);
      live_.erase(block);
      return true;
    }
    while (i < trace_.events.size() && trace_.events[i].action != Action::alloc && trace_.events[i].action != Action::oom) ++i;
    if (i == trace_.events.size()) return false;
    if (Block* block = allocator_.malloc(trace_.events[i].bytes)) live_[block->address] = block;
    return true;
  }

  Verdict compare_stats() const {
    for (auto& [name, value] : list(allocator_.stats()))
      if (const auto recorded = trace_.stats.find(name); recorded != trace_.stats.end() && recorded->second != value)
        return {trace_.events.size(), false, name + " is " + std::to_string(recorded->second) + ", replayed " + std::to_string(value)};
    return {trace_.events.size(), true, ""};
  }

  const RecordedTrace& trace_;
  CachingAllocator allocator_;
  std::vector<AllocatorEvent> made_;
  std::unordered_map<Bytes, Block*> live_;
};

struct Tally {
  std::size_t traces = 0, exact = 0, events = 0;
};

void judge_all(std::istream& in, bool quiet, Tally& tally) {
  for (RecordedTrace trace; read_trace(in, trace);) {
    const Verdict verdict = Judge(trace).run();
    ++tally.traces;
    tally.exact += verdict.exact;
    tally.events += trace.events.size();
    if (!verdict.exact)
      std::printf("differs after %zu of %zu events: %s\n  %s\n", verdict.equal, trace.events.size(), trace.name.c_str(),
                  verdict.difference.c_str());
    else if (!quiet)
      std::printf("exact %8zu events  %s\n", trace.events.size(), trace.name.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) try {
  bool quiet = false;
  Tally tally;
  std::ios::sync_with_stdio(false);
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--quiet") {
      quiet = true;
    } else if (name == "-") {
      judge_all(std::cin, quiet, tally);
    } else {
      std::vector<std::filesystem::path> files{name};
      if (std::filesystem::is_directory(name)) files.assign(std::filesystem::directory_iterator(name), {});
      std::sort(files.begin(), files.end());
      for (auto& file : files) {
        std::ifstream in(file);
        if (!in) throw Error("cannot read " + file.string());
        judge_all(in, quiet, tally);
      }
    }
  }
  std::printf("%zu of %zu traces exact, %zu events\n", tally.exact, tally.traces, tally.events);
  return tally.traces == 0 ? 2 : tally.exact == tally.traces ? 0 : 1;
} catch (const Error& error) {
  std::fprintf(stderr, "replay_traces: %s\n", error.what());
  return 2;
}
