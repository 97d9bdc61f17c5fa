#include "allocator/config.h"

#include <catch2/catch.hpp>
#include <string>

#include "base/error.h"

using namespace memest;

namespace {

/// Place, message and hint of the Error for a text; "" where it is accepted.
std::string refusal(std::string_view text) {
  try {
    AllocatorConfig::parse(text);
  } catch (const Error& error) {
    return error.where() + ": " + error.message() + (error.hint().empty() ? "" : " (" + error.hint() + ")");
  }
  return "";
}

}  // namespace

TEST_CASE("no text is PyTorch's defaults") {
  const AllocatorConfig config = AllocatorConfig::parse("");
  CHECK(config.max_split_size == AllocatorConfig::kUnlimited);
  CHECK(config.max_non_split_rounding == 20 * kMiB);
  CHECK(config.large_segment_size == 20 * kMiB);
  CHECK(config.garbage_collection_threshold == 0);
  CHECK_FALSE(config.per_process_memory_fraction);
  CHECK_FALSE(config.expandable_segments);
}

TEST_CASE("options are read with spaces and in any order") {
  const AllocatorConfig config = AllocatorConfig::parse(
      " garbage_collection_threshold : 0.6, max_split_size_mb:128,expandable_segments:True,max_non_split_rounding_mb:40, "
      "per_process_memory_fraction:0.5,");
  CHECK(config.garbage_collection_threshold == 0.6);
  CHECK(config.max_split_size == 128 * kMiB);
  CHECK(config.max_non_split_rounding == 40 * kMiB);
  CHECK(config.per_process_memory_fraction == 0.5);
  CHECK(config.expandable_segments);
}

TEST_CASE("a larger large segment raises the default rounding") {
  CHECK(AllocatorConfig::parse("large_segment_size_mb:64").max_non_split_rounding == 64 * kMiB);
  CHECK(AllocatorConfig::parse("max_non_split_rounding_mb:80,large_segment_size_mb:64").max_non_split_rounding == 80 * kMiB);
  CHECK(AllocatorConfig::parse("large_segment_size_mb:64").allocation_size(2 * kMiB) == 64 * kMiB);
}

TEST_CASE("a share of the whole card is no limit") {
  CHECK_FALSE(AllocatorConfig::parse("per_process_memory_fraction:1.0").per_process_memory_fraction);
}

TEST_CASE("divisions by size") {
  SECTION("one number for all") {
    for (int divisions : AllocatorConfig::parse("roundup_power2_divisions:8").roundup_power2_divisions) CHECK(divisions == 8);
  }
  SECTION("a list: the first entry also counts below, > above the last") {
    const auto divisions = AllocatorConfig::parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]").roundup_power2_divisions;
    CHECK(divisions == std::array<int, 16>{1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8});
  }
  SECTION("sizes that a list leaves out between its entries are not rounded") {
    const auto divisions = AllocatorConfig::parse("roundup_power2_divisions:[64:8,1024:4]").roundup_power2_divisions;
    CHECK(divisions == std::array<int, 16>{8, 8, 8, 8, 8, 8, 8, 0, 0, 0, 4, 0, 0, 0, 0, 0});
  }
  SECTION("sizes beyond the last interval fall into it") {
    const auto divisions = AllocatorConfig::parse("roundup_power2_divisions:[131072:4]").roundup_power2_divisions;
    CHECK(divisions == std::array<int, 16>{4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4});
  }
}

TEST_CASE("options that change no size are accepted") {
  CHECK(refusal("backend:native,release_lock_on_cudamalloc:True,pinned_use_cuda_host_register:True,pinned_num_register_threads:8") == "");
  CHECK(refusal("expandable_segments_reserve:0.5,expandable_segments_reserve_by_class:[a:40G,b:0.1],throw_on_cudamalloc_oom:False") == "");
}

