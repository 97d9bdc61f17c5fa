// A recording and what its requests do under other settings of the allocator -> table, JSON (replay.schema.json).
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "allocator/recorded_replay.h"
#include "base/diagnostics.h"
#include "trace/recording.h"

namespace memest::report {

/// The requests of one device under one setting.
struct ReplayedSetting {
  std::string alloc_conf;
  bool as_recorded = false;  ///< the recording's own settings
  RecordedReplay totals;     ///< without a limit
  /// What the table shows: with the limit where the recording ran into it, since what was given back for want of room would else stay.
  const RecordedReplay& shown(bool limit_given) const { return within && !limit_given ? *within : totals; }
  std::optional<RecordedReplay> same;    ///< as_recorded: event by event, with the limit that the recording shows
  std::optional<RecordedReplay> within;  ///< with the card's limit, where there is one
  bool fits() const { return !within || (!within->out_of_memory && !unserved); }
  std::size_t unserved = 0;  ///< requests that ran out of memory in the recording, and within the limit here too
};

struct ReplayedDevice {
  int device = 0;
  std::size_t events = 0, streams = 0, pools = 0;
  RecordedRun run;
  std::string peak_place;  ///< of the allocation that made the peak
  std::optional<Bytes> limit;
  bool limit_given = false;  ///< by --gpu; else the recording shows it
  std::vector<ReplayedSetting> settings;
};

struct Replayed {
  std::string source, kind, alloc_conf;
  std::string gpu;  ///< empty: none was given
  std::vector<ReplayedDevice> devices;
  Diagnostics diagnostics;

  bool fits() const;
};

std::string to_table(const Replayed& r);
std::string to_json(const Replayed& r);

}  // namespace memest::report
