// What an allocator was seen to do: a trace that PyTorch's memory history, or memest itself, recorded.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace memest {

struct RecordedEvent {
  enum class Action : std::uint8_t { alloc, free_requested, free_completed, segment_alloc, segment_free, segment_map, segment_unmap, oom };
  Action action;
  Bytes address;        ///< oom: bytes that the device still has
  Bytes bytes;          ///< alloc, free_*: of the request; segment_*: of the segment; oom: of the request, rounded
  int stream;           ///< index into DeviceRecording::streams
  std::uint32_t place;  ///< index into Recording::places; 0: not said
  std::uint32_t stack;  ///< of the call that caused it, a hash; 0: not said
};

/// A segment at the end of the recording; an expandable one once for each range of mapped pages.
struct RecordedSegment {
  struct Block {
    Bytes address, bytes, requested;
    bool allocated;  ///< or waiting for another stream
  };
  Bytes address = 0, bytes = 0;
  int stream = 0;
  bool expandable = false;
  std::vector<Block> blocks;
};

struct DeviceRecording {
  /// Streams, and the private pools of CUDA graphs: nothing that one freed serves another.
  struct Stream {
    std::int64_t id;  ///< cudaStream_t; 0: the default stream
    std::int64_t pool_owner, pool;
    bool operator<(const Stream& o) const {
      return pool_owner != o.pool_owner ? pool_owner < o.pool_owner : pool != o.pool ? pool < o.pool : id < o.id;
    }
  };
  int device = 0;
  std::vector<Stream> streams;  ///< in order
  std::vector<RecordedEvent> events;
  std::vector<RecordedSegment> segments;
};

struct Recording {
  std::string kind;                      ///< "PyTorch snapshot", "memest trace"
  std::string alloc_conf;                ///< as recorded; empty: the defaults, or not said
  bool has_segments = false;             ///< the end is known
  std::vector<DeviceRecording> devices;  ///< those with events or segments
  std::vector<std::string> places{""};   ///< where allocations came from: "forward (model.py:12)"
};

}  // namespace memest
