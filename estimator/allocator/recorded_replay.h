// Plays a recording's requests into the model of the caching allocator, as recorded or under other settings.
#pragma once
#include <optional>
#include <string>

#include "allocator/recorded_run.h"
#include "allocator/replay.h"

namespace memest {

struct RecordedReplayOptions {
  AllocatorConfig config{};
  std::optional<Bytes> device_limit{};  ///< as in ReplayOptions
  Bytes device_memory = 80 * kGiB;
  TorchVersion::BlockOrder block_order = TorchVersion::newest().block_order();
  /// The settings are the recording's: what lived before it starts where it was, and each event is compared with the recorded one.
  bool compare = false;
};

struct RecordedReplay {
  Bytes allocated_peak = 0, allocated_end = 0;
  Bytes reserved_peak = 0, reserved_end = 0;
  Bytes allocated_at_reserved_peak = 0;
  AllocatorStats stats;                      ///< at the end, peaks since the recording's start
  std::size_t served = 0;                    ///< requests that ran out of memory in the recording, and do not here
  std::optional<OutOfMemory> out_of_memory;  ///< a request that was served in the recording; trace_event counts its events. It ends there
  // with compare
  std::size_t same_events = 0;            ///< before the first difference
  std::optional<std::string> difference;  ///< the first one
};

RecordedReplay replay(const DeviceRecording& recording, const RecordedRun& run, const RecordedReplayOptions& options);

}  // namespace memest
