// The event trace: what the fake runtime says happened to memory, in order. Everything memest prints is computed from it.
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace memest {

/// What a storage is for. A storage that changes its role changes category by an event.
enum class Category : std::uint8_t {
  parameter,
  buffer,
  gradient,
  optimizer_state,
  input,
  activation,
  temporary,
  autocast_cache,
  grad_scaler,
  workspace,
  kv_cache,  ///< keys and values that generate() keeps between its calls
  assumed,
};
inline constexpr int kCategoryCount = int(Category::assumed) + 1;
std::string_view name_of(Category category);
using ByCategory = std::array<Bytes, kCategoryCount>;

enum class Phase : std::uint8_t { load, inputs, zero_grad, forward, backward, optimizer, evaluation, decode };
std::string_view name_of(Phase phase);

using BlockId = std::uint32_t;
using ModuleId = std::uint32_t;

struct MemoryEvent {
  enum class Kind : std::uint8_t {
    alloc,        ///< `bytes` requested (> 0) for block `block`
    free,         ///< block `block` given back; `bytes` as at its alloc
    categorize,   ///< block `block` changes to `category`
    empty_cache,  ///< torch.cuda.empty_cache()
  };
  Kind kind;
  Category category;  ///< alloc, categorize: the new one; free: the last one
  ModuleId module;    ///< index into MemoryTrace::modules
  BlockId block;      ///< counts allocs from 0
  Bytes bytes;
  const char* op;  ///< the op that ran: "aten::mm"; "" outside ops
};

/// A phase begins before the event with this index; it ends where the next begins.
struct PhaseMark {
  Phase phase;
  int step;   ///< from 1; load is step 0
  int micro;  ///< micro-batch, from 1; 0 where a phase is not one's
  std::size_t first_event;
  std::int64_t flops = 0;             ///< as torch.utils.flop_counter counts; what overflows stays at the largest number
  std::int64_t recomputed_flops = 0;  ///< those of them that checkpointing repeats
};

struct ModuleInfo {
  std::string path;  ///< "layer1.0.conv1"; "" is the model itself
  std::string type;  ///< "Conv2d"
  ModuleId parent;   ///< the model's parent is itself
};

struct MemoryTrace {
  std::vector<MemoryEvent> events;
  std::vector<PhaseMark> phases;
  std::vector<ModuleInfo> modules{{"", "", 0}};
  BlockId blocks = 0;  ///< allocs so far

  /// A copy of the text that lives as long as the trace, for ops that are named by a file.
  const char* intern(std::string_view text);

 private:
  std::deque<std::string> names_;
};

}  // namespace memest
