#include "allocator/caching_allocator.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>

#include "base/error.h"

using namespace memest;

namespace {

CachingAllocator::Options options(std::string_view conf, std::optional<Bytes> limit = {}, Bytes memory = 80 * kGiB) {
  return {AllocatorConfig::parse(conf), limit, memory};
}

Bytes current(const PoolStat& stat, StatType type = StatType::all) { return stat[int(type)].current; }

/// "segment_alloc 0 2097152; alloc 0 4"
std::string text(const std::vector<AllocatorEvent>& events) {
  std::string all;
  for (const AllocatorEvent& e : events)
    all += (all.empty() ? "" : "; ") + std::string(name_of(e.action)) + " " + std::to_string(e.address) + " " + std::to_string(e.bytes);
  return all;
}

/// What must hold at every moment: segments add up to the statistics, blocks fill segments without free neighbours.
void check_invariants(const CachingAllocator& allocator) {
  const AllocatorStats& stats = allocator.stats();
  Bytes reserved = 0, allocated = 0, requested = 0, split_bytes = 0, split = 0, segments = 0;
  for (const SegmentInfo& segment : allocator.snapshot()) {
    reserved += segment.total_size;
    allocated += segment.allocated_size;
    requested += segment.requested_size;
    segments += !segment.expandable;
    Bytes at = segment.address;
    bool free_before = false;
    for (const auto& block : segment.blocks) {
      REQUIRE(block.address == at);
      REQUIRE(block.size % kMinBlockSize == 0);
      REQUIRE(block.size >= block.requested);
      REQUIRE_FALSE((free_before && !block.allocated));
      at += block.size;
      free_before = !block.allocated;
      if (!block.allocated && segment.blocks.size() > 1 && !segment.expandable) ++split, split_bytes += block.size;
    }
  }
  REQUIRE(reserved == current(stats.reserved_bytes));
  REQUIRE(allocated == current(stats.allocated_bytes));
  REQUIRE(requested == current(stats.requested_bytes));
  REQUIRE(segments == current(stats.segment));
  REQUIRE(split == current(stats.inactive_split));
  REQUIRE(split_bytes == current(stats.inactive_split_bytes));
  for (const PoolStat* stat : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.inactive_split_bytes})
    REQUIRE(current(*stat) == current(*stat, StatType::small_pool) + current(*stat, StatType::large_pool));
}

}  // namespace

TEST_CASE("the first request of each size: segment, block and remainder") {
  struct Row {
    Bytes request, segment, block, remainder;
    bool small;
  };
  const Row row = GENERATE(Row{4, 2 * kMiB, 512, 2096640, true}, Row{kMiB, 2 * kMiB, kMiB, kMiB, true},
                           Row{kMiB + 1, 20 * kMiB, 1049088, 19922432, false}, Row{8519680, 20 * kMiB, 8519680, 12451840, false},
                           Row{10 * kMiB, 10 * kMiB, 10 * kMiB, 0, false}, Row{20 * kMiB + 100, 22 * kMiB, 20972032, 2096640, false},
                           Row{22544384, 22 * kMiB, 22 * kMiB, 0, false});
  CachingAllocator allocator(options(""));
  Block* block = allocator.malloc(row.request);
  CHECK(block->size == row.block);
  CHECK(block->address == 0);
  CHECK(block->small == row.small);
  CHECK(allocator.reserved() == row.segment);
  CHECK(allocator.allocated() == row.block);
  CHECK(current(allocator.stats().inactive_split_bytes) == row.remainder);
  CHECK(current(allocator.stats().requested_bytes) == row.request);
  check_invariants(allocator);
  allocator.free(block);
  CHECK(allocator.allocated() == 0);
  CHECK(allocator.reserved() == row.segment);
  CHECK(current(allocator.stats().inactive_split_bytes) == 0);
  allocator.empty_cache();
  CHECK(allocator.reserved() == 0);
}

TEST_CASE("a tail of 1 MiB stays with a large block, more is split off") {
  CachingAllocator allocator(options(""));
  CHECK(allocator.malloc(21 * kMiB)->size == 22 * kMiB);
  CHECK(allocator.malloc(21 * kMiB - 512)->size == 21 * kMiB - 512);
}

