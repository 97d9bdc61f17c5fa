// What lives on a device, as its allocator sees it.
#pragma once
#include <c10/core/Device.h>

#include <cstdint>

namespace memest::plugin {

class Memory {
 public:
  virtual ~Memory() = default;
  virtual std::int64_t now() = 0;
  virtual std::int64_t allocations() = 0;
  /// The peak since the last call.
  virtual std::int64_t take_peak() = 0;
  /// What is allocated meanwhile is not counted: tensors that lie on the host of a GPU.
  virtual void pause(bool) {}
};

/// The CPU or the meta device, whose allocator is replaced by one that counts. Never destroyed: tensors outlive everything.
Memory& counted_memory(c10::Device device);

/// A scope in which nothing is counted.
class Uncounted {
 public:
  explicit Uncounted(Memory& memory) : memory_(memory) { memory_.pause(true); }
  ~Uncounted() { memory_.pause(false); }
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;

 private:
  Memory& memory_;
};

}  // namespace memest::plugin
