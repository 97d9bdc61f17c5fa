#include "allocator/replay.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "base/error.h"

using namespace memest;

namespace {

/// Builds traces in one line an event.
struct Script {
  MemoryTrace trace;
  std::vector<Bytes> sizes;  ///< by block

  void phase(Phase p, int step = 1) { trace.phases.push_back({p, step, 0, trace.events.size()}); }
  BlockId alloc(Bytes bytes, Category category = Category::activation) {
    add(MemoryEvent::Kind::alloc, category, trace.blocks, bytes);
    sizes.push_back(bytes);
    return trace.blocks++;
  }
  void free(BlockId block) { add(MemoryEvent::Kind::free, Category::activation, block, block < sizes.size() ? sizes[block] : 1); }
  void categorize(BlockId block, Category category) { add(MemoryEvent::Kind::categorize, category, block, 0); }
  void empty_cache() { add(MemoryEvent::Kind::empty_cache, Category::activation, 0, 0); }

 private:
  void add(MemoryEvent::Kind kind, Category category, BlockId block, Bytes bytes) {
    trace.events.push_back({kind, category, 0, block, bytes, ""});
  }
};

}  // namespace

TEST_CASE("peaks and ends by phase, whole blocks by category") {
  Script script;
  script.phase(Phase::load, 0);
  script.alloc(21 * kMiB, Category::parameter);  // a block of 22 MiB: the tail belongs to the parameter
  script.phase(Phase::forward);
  const BlockId a = script.alloc(30 * kMiB);
  script.alloc(100, Category::temporary);
  script.free(a);
  script.phase(Phase::backward);
  script.phase(Phase::optimizer);
  script.alloc(12 * kMiB, Category::optimizer_state);

  const ReplayResult result = replay(script.trace, {});
  CHECK(result.allocated_peak == 52 * kMiB + 512);
  CHECK(result.peak_event == 2);
  CHECK(result.at_peak[int(Category::parameter)] == 22 * kMiB);
  CHECK(result.at_peak[int(Category::activation)] == 30 * kMiB);
  CHECK(result.at_peak[int(Category::temporary)] == 512);
  CHECK(std::accumulate(result.at_peak.begin(), result.at_peak.end(), Bytes{0}) == result.allocated_peak);
  CHECK(result.reserved_peak == 54 * kMiB);
  REQUIRE(result.phases.size() == 4);
  CHECK(result.phases[0].peak == 22 * kMiB);
  CHECK(result.phases[1].peak == 52 * kMiB + 512);
  CHECK(result.phases[1].end == 22 * kMiB + 512);
  CHECK(result.phases[2].peak == 22 * kMiB + 512);  // nothing happens: what lives
  CHECK(result.phases[2].end == 22 * kMiB + 512);
  CHECK(result.phases[3].peak == 34 * kMiB + 512);
  CHECK(result.phases[3].reserved_peak == 54 * kMiB);
  CHECK(ideal_peak(script.trace) == 51 * kMiB + 512);
}

TEST_CASE("a category changes where it is changed") {
  Script script;
  const BlockId gradient = script.alloc(kMiB, Category::temporary);
  script.categorize(gradient, Category::gradient);
  script.alloc(2 * kMiB, Category::temporary);
  const ReplayResult result = replay(script.trace, {});
  CHECK(result.at_peak[int(Category::gradient)] == kMiB);
  CHECK(result.at_peak[int(Category::temporary)] == 2 * kMiB);
}

TEST_CASE("the first of equal peaks counts") {
  Script script;
  const BlockId a = script.alloc(kMiB, Category::input);
  script.free(a);
  script.alloc(kMiB, Category::temporary);
  const ReplayResult result = replay(script.trace, {});
  CHECK(result.peak_event == 0);
  CHECK(result.at_peak[int(Category::input)] == kMiB);
}

TEST_CASE("empty_cache lowers reserved") {
  Script script;
  script.phase(Phase::forward);
  script.free(script.alloc(30 * kMiB));
  script.phase(Phase::backward);
  script.empty_cache();
  script.alloc(12 * kMiB);
  ReplayOptions options;
  options.record_events = true;
  const ReplayResult result = replay(script.trace, options);
  CHECK(result.reserved_peak == 30 * kMiB);
  CHECK(result.phases[1].reserved_end == 12 * kMiB);
  CHECK(result.phases[1].reserved_peak == 30 * kMiB);
  REQUIRE(result.events.size() == 6);
  CHECK(result.events[3].action == AllocatorEvent::Action::segment_free);
  CHECK(result.events[3].trace_event == 2);
  CHECK(result.events[5].action == AllocatorEvent::Action::alloc);
  CHECK(result.events[5].trace_event == 3);
}

TEST_CASE("the replay stops where memory runs out") {
  Script script;
  script.phase(Phase::forward);
  script.alloc(40 * kMiB);
  script.alloc(41 * kMiB);
  script.phase(Phase::backward);
  script.alloc(kMiB);
  ReplayOptions options;
  options.device_limit = 80 * kMiB;
  const ReplayResult result = replay(script.trace, options);
  REQUIRE(result.out_of_memory);
  CHECK(result.out_of_memory->trace_event == 1);
  CHECK(result.out_of_memory->requested == 41 * kMiB);
  CHECK(result.out_of_memory->segment == 42 * kMiB);
  CHECK(result.out_of_memory->allocated == 40 * kMiB);
  CHECK(result.out_of_memory->reserved == 40 * kMiB);
  CHECK(result.phases[0].end == 40 * kMiB);
  CHECK(result.phases[1].end == 0);
  CHECK(result.stats.num_ooms == 1);
}

TEST_CASE("a trace that cannot be is a bug") {
  Script twice;
  const BlockId block = twice.alloc(4);
  twice.free(block);
  SECTION("freed twice") { twice.free(block); }
  SECTION("categorized when dead") { twice.categorize(block, Category::gradient); }
  SECTION("allocated twice") {
    twice.alloc(4);
    twice.trace.events.push_back(twice.trace.events.back());
  }
  SECTION("unknown block") { twice.free(17); }
  SECTION("no bytes") { twice.alloc(0); }
  CHECK_THROWS_AS(replay(twice.trace, {}), Error);
}
