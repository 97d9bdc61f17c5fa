// A run on the default device for tests, and readable lists of its events.
#pragma once
#include <string>

#include "fake/runtime.h"

namespace memest {

struct TestRun {
  explicit TestRun(TorchVersion torch = TorchVersion::newest()) : runtime(RunSettings::for_device(default_device(), torch)) {}
  /// "+512 +1024 -0": allocs with bytes, frees with the alloc's number, counted from where `since` was called.
  std::string events() const {
    std::string text;
    for (std::size_t i = start; i < runtime.trace.events.size(); ++i) {
      const MemoryEvent& e = runtime.trace.events[i];
      if (e.kind == MemoryEvent::Kind::alloc) text += (text.empty() ? "+" : " +") + std::to_string(e.bytes);
      if (e.kind == MemoryEvent::Kind::free) text += (text.empty() ? "-" : " -") + std::to_string(int(e.block) - int(first_block));
    }
    return text;
  }
  void since() {
    start = runtime.trace.events.size();
    first_block = runtime.trace.blocks;
  }
  Runtime runtime;
  std::size_t start = 0;
  BlockId first_block = 0;
};

/// A leaf on the device that requires grad.
inline Tensor leaf(const Dims& sizes, DType dtype = DType::float32) {
  Tensor x = empty(sizes, dtype);
  x->requires_grad = true;
  return x;
}

}  // namespace memest
