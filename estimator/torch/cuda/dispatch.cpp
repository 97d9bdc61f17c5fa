// What memest_cuda.so answers: a program run on the GPU, as PyTorch's caching allocator sees it.
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <torch/version.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "torch/cuda/foreach.h"
#include "torch/training.h"

namespace memest::plugin {
namespace {
namespace Allocator = c10::cuda::CUDACachingAllocator;
constexpr c10::DeviceIndex kDevice = 0;
constexpr std::size_t kAll = 0;  // StatType::AGGREGATE, whose namespace differs by release

/// The allocator's own statistics. Its peaks are of the whole run; those of a phase are read when it ends.
class CudaMemory final : public Memory {
 public:
  std::int64_t now() override { return stats().allocated_bytes[kAll].current; }
  std::int64_t allocations() override { return stats().allocation[kAll].allocated; }
  std::int64_t take_peak() override {
    const auto s = stats();
    allocated_ = std::max(allocated_, s.allocated_bytes[kAll].peak);
    reserved_ = std::max(reserved_, s.reserved_bytes[kAll].peak);
    Allocator::resetPeakStats(kDevice);
    return s.allocated_bytes[kAll].peak;
  }
  Json report() {
    take_peak();
    const auto s = stats();
    return {{"allocated_peak", allocated_},
            {"reserved_peak", reserved_},
            {"reserved", s.reserved_bytes[kAll].current},
            {"retries", s.num_alloc_retries}};
  }

 private:
  static c10::CachingDeviceAllocator::DeviceStats stats() { return Allocator::getDeviceStats(kDevice); }
  std::int64_t allocated_ = 0, reserved_ = 0;
};

struct Available {
  std::size_t free = 0, total = 0;
};
Available available() {
  Available a;
  cudaMemGetInfo(&a.free, &a.total);
  return a;
}

class CudaBackend final : public Backend {
 public:
  c10::Device device() const override { return {c10::kCUDA, kDevice}; }
  CudaMemory& memory() override { return memory_; }
  std::unique_ptr<Optimizer> optimizer(const Json& request, const std::vector<at::Tensor>& parameters) override {
    return foreach_optimizer(request, parameters);
  }
  void begin_step(int) override { marks_.emplace_back(mark()); }
  void end_step(int) override { marks_.emplace_back(mark()); }

  /// Milliseconds of each step, the first of which warms up.
  std::vector<double> times() {
    c10::cuda::device_synchronize();
    std::vector<double> list;
    for (std::size_t i = 0; i + 1 < marks_.size(); i += 2) list.push_back(marks_[i].elapsedTime(marks_[i + 1]));
    return list;
  }

 private:
  c10::Event mark() const {
    c10::Event event(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    event.record(c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(device()));
    return event;
  }

  CudaMemory memory_;
  std::vector<c10::Event> marks_;
};

Json described_device() {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, kDevice) != cudaSuccess) throw BadRequest{"the GPU does not answer", ""};
  return {{"device", properties.name}, {"total_memory", available().total}, {"torch", TORCH_VERSION}};
}

Json probe_cuda(const Json& request) {
  CudaBackend backend;
  Json reply;
  try {
    reply = run_program(request, backend);
    if (!reply.contains("out_of_memory")) reply["step_ms"] = backend.times();
  } catch (const BadRequest&) {
    throw;
  } catch (const std::exception& e) {
    throw BadRequest{"the run failed: " + message_of(e), ""};
  }
  reply.update(backend.memory().report());
  const Available a = available();
  reply["context"] = std::int64_t(a.total - a.free) - reply.at("reserved").get<std::int64_t>();
  reply.update(described_device());
  return reply;
}

}  // namespace

Json dispatch(const Json& request) {
  if (c10::cuda::device_count() == 0) throw BadRequest{"LibTorch sees no GPU here", "nvidia-smi shows those that the driver knows"};
  const std::string what = request.value("what", "");
  if (what == "device") return described_device();
  if (what == "probe") return probe_cuda(request);
  throw BadRequest{"the plugin knows no request '" + what + "'", "it is of another version of memest"};
}

}  // namespace memest::plugin