TEST_CASE("the smallest free block that fits is taken, the lowest of equals") {
  CachingAllocator allocator(options(""));
  Block* a = allocator.malloc(30 * kMiB);
  Block* b = allocator.malloc(12 * kMiB);
  Block* c = allocator.malloc(12 * kMiB);
  const Bytes at_b = b->address;
  allocator.free(c);
  allocator.free(b);
  allocator.free(a);
  CHECK(allocator.malloc(11 * kMiB + 1)->address == at_b);
  CHECK(allocator.reserved() == 54 * kMiB);
}

TEST_CASE("free neighbours merge and the pools stay apart") {
  CachingAllocator allocator(options(""));
  Block* a = allocator.malloc(3 * kMiB);
  Block* b = allocator.malloc(4 * kMiB);
  Block* c = allocator.malloc(5 * kMiB);
  allocator.free(a);
  allocator.free(c);
  CHECK(current(allocator.stats().inactive_split) == 2);
  check_invariants(allocator);
  allocator.free(b);
  CHECK(current(allocator.stats().inactive_split) == 0);
  check_invariants(allocator);
  allocator.malloc(512);  // 20 MiB are free, but in the large pool
  CHECK(allocator.reserved() == 22 * kMiB);
}

TEST_CASE("streams do not share blocks") {
  CachingAllocator allocator(options(""));
  allocator.free(allocator.malloc(4 * kMiB));
  Block* other = allocator.malloc(4 * kMiB, 7);
  CHECK(other->address == 20 * kMiB);
  CHECK(allocator.reserved() == 40 * kMiB);
}

TEST_CASE("freeing twice is an error") {
  CachingAllocator allocator(options(""));
  Block* block = allocator.malloc(4);
  allocator.free(block);
  CHECK_THROWS_AS(allocator.free(block), Error);
  CHECK_THROWS_AS(allocator.free(nullptr), Error);
}

TEST_CASE("events are those of PyTorch's memory history") {
  CachingAllocator allocator(options(""));
  std::vector<AllocatorEvent> events;
  allocator.record_events(&events);
  Block* a = allocator.malloc(100);
  Block* b = allocator.malloc(11 * kMiB);
  allocator.free(a);
  allocator.free(b);
  allocator.empty_cache();
  CHECK(text(events) ==
        "segment_alloc 0 2097152; alloc 0 100; segment_alloc 2097152 12582912; alloc 2097152 11534336; free_completed 0 100; "
        "free_completed 2097152 11534336; segment_free 2097152 12582912; segment_free 0 2097152");
}

TEST_CASE("max_split_size keeps large blocks whole and for large requests") {
  CachingAllocator allocator(options("max_split_size_mb:32"));
  Block* large = allocator.malloc(63 * kMiB);
  CHECK(large->size == 64 * kMiB);  // not split
  CHECK(allocator.stats().oversize_allocations.current == 1);
  CHECK(allocator.stats().oversize_segments.current == 1);
  allocator.free(large);
  SECTION("a smaller request may not take it") {
    CHECK(allocator.malloc(30 * kMiB)->size == 30 * kMiB);
    CHECK(allocator.reserved() == 94 * kMiB);
  }
  SECTION("a request of at least the limit may, up to 20 MiB of waste") {
    CHECK(allocator.malloc(44 * kMiB + 512)->size == 64 * kMiB);
    CHECK(allocator.reserved() == 64 * kMiB);
  }
  SECTION("but no more") {
    CHECK(allocator.malloc(44 * kMiB)->size == 44 * kMiB);
    CHECK(allocator.reserved() == 108 * kMiB);
  }
}

TEST_CASE("max_non_split_rounding_mb widens that waste") {
  CachingAllocator allocator(options("max_split_size_mb:32,max_non_split_rounding_mb:40"));
  allocator.free(allocator.malloc(64 * kMiB));
  CHECK(allocator.malloc(33 * kMiB)->size == 64 * kMiB);
}

TEST_CASE("rounding to powers of two makes blocks reusable") {
  CachingAllocator allocator(options("roundup_power2_divisions:4"));
  Block* block = allocator.malloc(33 * kMiB);
  CHECK(block->size == 40 * kMiB);
  allocator.free(block);
  CHECK(allocator.malloc(39 * kMiB)->size == 40 * kMiB);
  CHECK(allocator.reserved() == 40 * kMiB);
}

