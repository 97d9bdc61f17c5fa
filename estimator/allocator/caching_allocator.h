// A model of PyTorch's CUDA caching allocator: which blocks and segments a sequence of requests makes.
// Facts: c10/cuda/CUDACachingAllocator.cpp, DeviceCachingAllocator (the rules are the same in 2.4 to 2.15, but for the order of equal
// blocks). Not modelled: CUDA graphs' private pools, record_stream, callbacks that free memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "allocator/address_space.h"
#include "allocator/config.h"
#include "allocator/stats.h"
#include "base/bytes.h"
#include "device/torch_version.h"

namespace memest {

/// An event as PyTorch's memory history names it.
struct AllocatorEvent {
  enum class Action : std::uint8_t { alloc, free_completed, segment_alloc, segment_free, segment_map, segment_unmap, oom };
  Action action;
  Bytes address;            ///< from 0; oom: bytes that the device still has, -1 without a limit
  Bytes bytes;              ///< alloc, free_completed: of the request; oom: of the request, rounded; segment_*: of the segment
  std::size_t trace_event;  ///< index of the trace event that caused it
};
std::string_view name_of(AllocatorEvent::Action action);

struct Block;

/// A free block as its pool's set holds it, in the order of the search: stream, size, age, address (BlockComparatorSizeCounterAddress).
struct FreeBlock {
  int stream;
  int age;  ///< as TorchVersion::block_order says: of its segment, of its record, or the same for all
  Bytes size, address;
  Block* block;

  bool operator<(const FreeBlock& other) const {
    if (stream != other.stream) return stream < other.stream;
    if (size != other.size) return size < other.size;
    return age != other.age ? age < other.age : address < other.address;
  }
};
using FreeBlocks = std::set<FreeBlock>;

/// Unmapped parts of expandable segments: stream, address.
struct ByAddress {
  bool operator()(const Block* a, const Block* b) const;
};

/// A range of a segment. Blocks of one segment are linked in the order of their addresses.
struct Block {
  Bytes address = 0;
  Bytes size = 0;
  Bytes requested = 0;  ///< bytes of the request while allocated
  Block* prev = nullptr;
  Block* next = nullptr;
  std::uint64_t searches_before = 0;  ///< searches of its pool when it became free: its age counts from there
  int stream = 0;
  int age = 0;          ///< counts up; see FreeBlock
  int expandable = -1;  ///< index of its expandable segment; -1: from cudaMalloc
  bool small = false;   ///< of the small pool
  bool allocated = false;
  bool mapped = true;          ///< false: address range of an expandable segment without memory
  bool live = false;           ///< false: a spare record
  FreeBlocks::iterator place;  ///< in its pool's set, while free and mapped

  bool is_split() const { return prev || next; }
};

inline bool ByAddress::operator()(const Block* a, const Block* b) const {
  return a->stream != b->stream ? a->stream < b->stream : a->address < b->address;
}

/// A segment with its blocks, as torch.cuda.memory_snapshot() lists it; an expandable one once for each mapped range.
struct SegmentInfo {
  struct BlockInfo {
    Bytes address, size, requested;  ///< requested: 0 where free
    bool allocated;
  };
  Bytes address = 0, total_size = 0, allocated_size = 0, requested_size = 0;
  int stream = 0;
  bool small = false, expandable = false;
  std::vector<BlockInfo> blocks;
};

class CachingAllocator {
 public:
  struct Options {
    AllocatorConfig config;
    /// Bytes that cudaMalloc and mapping can get in all (2 MiB pages); none: no limit.
    std::optional<Bytes> device_limit;
    /// Total bytes of the card: what per_process_memory_fraction is a share of, and 8/9 of an expandable segment's address range.
    Bytes device_memory = 80 * kGiB;
    TorchVersion::BlockOrder block_order = TorchVersion::newest().block_order();
  };