TEST_CASE("what PyTorch refuses is refused with its place") {
  CHECK(refusal("max_split_sise_mb:128") == "allocator settings: unknown option 'max_split_sise_mb' (did you mean max_split_size_mb?)");
  CHECK(refusal("max_split_size_mb:19") == "allocator settings: max_split_size_mb: must be at least the size of a large segment, 20 MiB");
  CHECK(refusal("max_split_size_mb:32,large_segment_size_mb:64") ==
        "allocator settings: max_split_size_mb: must be at least the size of a large segment, 64 MiB");
  CHECK(refusal("max_split_size_mb:20") == "");
  CHECK(refusal("max_non_split_rounding_mb:10") ==
        "allocator settings: max_non_split_rounding_mb: must be at least the size of a large segment, 20 MiB");
  CHECK(refusal("max_split_size_mb") == "allocator settings: max_split_size_mb: expected ':' but the text ends");
  CHECK(refusal("max_split_size_mb:") == "allocator settings: max_split_size_mb: expected a whole number of MiB but the text ends");
  CHECK(refusal("max_split_size_mb:1.5") == "allocator settings: max_split_size_mb: expected a whole number of MiB, found '1.5'");
  CHECK(refusal("max_split_size_mb:64 expandable_segments:True") ==
        "allocator settings: max_split_size_mb: expected a whole number of MiB, found '64expandable_segments'");
  CHECK(refusal("large_segment_size_mb:10") == "allocator settings: large_segment_size_mb: must be more than 10 MiB");
  CHECK(refusal("roundup_power2_divisions:3") == "allocator settings: roundup_power2_divisions: divisions must be a power of two, not 3");
  CHECK(refusal("roundup_power2_divisions:[100:4]") ==
        "allocator settings: roundup_power2_divisions: sizes must be powers of two in MiB or '>', found '100'");
  CHECK(refusal("roundup_power2_divisions:[64:3]") ==
        "allocator settings: roundup_power2_divisions: divisions must be a power of two, or 0 to switch rounding off, not 3");
  CHECK(refusal("roundup_power2_divisions:[64:4") == "allocator settings: roundup_power2_divisions: expected ',' but the text ends");
  CHECK(refusal("garbage_collection_threshold:1.0") ==
        "allocator settings: garbage_collection_threshold: must lie between 0 and 1, both excluded");
  CHECK(refusal("per_process_memory_fraction:1.5") == "allocator settings: per_process_memory_fraction: must lie from 0 to 1");
  CHECK(refusal("expandable_segments:true") ==
        "allocator settings: expandable_segments: expected True or False, found 'true' (PyTorch reads exactly True or False here)");
  CHECK(refusal("backend:cudaMallocAsync").starts_with("allocator settings: backend: backend:cudaMallocAsync is not modelled"));
  CHECK(refusal("backend:mimalloc").starts_with("allocator settings: backend: unknown backend 'mimalloc'"));
}

TEST_CASE("requests are rounded to 512 bytes") {
  const AllocatorConfig config;
  CHECK(config.round_size(1) == 512);
  CHECK(config.round_size(512) == 512);
  CHECK(config.round_size(513) == 1024);
  CHECK(config.round_size(kMiB + 1) == 1049088);
  CHECK(config.round_size(20 * kMiB + 100) == 20972032);
}

TEST_CASE("requests are rounded to steps between powers of two") {
  const AllocatorConfig config = AllocatorConfig::parse("roundup_power2_divisions:4");
  CHECK(config.round_size(1200) == 1536);  // not more than 512 * divisions: as ever
  CHECK(config.round_size(2049) == 2560);  // steps of 512 from 2048
  CHECK(config.round_size(5000) == 5120);  // steps of 1024 from 4096
  CHECK(config.round_size(8192) == 8192);
  CHECK(config.round_size(7 * kMiB - 1) == 7 * kMiB);
  CHECK(config.round_size(7 * kMiB + 1) == 8 * kMiB);
}

TEST_CASE("segments by the rounded size") {
  const AllocatorConfig config;
  CHECK(config.allocation_size(512) == 2 * kMiB);
  CHECK(config.allocation_size(kMiB) == 2 * kMiB);
  CHECK(config.allocation_size(kMiB + 512) == 20 * kMiB);
  CHECK(config.allocation_size(10 * kMiB - 512) == 20 * kMiB);
  CHECK(config.allocation_size(10 * kMiB) == 10 * kMiB);
  CHECK(config.allocation_size(20 * kMiB + 512) == 22 * kMiB);
}