TEST_CASE("when the device is full the cache is flushed and cudaMalloc tried again") {
  CachingAllocator allocator(options("", 100 * kMiB));
  std::vector<AllocatorEvent> events;
  allocator.free(allocator.malloc(40 * kMiB));
  Block* kept = allocator.malloc(5 * kMiB);  // splits the 40 MiB
  allocator.free(allocator.malloc(50 * kMiB));
  CHECK(allocator.reserved() == 90 * kMiB);
  allocator.record_events(&events);
  Block* block = allocator.malloc(60 * kMiB);
  REQUIRE(block);
  // The split segment stays, the other goes back; its range is used again.
  CHECK(text(events) == "segment_free 41943040 52428800; segment_alloc 41943040 62914560; alloc 41943040 62914560");
  CHECK(allocator.stats().num_alloc_retries == 1);
  CHECK(allocator.stats().num_sync_all_streams == 1);
  CHECK(allocator.stats().num_device_free == 1);
  CHECK(allocator.stats().num_ooms == 0);
  check_invariants(allocator);
  allocator.free(kept);
}

TEST_CASE("out of memory: everything free is given back, then nothing more is tried") {
  CachingAllocator allocator(options("", 100 * kMiB));
  std::vector<AllocatorEvent> events;
  Block* kept = allocator.malloc(60 * kMiB);
  allocator.free(allocator.malloc(20 * kMiB));
  allocator.record_events(&events);
  CHECK(allocator.malloc(41 * kMiB) == nullptr);
  CHECK(text(events) == "segment_free 62914560 20971520; oom 41943040 42991616");
  CHECK(allocator.last_segment_size() == 42 * kMiB);
  CHECK(allocator.stats().num_ooms == 1);
  CHECK(allocator.stats().num_alloc_retries == 1);
  CHECK(allocator.malloc(40 * kMiB) != nullptr);
  CHECK(allocator.reserved() == 100 * kMiB);
  allocator.free(kept);
}

TEST_CASE("with max_split_size only as many oversize blocks are freed as needed") {
  CachingAllocator allocator(options("max_split_size_mb:32", 200 * kMiB));
  std::vector<AllocatorEvent> events;
  Block* blocks[] = {allocator.malloc(40 * kMiB), allocator.malloc(60 * kMiB), allocator.malloc(80 * kMiB)};
  for (Block* block : blocks) allocator.free(block);
  SECTION("one block that is large enough: the smallest of those") {
    allocator.record_events(&events);
    REQUIRE(allocator.malloc(30 * kMiB));
    CHECK(text(events) == "segment_free 0 41943040; segment_alloc 0 31457280; alloc 0 31457280");
    CHECK(allocator.stats().num_alloc_retries == 0);
  }
  SECTION("several, from the largest down") {
    allocator.record_events(&events);
    REQUIRE(allocator.malloc(120 * kMiB));
    CHECK(text(events) ==
          "segment_free 104857600 83886080; segment_free 41943040 62914560; segment_alloc 41943040 125829120; alloc 41943040 125829120");
    CHECK(allocator.stats().num_alloc_retries == 0);
  }
  SECTION("where all of them are not enough, the flush follows") {
    REQUIRE(allocator.malloc(190 * kMiB));
    CHECK(allocator.stats().num_alloc_retries == 1);
    CHECK(allocator.reserved() == 190 * kMiB);
  }
  check_invariants(allocator);
}

TEST_CASE("a memory fraction limits what is reserved") {
  CachingAllocator allocator(options("per_process_memory_fraction:0.5", {}, 100 * kMiB));
  CHECK(allocator.malloc(30 * kMiB));
  CHECK_FALSE(allocator.malloc(30 * kMiB));
  CHECK(allocator.malloc(20 * kMiB));
  CHECK(allocator.reserved() == 50 * kMiB);
}

