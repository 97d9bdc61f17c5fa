// Settings of PyTorch's caching allocator, from the text of PYTORCH_ALLOC_CONF (PYTORCH_CUDA_ALLOC_CONF before 2.9).
#pragma once
#include <array>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace memest {

// c10/core/AllocatorConfig.h (2.15; in c10/cuda/CUDACachingAllocator.cpp up to 2.8), the same in 2.4 to 2.15.
inline constexpr Bytes kMinBlockSize = 512;         ///< every block is a multiple of this
inline constexpr Bytes kSmallSize = 1 * kMiB;       ///< rounded sizes up to this come from the small pool
inline constexpr Bytes kSmallBuffer = 2 * kMiB;     ///< a segment of the small pool
inline constexpr Bytes kLargeBuffer = 20 * kMiB;    ///< a segment of the large pool for blocks below kMinLargeAlloc
inline constexpr Bytes kMinLargeAlloc = 10 * kMiB;  ///< from here a request gets a segment of its own size ...
inline constexpr Bytes kRoundLarge = 2 * kMiB;      ///< ... rounded up to this

struct AllocatorConfig {
  static constexpr Bytes kUnlimited = std::numeric_limits<Bytes>::max();
  static constexpr int kRoundupIntervals = 16;

  Bytes max_split_size = kUnlimited;            ///< blocks of at least this are never split
  Bytes max_non_split_rounding = kLargeBuffer;  ///< a request of at least max_split_size may waste less than this in a cached block
  Bytes large_segment_size = kLargeBuffer;      ///< bytes of a large-pool segment; page of the expandable large segment
  /// Steps between two powers of two, by the floor of log2(size) from 1 MiB to 32 GiB; 0 or 1: multiples of 512 bytes.
  std::array<int, kRoundupIntervals> roundup_power2_divisions{};
  double garbage_collection_threshold = 0;            ///< share of the allowed bytes above which cached blocks are given back; 0: never
  std::optional<double> per_process_memory_fraction;  ///< share of the card that the allocator may reserve; none: no limit
  bool expandable_segments = false;

  /// Reads "max_split_size_mb:128,roundup_power2_divisions:[256:1,>:4]". Options that change no size are accepted.
  /// Throws Error where PyTorch would refuse the text, and for backend:cudaMallocAsync, whose pool is the driver's and not modelled.
  /// Source: c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.cpp (2.15).
  static AllocatorConfig parse(std::string_view text);

  /// Names of all options that parse() knows.
  static const std::vector<std::string>& option_names();

  /// The block size for a request of `bytes` > 0 (round_size of c10/cuda/CUDACachingAllocator.cpp).
  Bytes round_size(Bytes bytes) const;
  /// The segment that cudaMalloc is asked for, given a rounded size (get_allocation_size of the same file).
  Bytes allocation_size(Bytes rounded) const;
};

}  // namespace memest