  explicit CachingAllocator(Options options);
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  /// A block of at least `bytes` (> 0), valid until it is freed. Null when out of memory even after the cache was flushed: PyTorch
  /// raises OutOfMemoryError there.
  Block* malloc(Bytes bytes, int stream = 0);
  /// Gives back a block that malloc returned. Throws Error where it is not allocated.
  void free(Block* block);
  /// Takes over a segment from cudaMalloc that was made before anything was seen, with its blocks without gaps between them, at an
  /// address of its own; all of its blocks, in order. Those that are allocated are freed like others.
  std::vector<Block*> adopt(const SegmentInfo& segment);
  /// torch.cuda.empty_cache(): every segment without allocated blocks (every such page of expandable ones) goes back to the device.
  void empty_cache() { release_cached_blocks(); }

  const AllocatorStats& stats() const { return stats_; }
  Bytes allocated() const { return stats_.allocated_bytes[int(StatType::all)].current; }
  Bytes reserved() const { return stats_.reserved_bytes[int(StatType::all)].current; }
  void reset_peak_stats() { stats_.reset_peaks(); }
  /// The segment that the last malloc asked the device for, in bytes.
  Bytes last_segment_size() const { return last_segment_size_; }

  /// Appends events here from now on; null: nowhere. The vector must outlive the recording.
  void record_events(std::vector<AllocatorEvent>* events) { events_ = events; }
  /// What AllocatorEvent::trace_event says of the next calls.
  void set_trace_event(std::size_t index) { trace_event_ = index; }

  /// All segments by address.
  std::vector<SegmentInfo> snapshot() const;

 private:
  using Action = AllocatorEvent::Action;

  struct BlockPool {
    bool small;
    std::uint64_t searches = 0;  ///< counted only where garbage is collected
    FreeBlocks blocks{};
    std::set<Block*, ByAddress> unmapped{};
    std::vector<FreeBlocks::node_type> spare{};  ///< nodes of the set for later: insertions need no memory in the steady state
  };
  struct ExpandableSegment {
    Bytes address, size, page;
  };
  struct Request {
    BlockPool* pool;
    Bytes size;     // rounded
    Bytes segment;  // what cudaMalloc would be asked for
    int stream;
  };

  BlockPool& pool_of(const Block* block) { return block->small ? small_blocks_ : large_blocks_; }
  Block* new_block(const BlockPool& pool, int stream, Bytes address, Bytes size);
  Block* new_block_of(const Block* sibling, Bytes address, Bytes size);
  void recycle(Block* block);
  void begin_segment(Block* block);
  void insert(BlockPool& pool, Block* block);
  void erase(BlockPool& pool, FreeBlocks::iterator place) { pool.spare.push_back(pool.blocks.extract(place)); }

  Block* get_free_block(const Request& request);
  Block* obtain_block(const Request& request);
  Block* alloc_block(const Request& request, bool is_retry);
  Block* alloc_found_block(const Request& request, Block* block, Bytes requested);
  void hand_out(Block* block, Bytes requested);
  bool should_split(const Block* block, Bytes size) const;
  Bytes try_merge(Block* block, Block* neighbour, BlockPool& pool);

  bool collects_garbage() const { return allowed_ && options_.config.garbage_collection_threshold > 0; }
  void garbage_collect_cached_blocks();
  bool release_available_cached_blocks(const Request& request);
  void release_cached_blocks();
  void release_blocks(BlockPool& pool);
  void release_block(Block* block);

  bool take_device_memory(Bytes bytes);
  Block* try_allocate_expandable_block(const Request& request);
  Block* find_expandable_block(const Request& request);
  bool map_block(Block* block, Bytes size);
  void unmap_block(Block* block);
  void release_expandable_segment(Block* block);

  void record(Action action, Bytes address, Bytes bytes) {
    if (events_) events_->push_back({action, address, bytes, trace_event_});
  }

  Options options_;
  std::optional<Bytes> allowed_;  // by per_process_memory_fraction
  AllocatorStats stats_;
  Bytes device_used_ = 0;
  int ages_ = 0;  // segments obtained or records made so far
  Bytes last_segment_size_ = 0;
  std::vector<AllocatorEvent>* events_ = nullptr;
  std::size_t trace_event_ = 0;

  BlockPool large_blocks_{false}, small_blocks_{true};
  std::deque<Block> arena_;
  std::vector<Block*> spare_;
  std::vector<ExpandableSegment> expandable_;
  AddressSpace addresses_;
};

}  // namespace memest