TEST_CASE("garbage collection frees unsplit blocks that have been unused for longer than the mean") {
  // 160 MiB are allowed; above 128 MiB a request that finds no block collects first.
  CachingAllocator allocator(options("per_process_memory_fraction:0.5,garbage_collection_threshold:0.8", {}, 320 * kMiB));
  Block* old = allocator.malloc(40 * kMiB);
  Block* young = allocator.malloc(50 * kMiB);
  allocator.free(allocator.malloc(42 * kMiB));
  REQUIRE(allocator.malloc(30 * kMiB)->next->size == 12 * kMiB);  // split
  allocator.free(old);
  std::vector<AllocatorEvent> events;
  SECTION("it spares young and split ones") {
    for (int i = 0; i < 10; ++i) allocator.free(allocator.malloc(12 * kMiB));  // ten searches of the large pool, served by the split's rest
    allocator.free(young);
    CHECK(allocator.reserved() == 132 * kMiB);
    allocator.record_events(&events);
    REQUIRE(allocator.malloc(60 * kMiB));
    CHECK(text(events) == "segment_free 0 41943040; segment_alloc 138412032 62914560; alloc 138412032 62914560");
  }
  SECTION("all of one age go, young or not") {
    allocator.free(young);
    allocator.record_events(&events);
    REQUIRE(allocator.malloc(60 * kMiB));
    CHECK(text(events) == "segment_free 0 41943040; segment_free 41943040 52428800; segment_alloc 0 62914560; alloc 0 62914560");
  }
  SECTION("a request that finds a block does not collect") {
    allocator.record_events(&events);
    allocator.malloc(39 * kMiB + 512);
    CHECK(text(events) == "alloc 0 40894976");
  }
  CHECK(allocator.stats().num_alloc_retries == 0);
  check_invariants(allocator);
}

TEST_CASE("garbage collection starts above the threshold") {
  CachingAllocator allocator(options("per_process_memory_fraction:0.5,garbage_collection_threshold:0.8", {}, 320 * kMiB));
  allocator.free(allocator.malloc(128 * kMiB));
  allocator.malloc(20 * kMiB);  // splits the 128 MiB
  std::vector<AllocatorEvent> events;
  allocator.record_events(&events);
  allocator.malloc(110 * kMiB);  // over the limit and nothing to flush
  CHECK(text(events) == "oom -1 115343360");
  CHECK(allocator.stats().num_alloc_retries == 1);
}

TEST_CASE("the threshold does nothing without a fraction") {
  CachingAllocator allocator(options("garbage_collection_threshold:0.1", {}, 100 * kMiB));
  allocator.free(allocator.malloc(40 * kMiB));
  allocator.malloc(60 * kMiB);
  CHECK(allocator.reserved() == 100 * kMiB);
}

TEST_CASE("expandable segments grow by pages and take no segment rounding") {
  CachingAllocator allocator(options("expandable_segments:True", {}, 80 * kMiB));
  std::vector<AllocatorEvent> events;
  allocator.record_events(&events);
  Block* a = allocator.malloc(30 * kMiB);
  Block* b = allocator.malloc(15 * kMiB);  // 10 MiB of the second page are left: one more page
  Block* c = allocator.malloc(100);        // the small pool's range begins behind the large pool's 9/8 of 80 MiB, in whole pages
  CHECK(text(events) ==
        "segment_map 0 41943040; alloc 0 31457280; segment_map 41943040 20971520; alloc 31457280 15728640; segment_map 104857600 2097152; "
        "alloc "
        "104857600 100");
  CHECK(current(allocator.stats().segment) == 0);
  CHECK(current(allocator.stats().inactive_split) == 0);
  CHECK(allocator.reserved() == 62 * kMiB);
  check_invariants(allocator);
  events.clear();
  allocator.free(a);
  allocator.empty_cache();  // 30 MiB are free at the front: one whole page goes
  CHECK(text(events) == "free_completed 0 31457280; segment_unmap 0 20971520");
  CHECK(allocator.reserved() == 42 * kMiB);
  check_invariants(allocator);
  events.clear();
  Block* d = allocator.malloc(25 * kMiB);  // the lowest address with room: the unmapped front
  CHECK(text(events) == "segment_map 0 20971520; alloc 0 26214400");
  for (Block* block : {b, c, d}) allocator.free(block);
  allocator.empty_cache();
  CHECK(allocator.reserved() == 0);
  CHECK(allocator.snapshot().empty());
}

TEST_CASE("expandable: remainders from 512 bytes are split off in both pools") {
  CachingAllocator allocator(options("expandable_segments:True"));
  allocator.malloc(20 * kMiB - 512);
  CHECK(allocator.malloc(kMiB + 512)->address == 20 * kMiB - 512);
}

