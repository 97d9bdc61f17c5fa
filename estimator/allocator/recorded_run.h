// What a recording says by itself: the requests behind its events, what lived before it began, and the bytes it went through.
#pragma once
#include <cstddef>
#include <optional>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/config.h"
#include "trace/recording.h"

namespace memest {

/// One call of the allocator, and the events of segments that it led to.
struct RecordedRequest {
  enum class Kind : std::uint8_t {
    malloc,
    free,
    failed,  ///< a malloc that ran out of memory
    flush,   ///< empty_cache(): segments went back though nothing was asked for
  };
  Kind kind;
  int stream = 0;
  Bytes address = 0, bytes = 0;  ///< bytes: of the request
  std::size_t first = 0;         ///< its events in the recording: first to last
  std::size_t last = 0;
};

struct RecordedRun {
  std::vector<RecordedRequest> requests;
  /// Segments before the first event, with their blocks; of expandable ones the ranges of mapped pages, whose blocks lie in order.
  std::vector<SegmentInfo> before;
  Bytes allocated_before = 0, reserved_before = 0;
  std::size_t blocks_before = 0;

  Bytes allocated_peak = 0, allocated_end = 0;  ///< memory_allocated(): whole blocks
  Bytes reserved_peak = 0, reserved_end = 0;
  Bytes allocated_at_reserved_peak = 0;
  std::optional<std::size_t> peak_event;  ///< none: the most lived before the recording
  std::size_t mallocs = 0, flushes = 0;
  std::size_t makes_room = 0;  ///< mallocs for which the allocator gave cached segments back
  std::size_t failed = 0;      ///< out of memory
  std::size_t waits = 0;       ///< blocks that waited for another stream before they were free
  /// Bytes that the allocator could get in all, where the recording tells: it ran out of memory, or just avoided it.
  std::optional<Bytes> limit;
};

/// Throws Error, with the event's place, where the events contradict each other or the segments at the end.
RecordedRun understand(const DeviceRecording& recording, const AllocatorConfig& config);

}  // namespace memest
