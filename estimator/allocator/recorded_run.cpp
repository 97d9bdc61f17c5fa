#include "allocator/recorded_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <unordered_map>

#include "base/error.h"

namespace memest {
namespace {
using Action = RecordedEvent::Action;

/// Ranges of addresses that neither overlap nor touch.
class Ranges {
 public:
  void add(Bytes begin, Bytes end) {
    auto it = parts_.upper_bound(begin);
    if (it != parts_.begin() && std::prev(it)->second >= begin) --it;
    while (it != parts_.end() && it->first <= end) {
      begin = std::min(begin, it->first);
      end = std::max(end, it->second);
      it = parts_.erase(it);
    }
    parts_.emplace(begin, end);
  }
  void remove(Bytes begin, Bytes end) {
    auto it = parts_.upper_bound(begin);
    if (it != parts_.begin() && std::prev(it)->second > begin) --it;
    while (it != parts_.end() && it->first < end) {
      const auto [from, to] = *it;
      it = parts_.erase(it);
      if (from < begin) parts_.emplace(from, begin);
      if (to > end) it = parts_.emplace(end, to).first;
    }
  }
  /// f(begin, end) for what of [begin, end) is not in here.
  template <class F>
  void gaps(Bytes begin, Bytes end, F f) const {
    auto it = parts_.upper_bound(begin);
    if (it != parts_.begin() && std::prev(it)->second > begin) --it;
    for (; it != parts_.end() && it->first < end; ++it) {
      if (it->first > begin) f(begin, it->first);
      begin = std::max(begin, it->second);
    }
    if (begin < end) f(begin, end);
  }
  const std::map<Bytes, Bytes>& parts() const { return parts_; }

 private:
  std::map<Bytes, Bytes> parts_;  // begin -> end
};

[[noreturn]] void contradiction(const DeviceRecording& recording, std::size_t event, const std::string& what) {
  throw Error("the recording contradicts itself: " + what).within(fmt::format("device {}, event {}", recording.device, event));
}

struct Found {
  Bytes bytes, requested;
  int stream;
  bool whole;  ///< bytes are the block's, not the rounded request's
};

/// What was there before the first event: what events give back without having taken it, and what the end has besides.
struct Before {
  std::map<Bytes, Found> blocks, segments;
  Ranges mapped;
};

Before find_before(const DeviceRecording& recording, const AllocatorConfig& config) {
  Before before;
  Ranges mapped;
  std::unordered_map<Bytes, bool> live, segments;
  auto requested_block = [&](const RecordedEvent& e) { return Found{config.round_size(e.bytes), e.bytes, e.stream, false}; };
  for (std::size_t i = 0; i < recording.events.size(); ++i) {
    const RecordedEvent& e = recording.events[i];
    switch (e.action) {
      case Action::alloc:
        if (!live.emplace(e.address, true).second) contradiction(recording, i, "an address is allocated twice");
        break;
      case Action::free_completed:
        if (live.erase(e.address) == 0 && !before.blocks.emplace(e.address, requested_block(e)).second)
          contradiction(recording, i, "an address is freed twice");
        break;
      case Action::segment_alloc:
        if (!segments.emplace(e.address, true).second) contradiction(recording, i, "a segment is made twice");
        break;
      case Action::segment_free:
        if (segments.erase(e.address) == 0 && !before.segments.emplace(e.address, Found{e.bytes, 0, e.stream, true}).second)
          contradiction(recording, i, "a segment is given back twice");
        break;
      case Action::segment_map: mapped.add(e.address, e.address + e.bytes); break;
      case Action::segment_unmap:
        mapped.gaps(e.address, e.address + e.bytes, [&](Bytes from, Bytes to) { before.mapped.add(from, to); });
        mapped.remove(e.address, e.address + e.bytes);
        break;
      case Action::free_requested:
      case Action::oom: break;
    }
  }
  for (const RecordedSegment& s : recording.segments) {
    if (s.expandable)
      mapped.gaps(s.address, s.address + s.bytes, [&](Bytes from, Bytes to) { before.mapped.add(from, to); });
    else if (!segments.contains(s.address))
      before.segments.emplace(s.address, Found{s.bytes, 0, s.stream, true});
    for (auto& block : s.blocks)
      if (block.allocated && !live.contains(block.address))
        before.blocks.emplace(block.address, Found{block.bytes, block.requested, s.stream, true});
  }
  return before;
}

/// Follows the events with the blocks at the recorded addresses: no search, so whole blocks are known to the byte.
class Follower {
 public:
  Follower(const DeviceRecording& recording, const AllocatorConfig& config) : recording_(recording), config_(config) {}