TEST_CASE("expandable: a page that the device refuses runs into the flush and then out of memory") {
  CachingAllocator allocator(options("expandable_segments:True", 60 * kMiB));
  Block* a = allocator.malloc(20 * kMiB);
  Block* b = allocator.malloc(35 * kMiB);
  CHECK(allocator.reserved() == 60 * kMiB);
  CHECK_FALSE(allocator.malloc(10 * kMiB));
  CHECK(allocator.stats().num_ooms == 1);
  check_invariants(allocator);
  allocator.free(a);
  allocator.free(b);
  CHECK(allocator.malloc(60 * kMiB)->address == 0);
  check_invariants(allocator);
}

TEST_CASE("large_segment_size_mb is also the page of the large expandable segment") {
  CachingAllocator allocator(options("expandable_segments:True,large_segment_size_mb:12"));
  allocator.malloc(13 * kMiB);
  CHECK(allocator.reserved() == 24 * kMiB);
}

TEST_CASE("statistics under torch's names") {
  CachingAllocator allocator(options("max_split_size_mb:64"));
  Block* block = allocator.malloc(100);
  allocator.malloc(3 * kMiB);
  allocator.free(block);
  std::string all;
  for (auto& [name, value] : list(allocator.stats())) all += name + "=" + std::to_string(value) + "\n";
  CHECK_THAT(all, Catch::Contains("allocated_bytes.all.peak=3146240\n") && Catch::Contains("allocated_bytes.small_pool.freed=512\n") &&
                      Catch::Contains("reserved_bytes.large_pool.current=20971520\n") &&
                      Catch::Contains("requested_bytes.all.allocated=3145828\n") && Catch::Contains("segment.all.current=2\n") &&
                      Catch::Contains("inactive_split.small_pool.current=0\n") && Catch::Contains("max_split_size=67108864\n") &&
                      Catch::Contains("num_device_alloc=2\n"));
  CHECK(list(allocator.stats()).size() == 9 * 3 * 4 + 2 * 4 + 6);
  allocator.reset_peak_stats();
  CHECK(allocator.stats().allocated_bytes[0].peak == 3 * kMiB);
}

TEST_CASE("random requests keep the law in every mode") {
  const char* conf =
      GENERATE("", "max_split_size_mb:20", "roundup_power2_divisions:[1:8,4:2,>:4]", "expandable_segments:True",
               "per_process_memory_fraction:0.3,garbage_collection_threshold:0.5", "max_split_size_mb:24,expandable_segments:True");
  CachingAllocator allocator(options(conf, 400 * kMiB, 2 * kGiB));
  std::mt19937 random(5);
  std::vector<Block*> live;
  int refused = 0;
  for (int i = 0; i < 6000; ++i) {
    if (live.size() < 3 || random() % 100 < 53) {
      const Bytes scale = Bytes(1) << (random() % 27);
      if (Block* block = allocator.malloc(1 + Bytes(random()) % scale, int(random() % 2)))
        live.push_back(block);
      else
        ++refused;
    } else {
      std::swap(live[random() % live.size()], live.back());
      allocator.free(live.back());
      live.pop_back();
    }
    if (random() % 500 == 0) allocator.empty_cache();
    if (i % 50 == 0) check_invariants(allocator);
    REQUIRE(allocator.reserved() <= 400 * kMiB);
  }
  CHECK(refused > 0);
  for (Block* block : live) allocator.free(block);
  allocator.empty_cache();
  CHECK(allocator.reserved() == 0);
  CHECK(allocator.snapshot().empty());
}

TEST_CASE("of equally large free blocks the release's order takes one") {
  // a, x, b, y in one segment; a and x go and come back, so that a's record is younger than b's
  auto taken = [](TorchVersion torch) {
    CachingAllocator::Options o;
    o.block_order = torch.block_order();
    CachingAllocator allocator(o);
    Block *a = allocator.malloc(1024), *x = allocator.malloc(1024), *b = allocator.malloc(1024);
    allocator.malloc(1024);
    allocator.free(a);
    allocator.free(x);
    a = allocator.malloc(1024);
    x = allocator.malloc(1024);
    REQUIRE(a->address < b->address);
    const Bytes start = a->address;
    allocator.free(a);
    allocator.free(b);
    return allocator.malloc(1024)->address - start;
  };
  CHECK(taken({2, 11}) == 0);     // the lower address
  CHECK(taken({2, 12}) == 2048);  // the older record
  CHECK(taken({2, 15}) == 0);     // one segment: the lower address again
}
