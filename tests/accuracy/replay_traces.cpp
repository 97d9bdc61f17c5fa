// Replays recorded PyTorch allocator traces: fed only with their alloc and free_completed, the model must make the same segments at the
// same instants and put every block at the same address.
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

Verdict judge(const RecordedTrace& trace) {
  std::vector<AllocatorEvent> made;
  CachingAllocator allocator({AllocatorConfig::parse(trace.conf), {}, trace.memory});
  allocator.record_events(&made);
  std::unordered_map<Bytes, Block*> live;
  Verdict verdict;
  std::size_t compared = 0;
  for (const AllocatorEvent& next : trace.events) {
    if (compared == made.size()) {
      // Nothing is pending: this event is a request, or a segment that the next request needs.
      if (next.action == Action::free_completed) {
        const auto block = live.find(next.address);
        if (block == live.end()) throw Error("the trace frees what it did not allocate");
        allocator.free(block->second);
        live.erase(block);
      } else {
        const auto request = std::find_if(&next, trace.events.data() + trace.events.size(),
                                          [](const AllocatorEvent& e) { return e.action == Action::alloc; });
        if (request == trace.events.data() + trace.events.size()) break;  // a trace cut between a segment and its block
        Block* block = allocator.malloc(request->bytes);
        live[block->address] = block;
      }
    }
    if (!same(made[compared], next)) {
      verdict.difference = "recorded " + show(next) + ", replayed " + show(made[compared]);
      return verdict;
    }
    verdict.equal = ++compared;
  }
  verdict.exact = true;
  return verdict;
}

struct Tally {
  std::size_t traces = 0, exact = 0, events = 0;
};

void judge_all(std::istream& in, bool quiet, Tally& tally) {
  for (RecordedTrace trace; read_trace(in, trace);) {
    const Verdict verdict = judge(trace);
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
