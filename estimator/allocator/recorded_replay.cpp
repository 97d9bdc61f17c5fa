#include "allocator/recorded_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

namespace memest {
namespace {
using Made = AllocatorEvent::Action;
using Action = RecordedEvent::Action;

std::optional<Made> as_made(Action action) {
  switch (action) {
    case Action::alloc: return Made::alloc;
    case Action::free_completed: return Made::free_completed;
    case Action::segment_alloc: return Made::segment_alloc;
    case Action::segment_free: return Made::segment_free;
    case Action::segment_map: return Made::segment_map;
    case Action::segment_unmap: return Made::segment_unmap;
    case Action::oom: return Made::oom;
    case Action::free_requested: break;
  }
  return {};
}
bool gives_back(Made action) { return action == Made::segment_free || action == Made::segment_unmap; }

/// Where the driver puts a segment is not the allocator's choice, so addresses are compared through the segments that they lie in.
class Places {
 public:
  void learn(Bytes made, Bytes bytes, Bytes recorded) {
    auto it = shifts_.lower_bound(made);
    if (it != shifts_.begin() && std::prev(it)->second.end > made) --it;
    while (it != shifts_.end() && it->first < made + bytes) it = shifts_.erase(it);
    shifts_[made] = {made + bytes, recorded - made};
  }
  /// The recorded address of one here; -1 where nothing was learnt of it.
  Bytes recorded(Bytes made) const {
    auto it = shifts_.upper_bound(made);
    if (it == shifts_.begin() || (--it)->second.end <= made) return -1;
    return made + it->second.shift;
  }

 private:
  struct Shift {
    Bytes end, shift;
  };
  std::map<Bytes, Shift> shifts_;
};

class Player {
 public:
  Player(const DeviceRecording& recording, const RecordedRun& run, const RecordedReplayOptions& options)
      : recording_(recording),
        run_(run),
        options_(options),
        allocator_({options.config, options.device_limit, options.device_memory, options.block_order}) {}

  RecordedReplay play() {
    take_over();
    allocator_.reset_peak_stats();
    if (options_.compare) allocator_.record_events(&made_);
    count();
    for (const RecordedRequest& r : run_.requests) {
      made_.clear();
      if (result_.out_of_memory || !request(r)) break;
      count();
      if (options_.compare && !result_.difference) compare(r);
    }
    result_.allocated_end = allocator_.allocated();
    result_.reserved_end = allocator_.reserved();
    result_.stats = allocator_.stats();
    return std::move(result_);
  }

 private:
  /// What lived before the recording: under its own settings as it lay, else as new requests in the order of addresses.
  void take_over() {
    const bool as_it_lay = options_.compare && !options_.config.expandable_segments &&
                           std::none_of(run_.before.begin(), run_.before.end(), [](auto& s) { return s.expandable; });
    for (const SegmentInfo& segment : run_.before) {
      if (as_it_lay) {
        const std::vector<Block*> blocks = allocator_.adopt(segment);
        for (Block* block : blocks)
          if (block->allocated) live_[segment.address + (block->address - blocks[0]->address)] = block;
        if (!blocks.empty()) places_.learn(blocks[0]->address, segment.total_size, segment.address);
        continue;
      }
      for (const SegmentInfo::BlockInfo& info : segment.blocks) {
        if (!info.allocated) continue;
        Block* block = allocator_.malloc(info.requested, segment.stream);
        if (!block) return ran_out(0, info.requested);
        live_[info.address] = block;
        count();
      }
    }
  }

