// What torch.cuda.memory_stats() reports, under its names (c10/core/CachingDeviceAllocator.h, torch/cuda/memory.py, 2.15).
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace memest {

/// One statistic: bytes or a count.
struct Stat {
  std::int64_t current = 0;
  std::int64_t peak = 0;       ///< highest current since the start or the last reset of peaks
  std::int64_t allocated = 0;  ///< sum of all increases
  std::int64_t freed = 0;      ///< sum of all decreases

  void increase(std::int64_t amount) {
    current += amount;
    peak = std::max(current, peak);
    allocated += amount;
  }
  void decrease(std::int64_t amount) {
    current -= amount;
    freed += amount;
  }
};

enum class StatType : std::uint8_t { all, small_pool, large_pool };
using PoolStat = std::array<Stat, 3>;  ///< by StatType

struct AllocatorStats {
  PoolStat allocation;       ///< blocks handed out
  PoolStat allocated_bytes;  ///< their whole sizes: torch.cuda.memory_allocated()
  PoolStat segment;          ///< obtained by cudaMalloc; expandable segments are not counted
  PoolStat reserved_bytes;   ///< torch.cuda.memory_reserved()
  PoolStat active;           ///< handed out, or waiting for another stream (the same as allocation: memest models no such wait)
  PoolStat active_bytes;
  PoolStat inactive_split;  ///< free blocks that share their segment with others; not those of expandable segments
  PoolStat inactive_split_bytes;
  PoolStat requested_bytes;            ///< as asked for, before rounding
  Stat oversize_allocations;           ///< blocks handed out of at least max_split_size
  Stat oversize_segments;              ///< segments of at least max_split_size
  std::int64_t num_alloc_retries = 0;  ///< cudaMalloc failed and the cache was flushed
  std::int64_t num_ooms = 0;
  std::int64_t num_sync_all_streams = 0;  ///< flushes, empty_cache included
  std::int64_t num_device_alloc = 0;      ///< cudaMalloc or mapping calls that succeeded
  std::int64_t num_device_free = 0;
  std::int64_t max_split_size = -1;  ///< bytes; -1 for unlimited, as torch prints it

  /// reset_peak_memory_stats(): every peak becomes its current value.
  void reset_peaks();
};

/// Names as in torch.cuda.memory_stats(), sorted: {"active.all.current", 12}, ...
std::vector<std::pair<std::string, std::int64_t>> list(const AllocatorStats& stats);

}  // namespace memest
