#include "allocator/replay.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/error.h"

namespace memest {
namespace {

/// A block of the trace while it is alive.
struct Live {
  Block* block = nullptr;
  Bytes bytes = 0;  ///< of the block, or of the request where there are no blocks
  bool alive = false;
  Category category = Category::temporary;
};

class Replay {
 public:
  Replay(const MemoryTrace& trace, const ReplayOptions& options)
      : trace_(trace),
        whole_blocks_(options.whole_blocks),
        allocator_({options.config, options.device_limit, options.device_memory, options.block_order}),
        live_(trace.blocks) {
    result_.phases.resize(trace.phases.size());
    if (options.record_events) allocator_.record_events(&result_.events);
  }

  ReplayResult run() {
    std::size_t event = 0;
    for (std::size_t phase = 0; phase < trace_.phases.size() && !result_.out_of_memory; ++phase) {
      const std::size_t end = phase + 1 < trace_.phases.size() ? trace_.phases[phase + 1].first_event : trace_.events.size();
      play(event, trace_.phases[phase].first_event);  // events before the first phase belong to none
      event = std::max(event, trace_.phases[phase].first_event);
      phase_ = PhaseBytes{booked_, 0, reserved(), 0};
      play(event, end);
      event = std::max(event, end);
      phase_.end = booked_;
      phase_.reserved_end = reserved();
      result_.phases[phase] = phase_;
    }
    if (trace_.phases.empty()) play(0, trace_.events.size());
    result_.stats = allocator_.stats();
    return std::move(result_);
  }

 private:
  void play(std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to && !result_.out_of_memory; ++i) {
      allocator_.set_trace_event(i);
      const MemoryEvent& event = trace_.events[i];
      switch (event.kind) {
        case MemoryEvent::Kind::alloc: alloc(event, i); break;
        case MemoryEvent::Kind::free: free(event, i); break;
        case MemoryEvent::Kind::categorize: categorize(event, i); break;
        case MemoryEvent::Kind::empty_cache: allocator_.empty_cache(); break;
      }
      if (whole_blocks_ && booked_ != allocator_.allocated()) fail(i, "the bytes by category do not add up to allocated_bytes");
    }
  }

  void alloc(const MemoryEvent& event, std::size_t index) {
    Live& live = slot(event, index);
    if (live.alive) fail(index, "a block is allocated twice");
    if (event.bytes <= 0) fail(index, "an alloc without bytes");
    if (whole_blocks_) live.block = allocator_.malloc(event.bytes);
    if (whole_blocks_ && !live.block) {
      result_.out_of_memory =
          OutOfMemory{index, event.bytes, allocator_.last_segment_size(), allocator_.allocated(), allocator_.reserved()};
      return;
    }
    live.alive = true;
    live.bytes = whole_blocks_ ? live.block->size : event.bytes;
    live.category = event.category;
    book(event.category, live.bytes);
    if (booked_ > result_.allocated_peak) {
      result_.allocated_peak = booked_;
      result_.peak_event = index;
      result_.at_peak = by_category_;
      if (std::accumulate(by_category_.begin(), by_category_.end(), Bytes{0}) != booked_)
        fail(index, "the bytes by category do not add up");
    }
    phase_.peak = std::max(phase_.peak, booked_);
    phase_.reserved_peak = std::max(phase_.reserved_peak, reserved());
    result_.reserved_peak = std::max(result_.reserved_peak, reserved());
  }

  void free(const MemoryEvent& event, std::size_t index) {
    Live& live = known(event, index);
    book(live.category, -live.bytes);
    if (live.block) allocator_.free(live.block);
    live = {};
  }

  void categorize(const MemoryEvent& event, std::size_t index) {
    Live& live = known(event, index);
    book(live.category, -live.bytes);
    live.category = event.category;
    book(live.category, live.bytes);
  }

  Bytes reserved() const { return whole_blocks_ ? allocator_.reserved() : booked_; }

  void book(Category category, Bytes bytes) {
    by_category_[std::size_t(category)] += bytes;
    booked_ += bytes;
  }

  Live& slot(const MemoryEvent& event, std::size_t index) {
    if (event.block >= live_.size()) fail(index, "a block number beyond the trace's count");
    return live_[event.block];
  }
  Live& known(const MemoryEvent& event, std::size_t index) {
    Live& live = slot(event, index);
    if (!live.alive) fail(index, "a block that is not allocated");
    return live;
  }
  [[noreturn]] void fail(std::size_t index, const std::string& what) const {
    throw Error(what, "this is a bug of memest; please report the command line").within("trace event " + std::to_string(index));
  }

  const MemoryTrace& trace_;
  const bool whole_blocks_;
  CachingAllocator allocator_;
  std::vector<Live> live_;
  ByCategory by_category_{};
  Bytes booked_ = 0;
  PhaseBytes phase_;
  ReplayResult result_;
};

}  // namespace

ReplayResult replay(const MemoryTrace& trace, const ReplayOptions& options) { return Replay(trace, options).run(); }

}  // namespace memest
