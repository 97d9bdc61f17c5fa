#include "allocator/stats.h"

#include <string_view>

namespace memest {
namespace {

struct PoolField {
  std::string_view name;
  PoolStat AllocatorStats::*member;
};
constexpr PoolField kPoolFields[] = {
    {"active", &AllocatorStats::active},
    {"active_bytes", &AllocatorStats::active_bytes},
    {"allocated_bytes", &AllocatorStats::allocated_bytes},
    {"allocation", &AllocatorStats::allocation},
    {"inactive_split", &AllocatorStats::inactive_split},
    {"inactive_split_bytes", &AllocatorStats::inactive_split_bytes},
    {"requested_bytes", &AllocatorStats::requested_bytes},
    {"reserved_bytes", &AllocatorStats::reserved_bytes},
    {"segment", &AllocatorStats::segment},
};

using Listing = std::vector<std::pair<std::string, std::int64_t>>;

void add(Listing& out, const std::string& name, const Stat& stat) {
  out.emplace_back(name + ".allocated", stat.allocated);
  out.emplace_back(name + ".current", stat.current);
  out.emplace_back(name + ".freed", stat.freed);
  out.emplace_back(name + ".peak", stat.peak);
}

}  // namespace

void AllocatorStats::reset_peaks() {
  for (const PoolField& field : kPoolFields)
    for (Stat& stat : this->*field.member) stat.peak = stat.current;
  oversize_allocations.peak = oversize_allocations.current;
  oversize_segments.peak = oversize_segments.current;
}

Listing list(const AllocatorStats& stats) {
  Listing out;
  for (const PoolField& field : kPoolFields) {
    const PoolStat& stat = stats.*field.member;
    add(out, std::string(field.name) + ".all", stat[int(StatType::all)]);
    add(out, std::string(field.name) + ".large_pool", stat[int(StatType::large_pool)]);
    add(out, std::string(field.name) + ".small_pool", stat[int(StatType::small_pool)]);
  }
  add(out, "oversize_allocations", stats.oversize_allocations);
  add(out, "oversize_segments", stats.oversize_segments);
  out.emplace_back("max_split_size", stats.max_split_size);
  out.emplace_back("num_alloc_retries", stats.num_alloc_retries);
  out.emplace_back("num_device_alloc", stats.num_device_alloc);
  out.emplace_back("num_device_free", stats.num_device_free);
  out.emplace_back("num_ooms", stats.num_ooms);
  out.emplace_back("num_sync_all_streams", stats.num_sync_all_streams);
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace memest
