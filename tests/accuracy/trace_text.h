// Recorded allocator traces as text, so that no gzip or JSON library is needed. A stream holds any number of traces:
//   trace NAME
//   conf TEXT          PYTORCH_ALLOC_CONF of the run; the line is empty behind "conf" for none
//   memory BYTES       total bytes of the card
//   limit BYTES        what cudaMalloc can get; without the line, no limit
//   + ADDRESS BYTES    alloc: address in units of 512 bytes, from the lowest; bytes of the request
//   - ADDRESS          free_completed
//   S|s ADDRESS BYTES  segment_alloc, segment_free; bytes in units of 512
//   M|m ADDRESS BYTES  segment_map, segment_unmap
//   O FREE BYTES       oom: what the device still has, and the request rounded, both in units of 512
//   E                  torch.cuda.empty_cache() was called here
//   stat NAME VALUE    torch.cuda.memory_stats() at the end
#pragma once
#include <cstdlib>
#include <istream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "allocator/caching_allocator.h"

namespace memest::accuracy {

struct RecordedTrace {
  std::string name, conf;
  Bytes memory = 0;
  std::optional<Bytes> limit;
  std::vector<AllocatorEvent> events;  ///< bytes of a free_completed are 0: the text does not hold them
  std::vector<std::size_t> flushes;    ///< empty_cache() was called before the event with this index
  std::map<std::string, std::int64_t> stats;
};

/// The next trace of a stream; false at its end. Throws Error for a line that is none of the above.
inline bool read_trace(std::istream& in, RecordedTrace& trace) {
  using Action = AllocatorEvent::Action;
  trace = {};
  std::string line;
  while (std::getline(in, line) && !line.starts_with("trace ")) {
  }
  if (!in) return false;
  trace.name = line.substr(6);
  while (in.peek() != 't' && std::getline(in, line)) {
    if (line.starts_with("conf")) {
      trace.conf = line.size() > 5 ? line.substr(5) : "";
    } else if (line.starts_with("memory ")) {
      trace.memory = std::stoll(line.substr(7));
    } else if (line.starts_with("limit ")) {
      trace.limit = std::stoll(line.substr(6));
    } else if (line == "E") {
      trace.flushes.push_back(trace.events.size());
    } else if (line.starts_with("stat ")) {
      const auto value = line.rfind(' ');
      trace.stats[line.substr(5, value - 5)] = std::stoll(line.substr(value));
    } else if (const std::string_view marks = "+-SsMmO"; line.size() > 2 && marks.find(line[0]) != marks.npos) {
      constexpr Action actions[] = {Action::alloc,        Action::free_completed, Action::segment_alloc,
                                    Action::segment_free, Action::segment_map,    Action::segment_unmap,
                                    Action::oom};
      const auto kind = marks.find(line[0]);
      char* end = nullptr;
      const Bytes address = std::strtoll(line.c_str() + 2, &end, 10) * kMinBlockSize;
      const Bytes bytes = std::strtoll(end, nullptr, 10) * (kind < 2 ? 1 : kMinBlockSize);
      trace.events.push_back({actions[kind], address, bytes, 0});
    } else if (!line.empty() && line[0] != '#') {
      throw Error("not a line of a recorded trace: " + line);
    }
  }
  in.clear(in.rdstate() & ~std::ios::failbit);
  return true;
}

}  // namespace memest::accuracy