  bool request(const RecordedRequest& r) {
    switch (r.kind) {
      case RecordedRequest::Kind::flush: allocator_.empty_cache(); return true;
      case RecordedRequest::Kind::free: {
        auto it = live_.find(r.address);
        if (it == live_.end()) return true;  // it could not be taken over
        allocator_.free(it->second);
        live_.erase(it);
        return true;
      }
      case RecordedRequest::Kind::failed:
        if (Block* block = allocator_.malloc(r.bytes, r.stream)) {
          count();
          ++result_.served;
          allocator_.free(block);
        }
        return true;
      case RecordedRequest::Kind::malloc: break;
    }
    Block* block = allocator_.malloc(r.bytes, r.stream);
    if (!block) return ran_out(r.last, r.bytes), false;
    live_[r.address] = block;
    return true;
  }
  void ran_out(std::size_t event, Bytes bytes) {
    if (result_.out_of_memory) return;
    result_.out_of_memory = OutOfMemory{event, bytes, allocator_.last_segment_size(), allocator_.allocated(), allocator_.reserved()};
  }
  void count() {
    const Bytes allocated = allocator_.allocated(), reserved = allocator_.reserved();
    result_.allocated_peak = std::max(result_.allocated_peak, allocated);
    if (reserved > result_.reserved_peak) result_.reserved_peak = reserved, result_.allocated_at_reserved_peak = allocated;
    if (reserved == result_.reserved_peak) result_.allocated_at_reserved_peak = std::max(result_.allocated_at_reserved_peak, allocated);
  }

  // ---- comparison

  struct Seen {
    Made action;
    Bytes address, bytes;
    auto key() const { return std::tuple(gives_back(action) ? 0 : 1, gives_back(action) ? address : 0); }
    bool operator==(const Seen& o) const {
      return action == o.action && (action == Made::oom || address == o.address) && (action == Made::free_completed || bytes == o.bytes);
    }
  };
  static std::string show(const Seen& e) { return fmt::format("{} of {} bytes", name_of(e.action), e.bytes); }

  /// The segments that one request gives back may come in any order: it follows their addresses.
  static void settle(std::vector<Seen>& events) {
    std::stable_sort(events.begin(), events.end(), [](const Seen& a, const Seen& b) { return a.key() < b.key(); });
  }
  void compare(const RecordedRequest& r) {
    std::vector<Seen> recorded, here;
    for (std::size_t i = r.first; i <= r.last; ++i) {
      const RecordedEvent& e = recording_.events[i];
      if (const auto action = as_made(e.action)) recorded.push_back({*action, e.address, e.bytes});
    }
    settle(recorded);
    std::size_t grown = 0;
    auto takes = [](Made action) { return action == Made::segment_alloc || action == Made::segment_map; };
    for (const AllocatorEvent& e : made_) {
      if (takes(e.action)) {
        while (grown < recorded.size() && !takes(recorded[grown].action)) ++grown;
        if (grown < recorded.size() && recorded[grown].bytes == e.bytes) places_.learn(e.address, e.bytes, recorded[grown].address);
        ++grown;
      }
      here.push_back({e.action, places_.recorded(e.address), e.bytes});
    }
    settle(here);
    const auto differs = std::mismatch(recorded.begin(), recorded.end(), here.begin(), here.end());
    result_.same_events += std::size_t(differs.first - recorded.begin());
    if (differs.first == recorded.end() && differs.second == here.end()) return;
    const std::string was = differs.first == recorded.end() ? "nothing" : show(*differs.first);
    const std::string is = differs.second == here.end() ? "nothing" : show(*differs.second);
    result_.difference = fmt::format("event {}: recorded {}, here {}{}", r.last, was, is, was == is ? " at another place" : "");
  }

  const DeviceRecording& recording_;
  const RecordedRun& run_;
  const RecordedReplayOptions& options_;
  CachingAllocator allocator_;
  RecordedReplay result_;
  std::vector<AllocatorEvent> made_;
  std::unordered_map<Bytes, Block*> live_;
  Places places_;
};

}  // namespace

RecordedReplay replay(const DeviceRecording& recording, const RecordedRun& run, const RecordedReplayOptions& options) {
  return Player(recording, run, options).play();
}

}  // namespace memest