  RecordedRun run() {
    begin(find_before(recording_, config_));
    find_limit();
    std::size_t first = 0;  // of the events that the next request leads to
    for (std::size_t i = 0; i < recording_.events.size(); ++i) {
      const RecordedEvent& e = recording_.events[i];
      switch (e.action) {
        case Action::segment_alloc:
        case Action::segment_map: grow(e, i); continue;
        case Action::segment_free:
        case Action::segment_unmap: {
          const Bytes had = reserved_;
          std::size_t end = i;
          for (; end < recording_.events.size() && gives_back(recording_.events[end]); ++end) shrink(recording_.events[end], end);
          end_of_flush(first, i, end, had);
          i = end - 1;
          continue;
        }
        case Action::alloc: alloc(e, i), request(RecordedRequest::Kind::malloc, e, first, i), ++run_.mallocs; break;
        case Action::oom: request(RecordedRequest::Kind::failed, e, first, i), ran_out(e); break;
        case Action::free_requested: free_requested(e, i); continue;
        case Action::free_completed: free(e, i), request(RecordedRequest::Kind::free, e, i, i); break;
      }
      first = i + 1;
    }
    run_.allocated_end = allocated_;
    run_.reserved_end = reserved_;
    return std::move(run_);
  }

 private:
  struct Live {
    Bytes bytes;
    int stream;
    bool waits = false;
  };

  static bool gives_back(const RecordedEvent& e) { return e.action == Action::segment_free || e.action == Action::segment_unmap; }
  [[noreturn]] void fail(std::size_t event, const std::string& what) const { contradiction(recording_, event, what); }
  void request(RecordedRequest::Kind kind, const RecordedEvent& e, std::size_t first, std::size_t last) {
    run_.requests.push_back({kind, e.stream, e.address, e.bytes, first, last});
  }
  void count() {
    run_.allocated_peak = std::max(run_.allocated_peak, allocated_);
    if (reserved_ > run_.reserved_peak) run_.reserved_peak = reserved_, run_.allocated_at_reserved_peak = allocated_;
    if (reserved_ == run_.reserved_peak) run_.allocated_at_reserved_peak = std::max(run_.allocated_at_reserved_peak, allocated_);
  }

  // ---- what lived before

