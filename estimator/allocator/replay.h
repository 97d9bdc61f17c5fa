// Replays a trace through PyTorch's caching allocator: allocated, reserved, what is alive at the peak.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "allocator/config.h"
#include "allocator/stats.h"
#include "trace/trace.h"

namespace memest {

struct PhaseBytes {
  Bytes peak = 0;           ///< max_memory_allocated within the phase, reset at its start (whole blocks)
  Bytes end = 0;            ///< memory_allocated at its end
  Bytes reserved_peak = 0;  ///< max_memory_reserved within the phase
  Bytes reserved_end = 0;
};

/// An event as PyTorch's memory history names it.
struct AllocatorEvent {
  enum class Action : std::uint8_t { alloc, free_completed, segment_alloc, segment_free, segment_map, segment_unmap, oom };
  Action action;
  Bytes address;            ///< from 0
  Bytes bytes;              ///< alloc, free_completed: of the request; segment_*: of the segment
  std::size_t trace_event;  ///< index of the trace event that caused it
};
std::string_view name_of(AllocatorEvent::Action action);

struct ReplayOptions {
  AllocatorConfig config;
  /// Bytes that the allocator can get from the card; cudaMalloc fails beyond. None: no limit.
  std::optional<Bytes> device_limit;
  bool record_events = false;
};

struct OutOfMemory {
  std::size_t trace_event;  ///< the alloc that failed
  Bytes requested;          ///< bytes of the request
  Bytes segment;            ///< bytes that cudaMalloc was asked for
  Bytes allocated, reserved;  ///< at that moment
};

struct ReplayResult {
  std::vector<PhaseBytes> phases;  ///< one for each PhaseMark of the trace
  Bytes allocated_peak = 0;        ///< of the whole run
  Bytes reserved_peak = 0;
  std::size_t peak_event = 0;      ///< the trace event that reached allocated_peak
  ByCategory at_peak{};            ///< whole blocks by category at peak_event; adds up to allocated_peak
  std::optional<OutOfMemory> out_of_memory;  ///< the replay stops there
  AllocatorStats stats;            ///< at the end
  std::vector<AllocatorEvent> events;  ///< with record_events
};

/// Throws Error where the sums by category do not close or a trace frees what is not allocated (both would be bugs of memest).
ReplayResult replay(const MemoryTrace& trace, const ReplayOptions& options);

/// max over the trace of the sum of request sizes rounded up to 512 bytes: no fragmentation, no unsplit tails.
Bytes ideal_peak(const MemoryTrace& trace);

}  // namespace memest
