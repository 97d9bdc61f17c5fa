#include "allocator/recorded_replay.h"

#include <catch2/catch.hpp>

using namespace memest;
using Action = RecordedEvent::Action;

namespace {

constexpr Bytes kBase = Bytes{1} << 40;

DeviceRecording recording_of(std::vector<RecordedEvent> events) {
  DeviceRecording r;
  r.streams = {{0, 0, 0}};
  r.events = std::move(events);
  return r;
}
RecordedEvent event(Action action, Bytes address, Bytes bytes) { return {action, kBase + address, bytes, 0, 0, 0}; }

}  // namespace

TEST_CASE("a recording is replayed block by block, whatever its addresses") {
  const auto r = recording_of({event(Action::segment_alloc, 0, 20 * kMiB), event(Action::alloc, 0, 3 * kMiB + 5),
                               event(Action::alloc, 3 * kMiB + 512, 2 * kMiB), event(Action::free_requested, 0, 3 * kMiB + 5),
                               event(Action::free_completed, 0, 3 * kMiB + 5), event(Action::alloc, 0, 2 * kMiB)});
  const RecordedRun run = understand(r, {});
  CHECK(run.allocated_peak == 5 * kMiB + 512);
  CHECK(run.reserved_peak == 20 * kMiB);
  CHECK(run.mallocs == 3);
  CHECK(run.blocks_before == 0);
  // 2 MiB in a hole of 3 MiB and 512 bytes: what remains is more than 1 MiB, and is split off
  CHECK(run.allocated_end == 4 * kMiB);
  const RecordedReplay same = replay(r, run, {.compare = true});
  CHECK_FALSE(same.difference);
  CHECK(same.same_events == 5);
  CHECK(same.reserved_peak == run.reserved_peak);
}

TEST_CASE("what a recording frees without having allocated it lived before") {
  auto r = recording_of({event(Action::free_completed, 2 * kMiB, 3 * kMiB), event(Action::alloc, 2 * kMiB, 2 * kMiB)});
  r.segments.push_back(
      {kBase,
       20 * kMiB,
       0,
       false,
       {{kBase, 2 * kMiB, 2 * kMiB, true}, {kBase + 2 * kMiB, 2 * kMiB, 2 * kMiB, true}, {kBase + 4 * kMiB, 16 * kMiB, 0, false}}});
  const RecordedRun run = understand(r, {});
  CHECK(run.blocks_before == 2);
  CHECK(run.allocated_before == 5 * kMiB);
  CHECK(run.reserved_before == 20 * kMiB);
  CHECK_FALSE(run.peak_event);
  const RecordedReplay same = replay(r, run, {.compare = true});
  CHECK_FALSE(same.difference);
  CHECK(same.allocated_end == 4 * kMiB);
  CHECK(same.reserved_end == 20 * kMiB);
}

TEST_CASE("cached segments that go back because there is no room are no empty_cache") {
  const RecordedEvent oom{Action::oom, 4 * kMiB, 40 * kMiB, 0, 0, 0};
  const auto r = recording_of({event(Action::segment_alloc, 0, 20 * kMiB), event(Action::alloc, 0, 2 * kMiB),
                               event(Action::free_completed, 0, 2 * kMiB), event(Action::segment_free, 0, 20 * kMiB), oom});
  const RecordedRun run = understand(r, {});
  CHECK(run.makes_room == 1);
  CHECK(run.flushes == 0);
  CHECK(run.failed == 1);
  CHECK(run.limit == 4 * kMiB);
  auto flush = recording_of({event(Action::segment_alloc, 0, 20 * kMiB), event(Action::alloc, 0, 2 * kMiB),
                             event(Action::free_completed, 0, 2 * kMiB), event(Action::segment_free, 0, 20 * kMiB),
                             event(Action::segment_alloc, 0, 2 * kMiB), event(Action::alloc, 0, 1000)});
  const RecordedRun flushed = understand(flush, {});
  CHECK(flushed.flushes == 1);
  CHECK_FALSE(flushed.limit);
  CHECK_FALSE(replay(flush, flushed, {.compare = true}).difference);
  for (RecordedEvent& e : flush.events) e.stack = 7;  // all in one call
  CHECK(understand(flush, {}).makes_room == 1);
  CHECK(understand(flush, {}).limit == 22 * kMiB - 1);
}

TEST_CASE("a recording that contradicts itself is refused with the event") {
  CHECK_THROWS_WITH(
      understand(recording_of({event(Action::segment_alloc, 0, 2 * kMiB), event(Action::alloc, 0, 512), event(Action::alloc, 0, 512)}), {}),
      Catch::Contains("allocated twice"));
  CHECK_THROWS_WITH(understand(recording_of({event(Action::alloc, 0, 512)}), {}), Catch::Contains("no free memory"));
  CHECK_THROWS_WITH(understand(recording_of({event(Action::segment_alloc, 0, 2 * kMiB), event(Action::segment_alloc, kMiB, 2 * kMiB)}), {}),
                    Catch::Contains("where one is"));
  CHECK_THROWS_WITH(understand(recording_of({event(Action::free_completed, 0, 512)}), {}), Catch::Contains("lie in no segment"));
}

TEST_CASE("an expandable segment has room for a request beyond the card where nothing limits it") {
  AllocatorConfig config;
  config.expandable_segments = true;
  CachingAllocator allocator({.config = config, .device_limit = {}, .device_memory = 1 * kGiB});
  CHECK(allocator.malloc(3 * kGiB));
  CHECK(allocator.reserved() >= 3 * kGiB);
}
