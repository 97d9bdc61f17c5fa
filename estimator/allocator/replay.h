// Replays a trace through PyTorch's caching allocator: allocated, reserved, what is alive at the peak.
#pragma once
#include <optional>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/config.h"
#include "allocator/ideal_allocator.h"
#include "allocator/stats.h"
#include "trace/trace.h"

namespace memest {

struct PhaseBytes {
  Bytes peak = 0;           ///< max_memory_allocated within the phase, reset at its start (whole blocks)
  Bytes end = 0;            ///< memory_allocated at its end
  Bytes reserved_peak = 0;  ///< max_memory_reserved within the phase
  Bytes reserved_end = 0;
};

struct ReplayOptions {
  AllocatorConfig config;
  /// Bytes that the allocator can get from the card; cudaMalloc fails beyond. None: no limit.
  std::optional<Bytes> device_limit;
  /// Total bytes of the card (Device::total_memory): what per_process_memory_fraction is a share of.
  Bytes device_memory = 80 * kGiB;
  TorchVersion::BlockOrder block_order = TorchVersion::newest().block_order();
  bool record_events = false;
  /// False: bytes as they are requested, of no allocator's blocks; nothing is reserved beyond them.
  bool whole_blocks = true;
};

struct OutOfMemory {
  std::size_t trace_event;    ///< the alloc that failed
  Bytes requested;            ///< bytes of the request
  Bytes segment;              ///< bytes that cudaMalloc was asked for, as PyTorch's message says
  Bytes allocated, reserved;  ///< at that moment
};

struct ReplayResult {
  /// One for each PhaseMark of the trace; an empty phase has what lives at its start. After running out of memory: zeros.
  std::vector<PhaseBytes> phases;
  Bytes allocated_peak = 0;  ///< of the whole run
  Bytes reserved_peak = 0;
  std::size_t peak_event = 0;                ///< the first trace event that reached allocated_peak
  ByCategory at_peak{};                      ///< whole blocks by category at peak_event; adds up to allocated_peak
  std::optional<OutOfMemory> out_of_memory;  ///< the replay stops there
  AllocatorStats stats;                      ///< at the end, peaks never reset
  std::vector<AllocatorEvent> events;        ///< with record_events
};

/// Throws Error where the sums by category do not close or a trace frees what is not allocated (both would be bugs of memest).
ReplayResult replay(const MemoryTrace& trace, const ReplayOptions& options);

}  // namespace memest
