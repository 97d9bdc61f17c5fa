#include "torch/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace memest::plugin {
namespace {

/// Backward may run on threads of its own.
class Ledger final : public Memory {
 public:
  void add(void* context, std::size_t bytes) {
    std::lock_guard guard(lock_);
    if (paused_) return;
    live_[context] = std::int64_t(bytes);
    now_ += std::int64_t(bytes);
    peak_ = std::max(peak_, now_);
    ++allocations_;
  }
  void drop(void* context) {
    std::lock_guard guard(lock_);
    auto it = live_.find(context);
    if (it == live_.end()) return;  // of before the counting, or not counted
    now_ -= it->second;
    live_.erase(it);
  }
  std::int64_t now() override { return now_; }
  std::int64_t allocations() override { return allocations_; }
  std::int64_t take_peak() override {
    std::lock_guard guard(lock_);
    return std::exchange(peak_, now_);
  }
  void pause(bool on) override { paused_ = on; }

 private:
  std::mutex lock_;
  std::unordered_map<void*, std::int64_t> live_;
  std::int64_t now_ = 0, peak_ = 0, allocations_ = 0;
  bool paused_ = false;
};
Ledger& ledger() {
  static auto* one = new Ledger;
  return *one;
}

/// No data, but a context whose deleter tells of the end.
class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* context = std::malloc(1);
    ledger().add(context, bytes);
    return {nullptr, context, &end, c10::Device(c10::kMeta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &end; }
  void copy_data(void*, const void*, std::size_t) const override {}

 private:
  static void end(void* context) {
    ledger().drop(context);
    std::free(context);
  }
};

class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr data = inner()->allocate(bytes);
    void* p = data.release_context();
    if (p) ledger().add(p, bytes);
    return {p, p, &end, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &end; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { inner()->copy_data(to, from, bytes); }
  static c10::Allocator*& inner() {
    static c10::Allocator* one = nullptr;
    return one;
  }

 private:
  static void end(void* p) {
    if (!p) return;
    ledger().drop(p);
    inner()->raw_deleter()(p);
  }
};

}  // namespace

Memory& counted_memory(c10::Device device) {
  if (device.is_meta()) {
    c10::SetAllocator(c10::kMeta, new MetaAllocator, 1);
  } else {
    CpuAllocator::inner() = c10::GetCPUAllocator();
    c10::SetCPUAllocator(new CpuAllocator, 1);
  }
  return ledger();
}

}  // namespace memest::plugin