  void begin(const Before& before) {
    for (auto& [address, s] : before.segments) segments_.emplace(address, address + s.bytes);
    for (auto& [begin, end] : before.mapped.parts()) add_segment_before(begin, end - begin, true, before, 0);
    for (auto& [address, s] : before.segments) add_segment_before(address, s.bytes, false, before, s.stream);
    std::sort(run_.before.begin(), run_.before.end(), [](auto& a, auto& b) { return a.address < b.address; });
    bool apart = run_.blocks_before == before.blocks.size();
    for (std::size_t i = 1; i < run_.before.size(); ++i)
      apart = apart && run_.before[i - 1].address + run_.before[i - 1].total_size <= run_.before[i].address;
    if (!apart)
      throw Error("the recording contradicts itself: blocks or segments that were there before it overlap, or blocks lie in no segment")
          .within(fmt::format("device {}", recording_.device));
    run_.allocated_before = allocated_;
    run_.reserved_before = reserved_;
    count();
  }
  void add_segment_before(Bytes address, Bytes bytes, bool expandable, const Before& before, int stream) {
    SegmentInfo segment;
    segment.address = address;
    segment.total_size = bytes;
    segment.stream = stream;
    segment.small = !expandable && bytes == kSmallBuffer;
    segment.expandable = expandable;
    Bytes at = address;
    const Bytes end = address + bytes;
    auto free_until = [&](Bytes until) {
      if (until <= at) return;
      segment.blocks.push_back({at, until - at, 0, false});
      free_.emplace(at, until - at);
      at = until;
    };
    for (auto it = before.blocks.lower_bound(address); it != before.blocks.end() && it->first < end; ++it) {
      const Found& found = it->second;
      if (it->first < at || it->first + found.bytes > end) return;  // begin() finds it missing
      free_until(it->first);
      if (expandable) segment.stream = found.stream;
      Bytes size = found.bytes;
      // What is too short to be split off in the large pool belongs to the block before it.
      const auto next = std::next(it);
      const Bytes gap = (next == before.blocks.end() ? end : std::min(end, next->first)) - (it->first + size);
      if (!found.whole && !expandable && !segment.small && gap > 0 && gap <= kSmallSize) size += gap;
      segment.blocks.push_back({it->first, size, found.requested, true});
      segment.allocated_size += size;
      segment.requested_size += found.requested;
      live_.emplace(it->first, Live{size, found.stream});
      allocated_ += size;
      ++run_.blocks_before;
      at = it->first + size;
    }
    free_until(end);
    reserved_ = checked_add(reserved_, bytes);
    run_.before.push_back(std::move(segment));
  }

  // ---- events

  void grow(const RecordedEvent& e, std::size_t i) {
    if (e.action == Action::segment_alloc && !segments_.emplace(e.address, e.address + e.bytes).second) fail(i, "a segment is made twice");
    auto next = free_.lower_bound(e.address);
    if ((next != free_.end() && next->first < e.address + e.bytes) ||
        (next != free_.begin() && std::prev(next)->first + std::prev(next)->second > e.address))
      fail(i, "a segment is made where one is");
    reserved_ = checked_add(reserved_, e.bytes);
    give(e.address, e.bytes);
    count();
  }
  void shrink(const RecordedEvent& e, std::size_t i) {
    auto it = free_.upper_bound(e.address);
    if (it == free_.begin() || std::prev(it)->first + std::prev(it)->second < e.address + e.bytes)
      fail(i, "a segment is given back while its memory is in use, or was never there");
    --it;
    const auto [begin, bytes] = *it;
    free_.erase(it);
    if (begin < e.address) free_.emplace(begin, e.address - begin);
    if (begin + bytes > e.address + e.bytes) free_.emplace(e.address + e.bytes, begin + bytes - e.address - e.bytes);
    if (e.action == Action::segment_free) segments_.erase(e.address);
    reserved_ -= e.bytes;
  }
  /// Segments went back: for want of room where the request that follows has the same stack, or where it fails, or exceeds what the
  /// allocator could get; else because of empty_cache().
  void end_of_flush(std::size_t& first, std::size_t begin, std::size_t end, Bytes had) {
    const auto events = recording_.events.begin();
    const RecordedEvent* next = end < recording_.events.size() ? &recording_.events[end] : nullptr;
    const bool fails = next && next->action == Action::oom;
    const bool grows = next && (next->action == Action::segment_alloc || next->action == Action::segment_map);
    const bool same_call =
        grows && next->stack != 0 &&
        std::all_of(events + std::ptrdiff_t(begin), events + std::ptrdiff_t(end), [&](auto& e) { return e.stack == next->stack; });
    const bool collects = config_.garbage_collection_threshold > 0;
    if (fails || same_call || (grows && (collects || had + next->bytes > limit_by_failures_))) {
      ++run_.makes_room;
      if (grows && !collects) at_most(had + next->bytes - 1);
      return;
    }
    ++run_.flushes;
    run_.requests.push_back({RecordedRequest::Kind::flush, 0, 0, 0, begin, end - 1});
    first = end;
  }
  /// What the allocator could get when it ran out of memory.
  void find_limit() {
    Bytes now = reserved_;
    for (const RecordedEvent& e : recording_.events) {
      if (e.action == Action::segment_alloc || e.action == Action::segment_map) now = checked_add(now, e.bytes);
      if (gives_back(e)) now -= e.bytes;
      if (e.action == Action::oom) limit_by_failures_ = std::min(limit_by_failures_, checked_add(now, e.address));
    }
  }
  void at_most(Bytes bytes) { run_.limit = std::min(run_.limit.value_or(bytes), bytes); }
  void ran_out(const RecordedEvent& e) {
    ++run_.failed;
    at_most(checked_add(reserved_, e.address));
  }

