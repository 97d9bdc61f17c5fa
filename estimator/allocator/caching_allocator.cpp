#include "allocator/caching_allocator.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "base/error.h"

namespace memest {
namespace {

struct StatChange {
  AllocatorStats& stats;
  int pool;

  StatChange(AllocatorStats& s, bool small) : stats(s), pool(int(small ? StatType::small_pool : StatType::large_pool)) {}
  void increase(PoolStat AllocatorStats::*stat, std::int64_t amount) const {
    (stats.*stat)[int(StatType::all)].increase(amount);
    (stats.*stat)[std::size_t(pool)].increase(amount);
  }
  void decrease(PoolStat AllocatorStats::*stat, std::int64_t amount) const {
    (stats.*stat)[int(StatType::all)].decrease(amount);
    (stats.*stat)[std::size_t(pool)].decrease(amount);
  }
  void change(PoolStat AllocatorStats::*stat, std::int64_t amount) const {
    if (amount > 0) increase(stat, amount);
    if (amount < 0) decrease(stat, -amount);
  }
};

}  // namespace

std::string_view name_of(AllocatorEvent::Action action) {
  static constexpr std::string_view names[] = {"alloc", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap",
                                               "oom"};
  return names[int(action)];
}

CachingAllocator::CachingAllocator(Options options) : options_(std::move(options)) {
  const AllocatorConfig& config = options_.config;
  if (config.per_process_memory_fraction) allowed_ = Bytes(*config.per_process_memory_fraction * double(options_.device_memory));
  if (config.max_split_size != AllocatorConfig::kUnlimited) stats_.max_split_size = config.max_split_size;
}

// ---- block records

Block* CachingAllocator::new_block(const BlockPool& pool, int stream, Bytes address, Bytes size) {
  Block* block;
  if (spare_.empty()) {
    block = &arena_.emplace_back();
  } else {
    block = spare_.back();
    spare_.pop_back();
    *block = Block{};
  }
  block->address = address;
  block->size = size;
  block->stream = stream;
  block->small = pool.small;
  block->live = true;
  if (options_.block_order == TorchVersion::BlockOrder::record) block->age = ages_++;
  return block;
}

/// A block of the same segment.
Block* CachingAllocator::new_block_of(const Block* sibling, Bytes address, Bytes size) {
  Block* block = new_block(pool_of(sibling), sibling->stream, address, size);
  if (options_.block_order == TorchVersion::BlockOrder::segment) block->age = sibling->age;
  block->expandable = sibling->expandable;
  return block;
}

void CachingAllocator::begin_segment(Block* block) {
  if (options_.block_order == TorchVersion::BlockOrder::segment) block->age = ages_++;
}

void CachingAllocator::recycle(Block* block) {
  block->live = false;
  spare_.push_back(block);
}

void CachingAllocator::insert(BlockPool& pool, Block* block) {
  block->searches_before = pool.searches;
  const FreeBlock entry{block->stream, block->age, block->size, block->address, block};
  if (pool.spare.empty()) {
    block->place = pool.blocks.insert(entry).first;
  } else {
    FreeBlocks::node_type node = std::move(pool.spare.back());
    pool.spare.pop_back();
    node.value() = entry;
    block->place = pool.blocks.insert(std::move(node)).position;
  }
}

// ---- malloc

Block* CachingAllocator::malloc(Bytes bytes, int stream) {
  const Bytes size = options_.config.round_size(bytes);
  Request request{size <= kSmallSize ? &small_blocks_ : &large_blocks_, size, options_.config.allocation_size(size), stream};
  Block* block = get_free_block(request);
  if (!block) block = obtain_block(request);
  if (!block) {
    ++stats_.num_ooms;
    record(Action::oom, options_.device_limit ? *options_.device_limit - device_used_ : -1, size);
    return nullptr;
  }
  return alloc_found_block(request, block, bytes);
}

Block* CachingAllocator::get_free_block(const Request& request) {
  const AllocatorConfig& config = options_.config;
  BlockPool& pool = *request.pool;
  if (collects_garbage()) ++pool.searches;
  auto it = pool.blocks.lower_bound({request.stream, 0, request.size, 0, nullptr});
  if (it == pool.blocks.end() || it->stream != request.stream) return nullptr;
  if (config.expandable_segments) {
    // A block at the mapped front counts with the range that it can grow into.
    auto room = [](const FreeBlock& f) { return f.size + (f.block->next && !f.block->next->mapped ? f.block->next->size : 0); };
    for (auto next = std::next(it); next != pool.blocks.end() && next->stream == request.stream && room(*next) < room(*it); ++next)
      it = next;
  }
  Block* block = it->block;
  if (request.size < config.max_split_size && block->size >= config.max_split_size) return nullptr;
  if (request.size >= config.max_split_size && block->size >= request.size + config.max_non_split_rounding) return nullptr;
  erase(pool, it);
  return block;
}

Block* CachingAllocator::obtain_block(const Request& request) {
  if (collects_garbage()) garbage_collect_cached_blocks();
  last_segment_size_ = request.segment;
  if (Block* block = alloc_block(request, false)) return block;
  if (release_available_cached_blocks(request))
    if (Block* block = alloc_block(request, false)) return block;
  release_cached_blocks();
  return alloc_block(request, true);
}

Block* CachingAllocator::alloc_block(const Request& request, bool is_retry) {
  if (is_retry) ++stats_.num_alloc_retries;
  if (allowed_ && reserved() + request.segment > *allowed_) return nullptr;
  if (options_.config.expandable_segments) return try_allocate_expandable_block(request);
  if (!take_device_memory(request.segment)) return nullptr;
  Block* block = new_block(*request.pool, request.stream, addresses_.take(request.segment), request.segment);
  begin_segment(block);
  const StatChange stats(stats_, block->small);
  stats.increase(&AllocatorStats::segment, 1);
  stats.increase(&AllocatorStats::reserved_bytes, block->size);
  if (block->size >= options_.config.max_split_size) stats_.oversize_segments.increase(1);
  ++stats_.num_device_alloc;
  record(Action::segment_alloc, block->address, block->size);
  return block;
}

bool CachingAllocator::should_split(const Block* block, Bytes size) const {
  const Bytes remaining = block->size - size;
  if (block->small || options_.config.expandable_segments) return remaining >= kMinBlockSize;
  return size < options_.config.max_split_size && remaining > kSmallSize;
}

Block* CachingAllocator::alloc_found_block(const Request& request, Block* block, Bytes requested) {
  const StatChange stats(stats_, block->small);
  const bool already_split = block->is_split(), counted = block->expandable < 0;
  if (should_split(block, request.size)) {
    // The request takes the front; what remains goes back to the pool.
    Block* remaining = block;
    block = new_block_of(remaining, remaining->address, request.size);
    block->prev = remaining->prev;
    if (block->prev) block->prev->next = block;
    block->next = remaining;
    remaining->prev = block;
    remaining->address += request.size;
    remaining->size -= request.size;
    insert(*request.pool, remaining);
    if (counted && already_split) {
      stats.decrease(&AllocatorStats::inactive_split_bytes, block->size);
    } else if (counted) {
      stats.increase(&AllocatorStats::inactive_split_bytes, remaining->size);
      stats.increase(&AllocatorStats::inactive_split, 1);
    }
  } else if (already_split && counted) {
    stats.decrease(&AllocatorStats::inactive_split_bytes, block->size);
    stats.decrease(&AllocatorStats::inactive_split, 1);
  }
  record(Action::alloc, block->address, requested);
  hand_out(block, requested);
  return block;
}

void CachingAllocator::hand_out(Block* block, Bytes requested) {
  const StatChange stats(stats_, block->small);
  block->allocated = true;
  block->requested = requested;
  stats.increase(&AllocatorStats::allocation, 1);
  stats.increase(&AllocatorStats::allocated_bytes, block->size);
  stats.increase(&AllocatorStats::active, 1);
  stats.increase(&AllocatorStats::active_bytes, block->size);
  stats.increase(&AllocatorStats::requested_bytes, requested);
  if (block->size >= options_.config.max_split_size) stats_.oversize_allocations.increase(1);
}

std::vector<Block*> CachingAllocator::adopt(const SegmentInfo& segment) {
  BlockPool& pool = segment.small ? small_blocks_ : large_blocks_;
  const StatChange stats(stats_, segment.small);
  const Bytes address = addresses_.take(segment.total_size);
  device_used_ += round_up(segment.total_size, AddressSpace::kGrain);
  stats.increase(&AllocatorStats::segment, 1);
  stats.increase(&AllocatorStats::reserved_bytes, segment.total_size);
  if (segment.total_size >= options_.config.max_split_size) stats_.oversize_segments.increase(1);
  std::vector<Block*> blocks;
  for (const SegmentInfo::BlockInfo& info : segment.blocks) {
    const Bytes at = address + (info.address - segment.address);
    Block* block = blocks.empty() ? new_block(pool, segment.stream, at, info.size) : new_block_of(blocks.back(), at, info.size);
    if (blocks.empty()) begin_segment(block);
    if (!blocks.empty()) block->prev = blocks.back(), blocks.back()->next = block;
    blocks.push_back(block);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Block* block = blocks[i];
    if (segment.blocks[i].allocated) {
      hand_out(block, segment.blocks[i].requested);
    } else {
      insert(pool, block);
      if (!block->is_split()) continue;
      stats.increase(&AllocatorStats::inactive_split, 1);
      stats.increase(&AllocatorStats::inactive_split_bytes, block->size);
    }
  }
  return blocks;
}

// ---- free

void CachingAllocator::free(Block* block) {
  if (!block || !block->live || !block->allocated) throw Error("the allocator was given a block that is not allocated");
  const StatChange stats(stats_, block->small);
  block->allocated = false;
  stats.decrease(&AllocatorStats::allocation, 1);
  stats.decrease(&AllocatorStats::allocated_bytes, block->size);
  if (block->size >= options_.config.max_split_size) stats_.oversize_allocations.decrease(1);
  record(Action::free_completed, block->address, block->requested);

  BlockPool& pool = pool_of(block);
  const Bytes size = block->size, requested = std::exchange(block->requested, 0);
  std::int64_t split_blocks = 0, split_bytes = 0;
  for (Block* neighbour : std::array{block->prev, block->next})
    if (const Bytes subsumed = try_merge(block, neighbour, pool)) {
      --split_blocks;
      split_bytes -= subsumed;
    }
  insert(pool, block);
  if (block->is_split()) {
    ++split_blocks;
    split_bytes += block->size;
  }
  if (block->expandable < 0) {
    stats.change(&AllocatorStats::inactive_split, split_blocks);
    stats.change(&AllocatorStats::inactive_split_bytes, split_bytes);
  }
  stats.decrease(&AllocatorStats::active, 1);
  stats.decrease(&AllocatorStats::active_bytes, size);
  stats.decrease(&AllocatorStats::requested_bytes, requested);
}

/// Takes a free neighbour into the block; the neighbour's bytes, or 0 where it stays.
Bytes CachingAllocator::try_merge(Block* block, Block* neighbour, BlockPool& pool) {
  if (!neighbour || neighbour->allocated || block->mapped != neighbour->mapped) return 0;
  if (neighbour->mapped)
    erase(pool, neighbour->place);
  else
    pool.unmapped.erase(neighbour);
  if (block->prev == neighbour) {
    block->address = neighbour->address;
    block->prev = neighbour->prev;
    if (block->prev) block->prev->next = block;
  } else {
    block->next = neighbour->next;
    if (block->next) block->next->prev = block;
  }
  const Bytes subsumed = neighbour->size;
  block->size += subsumed;
  recycle(neighbour);
  return subsumed;
}

// ---- giving memory back to the device

/// Frees unsplit blocks of the large pool that have not been used for longer than the mean, until reserved is below the threshold.
void CachingAllocator::garbage_collect_cached_blocks() {
  const Bytes threshold = Bytes(options_.config.garbage_collection_threshold * double(*allowed_));
  if (reserved() <= threshold) return;
  const Bytes target = reserved() - threshold;
  BlockPool& pool = large_blocks_;
  auto candidate = [](const Block* b) { return !b->is_split() && b->expandable < 0; };
  auto age = [&](const Block* b) { return pool.searches - b->searches_before; };

  std::uint64_t total_age = 0;
  std::int64_t count = 0;
  for (const FreeBlock& free : pool.blocks)
    if (candidate(free.block)) total_age += age(free.block), ++count;
  Bytes reclaimed = 0;
  for (bool freed = true; reclaimed < target && freed && count > 0;) {
    const double mean_age = double(total_age) / double(count);
    freed = false;
    for (auto it = pool.blocks.begin(); it != pool.blocks.end();) {
      Block* block = (it++)->block;
      if (!candidate(block) || double(age(block)) < mean_age) continue;
      freed = true;
      reclaimed += block->size;
      total_age -= age(block);
      --count;
      release_block(block);
    }
  }
}

/// With max_split_size: frees one cached block that is large enough, or oversize ones from the largest down until they are together.
bool CachingAllocator::release_available_cached_blocks(const Request& request) {
  const Bytes limit = options_.config.max_split_size;
  // Expandable blocks are left to the full flush (2.15; older releases stop at an internal assertion here, issue #123548).
  if (limit == AllocatorConfig::kUnlimited || options_.config.expandable_segments) return false;
  auto& blocks = request.pool->blocks;
  const Bytes wanted = std::max(request.size, limit);
  auto it = blocks.lower_bound({request.stream, 0, wanted, 0, nullptr});
  if (it != blocks.end() && it->stream == request.stream) {
    release_block(it->block);
    return true;
  }
  Bytes released = 0;
  while (released < wanted && it != blocks.begin()) {
    Block* block = (--it)->block;
    if (block->size < limit || block->stream != request.stream) break;
    released += block->size;
    ++it;  // stays valid when the block goes
    release_block(block);
  }
  return released >= wanted;
}

void CachingAllocator::release_cached_blocks() {
  ++stats_.num_sync_all_streams;
  release_blocks(large_blocks_);
  release_blocks(small_blocks_);
}

void CachingAllocator::release_blocks(BlockPool& pool) {
  if (options_.config.expandable_segments) {
    const std::vector<FreeBlock> cached(pool.blocks.begin(), pool.blocks.end());  // unmapping changes the set
    for (const FreeBlock& free : cached) unmap_block(free.block);
    return;
  }
  for (auto it = pool.blocks.begin(); it != pool.blocks.end();) {
    Block* block = (it++)->block;
    if (!block->is_split()) release_block(block);
  }
}

void CachingAllocator::release_block(Block* block) {
  ++stats_.num_device_free;
  record(Action::segment_free, block->address, block->size);
  addresses_.give(block->address, block->size);
  device_used_ -= round_up(block->size, AddressSpace::kGrain);
  const StatChange stats(stats_, block->small);
  stats.decrease(&AllocatorStats::segment, 1);
  stats.decrease(&AllocatorStats::reserved_bytes, block->size);
  if (block->size >= options_.config.max_split_size) stats_.oversize_segments.decrease(1);
  erase(pool_of(block), block->place);
  recycle(block);
}

bool CachingAllocator::take_device_memory(Bytes bytes) {
  bytes = round_up(bytes, AddressSpace::kGrain);
  if (options_.device_limit && device_used_ + bytes > *options_.device_limit) return false;
  device_used_ += bytes;
  return true;
}

// ---- expandable segments

/// The lowest address from where free and unmapped blocks together have room for the request; a new segment where there is none.
Block* CachingAllocator::find_expandable_block(const Request& request) {
  BlockPool& pool = *request.pool;
  auto has_room = [&](const Block* block) {
    Bytes bytes = 0;
    for (; bytes < request.size && block && !block->allocated; block = block->next) bytes += block->size;
    return bytes >= request.size;
  };
  for (Block* block : pool.unmapped) {
    if (block->stream != request.stream) continue;
    if (block->prev && !block->prev->allocated) block = block->prev;
    if (has_room(block)) return block;
  }
  const Bytes page = pool.small ? kSmallBuffer : options_.config.large_segment_size;
  // A request beyond the card fails when it is mapped; without a limit it is served, and needs the range.
  const Bytes size = round_up(std::max(options_.device_memory + options_.device_memory / 8, request.size), page);
  Block* block = new_block(pool, request.stream, addresses_.take(size), size);
  block->mapped = false;
  begin_segment(block);
  block->expandable = int(expandable_.size());
  expandable_.push_back({block->address, size, page});
  pool.unmapped.insert(block);
  return block;
}

Block* CachingAllocator::try_allocate_expandable_block(const Request& request) {
  Block* block = find_expandable_block(request);
  if (!block->mapped && !map_block(block, std::min(block->size, request.size))) return nullptr;
  while (block->size < request.size) {  // a free block with unmapped range behind it: mapping merges the two
    Block* unmapped = block->next;
    if (!map_block(unmapped, std::min(request.size - block->size, unmapped->size))) return nullptr;
    block = unmapped;
  }
  erase(*request.pool, block->place);
  return block;
}

/// Maps whole pages at the front of an unmapped block for at least `size` bytes, and puts them into the pool.
bool CachingAllocator::map_block(Block* block, Bytes size) {
  const Bytes mapped = round_up(size, expandable_[std::size_t(block->expandable)].page);
  if (!take_device_memory(mapped)) return false;
  BlockPool& pool = pool_of(block);
  pool.unmapped.erase(block);
  block->mapped = true;
  const Bytes address = block->address;
  if (mapped < block->size) {
    Block* remaining = new_block_of(block, address + mapped, block->size - mapped);
    remaining->mapped = false;
    remaining->prev = block;
    remaining->next = block->next;
    if (remaining->next) remaining->next->prev = remaining;
    block->next = remaining;
    block->size = mapped;
    pool.unmapped.insert(remaining);
  }
  try_merge(block, block->prev, pool);
  try_merge(block, block->next, pool);
  insert(pool, block);
  StatChange(stats_, pool.small).increase(&AllocatorStats::reserved_bytes, mapped);
  ++stats_.num_device_alloc;
  record(Action::segment_map, address, mapped);
  return true;
}

/// Unmaps the whole pages inside a free block; what sticks out at both ends stays free.
void CachingAllocator::unmap_block(Block* block) {
  const ExpandableSegment segment = expandable_[std::size_t(block->expandable)];
  const Bytes begin = segment.address + round_up(block->address - segment.address, segment.page);
  const Bytes end = segment.address + (block->address + block->size - segment.address) / segment.page * segment.page;
  if (begin >= end) return;
  BlockPool& pool = pool_of(block);
  erase(pool, block->place);
  if (begin > block->address) {
    Block* before = new_block_of(block, block->address, begin - block->address);
    before->prev = block->prev;
    before->next = block;
    if (before->prev) before->prev->next = before;
    block->prev = before;
    insert(pool, before);
  }
  if (const Bytes after_size = block->address + block->size - end; after_size > 0) {
    Block* after = new_block_of(block, end, after_size);
    after->prev = block;
    after->next = block->next;
    if (after->next) after->next->prev = after;
    block->next = after;
    insert(pool, after);
  }
  block->address = begin;
  block->size = end - begin;
  block->mapped = false;
  try_merge(block, block->prev, pool);
  try_merge(block, block->next, pool);
  pool.unmapped.insert(block);
  device_used_ -= end - begin;
  StatChange(stats_, pool.small).decrease(&AllocatorStats::reserved_bytes, end - begin);
  ++stats_.num_device_free;
  record(Action::segment_unmap, begin, end - begin);
  if (!block->is_split()) release_expandable_segment(block);
}

void CachingAllocator::release_expandable_segment(Block* block) {
  pool_of(block).unmapped.erase(block);
  addresses_.give(block->address, block->size);
  recycle(block);
}

// ---- snapshot

std::vector<SegmentInfo> CachingAllocator::snapshot() const {
  std::vector<SegmentInfo> segments;
  for (const Block& head : arena_) {
    if (!head.live || !head.mapped || (head.prev && head.prev->mapped)) continue;
    SegmentInfo segment;
    segment.address = head.address;
    segment.stream = head.stream;
    segment.small = head.small;
    segment.expandable = head.expandable >= 0;
    for (const Block* block = &head; block && block->mapped; block = block->next) {
      segment.blocks.push_back({block->address, block->size, block->requested, block->allocated});
      segment.total_size += block->size;
      if (block->allocated) {
        segment.allocated_size += block->size;
        segment.requested_size += block->requested;
      }
    }
    segments.push_back(std::move(segment));
  }
  std::sort(segments.begin(), segments.end(), [](const SegmentInfo& a, const SegmentInfo& b) { return a.address < b.address; });
  return segments;
}

}  // namespace memest