  void alloc(const RecordedEvent& e, std::size_t i) {
    auto it = free_.upper_bound(e.address);
    if (it == free_.begin() || std::prev(it)->first + std::prev(it)->second <= e.address) fail(i, "it allocates where no free memory is");
    --it;
    const auto [begin, bytes] = *it;
    const Bytes room = begin + bytes - e.address;
    if (room < e.bytes) fail(i, fmt::format("it allocates {} bytes where {} are free", e.bytes, room));
    free_.erase(it);
    if (begin < e.address) free_.emplace(begin, e.address - begin);
    Bytes size = std::min(config_.round_size(e.bytes), room);
    const bool any_rest = size <= kSmallSize || segment_of(e.address) == segments_.end();
    if (!any_rest && (size >= config_.max_split_size || room - size <= kSmallSize)) size = room;
    if (room > size) free_.emplace(e.address + size, room - size);
    live_.emplace(e.address, Live{size, e.stream});
    allocated_ += size;
    if (allocated_ > run_.allocated_peak) run_.peak_event = i;
    count();
  }
  void free_requested(const RecordedEvent& e, std::size_t i) {
    auto it = live_.find(e.address);
    if (it == live_.end()) fail(i, "it frees what is not allocated");
    const bool at_once = i + 1 < recording_.events.size() && recording_.events[i + 1].action == Action::free_completed &&
                         recording_.events[i + 1].address == e.address;
    if (at_once || it->second.waits) return;
    it->second.waits = true;
    allocated_ -= it->second.bytes;
    ++run_.waits;
  }
  void free(const RecordedEvent& e, std::size_t i) {
    auto it = live_.find(e.address);
    if (it == live_.end()) fail(i, "it frees what is not allocated");
    const Live live = it->second;
    live_.erase(it);
    if (!live.waits) allocated_ -= live.bytes;
    give(e.address, live.bytes);
  }

  /// The segment from cudaMalloc that holds the address; end() for expandable ones.
  std::map<Bytes, Bytes>::const_iterator segment_of(Bytes address) const {
    auto it = segments_.upper_bound(address);
    if (it == segments_.begin() || (--it)->second <= address) return segments_.end();
    return it;
  }
  /// Free memory joins free neighbours of its segment.
  void give(Bytes address, Bytes bytes) {
    auto joins = [&](Bytes at) {  // whether blocks on both sides of the address are of one segment
      return !segments_.contains(at) && segment_of(at - 1) == segment_of(at);
    };
    auto next = free_.lower_bound(address);
    if (next != free_.end() && next->first == address + bytes && joins(next->first)) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin())
      if (auto before = std::prev(next); before->first + before->second == address && joins(address)) {
        before->second += bytes;
        return;
      }
    free_.emplace(address, bytes);
  }

  const DeviceRecording& recording_;
  const AllocatorConfig& config_;
  RecordedRun run_;
  std::map<Bytes, Bytes> free_;      // address -> bytes
  std::map<Bytes, Bytes> segments_;  // from cudaMalloc: begin -> end
  std::unordered_map<Bytes, Live> live_;
  Bytes limit_by_failures_ = std::numeric_limits<Bytes>::max();
  Bytes allocated_ = 0, reserved_ = 0;
};

}  // namespace

RecordedRun understand(const DeviceRecording& recording, const AllocatorConfig& config) { return Follower(recording, config).run(); }

}  // namespace memest
