#include "fake/runtime.h"

#include "base/text.h"
#include "fake/autograd.h"
#include "fake/kernel.h"
#include "fake/observer.h"

namespace memest {
namespace {
thread_local Runtime* current = nullptr;
constexpr std::size_t kMostEvents = 40'000'000;  // 1.3 GB of trace: beyond, the input is not a model that anyone trains
}  // namespace

Runtime& runtime() { return *current; }
Runtime* current_runtime() { return current; }

RunSettings RunSettings::for_device(const Device& device, TorchVersion torch) {
  RunSettings s;
  s.torch = torch;
  s.device = device;
  s.cublas_workspace = device.cublas_workspace(torch);
  return s;
}

namespace {

/// aten/src/ATen/cuda/CublasHandlePool.cpp parseChosenWorkspaceSize: ":KiB:count[:KiB:count...]".
Bytes parse_workspace_config(std::string_view value) {
  auto bad = [&] {
    return Error("CUBLAS_WORKSPACE_CONFIG=" + std::string(value) + " is not of the form :KiB:count[:KiB:count...]", "try :4096:8 or :16:8");
  };
  auto parts = split(value, ':');
  if (parts.size() < 3 || parts.size() % 2 == 0 || !parts[0].empty()) throw bad();
  Bytes total = 0;
  for (std::size_t i = 1; i + 1 < parts.size(); i += 2) {
    auto size = parse_int(parts[i]), count = parse_int(parts[i + 1]);
    if (!size || !count || *size < 0 || *count < 0) throw bad();
    total = checked_add(total, checked_mul(checked_mul(*size, kKiB), *count));
  }
  return total;
}

}  // namespace

void RunSettings::set_environment(std::string_view name, std::string_view value) {
  if (name == "CUBLAS_WORKSPACE_CONFIG") {
    cublas_workspace = parse_workspace_config(value);
  } else if (name == "TORCH_CUBLAS_WORKSPACE_CACHE") {
    cublas_workspace_cache = value != "0" && !value.empty();
  } else if (name == "CUBLASLT_WORKSPACE_SIZE") {
    auto size = parse_int(value);
    if (!size || *size < 0) throw Error("CUBLASLT_WORKSPACE_SIZE=" + std::string(value) + " is not a number of KiB");
    cublaslt_workspace = checked_mul(*size, kKiB);
  } else {
    const std::vector<std::string> known{"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG",
                                         "TORCH_CUBLAS_WORKSPACE_CACHE", "CUBLASLT_WORKSPACE_SIZE"};
    throw Error("memest does not model the environment variable " + std::string(name), "it knows " + join(known, ", "));
  }
}

Runtime::Runtime(RunSettings s) : settings(std::move(s)), outer_(std::exchange(current, this)) { trace.events.reserve(65536); }

Runtime::~Runtime() {
  for (int i = 0; i < 2; ++i) cublas_workspaces[i].reset(), cublaslt_workspaces[i].reset();
  autocast.cache.clear();
  current = outer_;
}

void Runtime::begin_phase(Phase phase, int step, int micro) {
  trace.phases.push_back({phase, step, micro, trace.events.size()});
  if (observer) observer->phase(phase, step, micro);
}

void Runtime::count_flops(std::int64_t flops) {
  if (trace.phases.empty()) return;
  PhaseMark& phase = trace.phases.back();
  phase.flops = saturated_add(phase.flops, flops);
  if (recomputing) phase.recomputed_flops = saturated_add(phase.recomputed_flops, flops);
}

void Runtime::empty_cache() { trace.events.push_back({MemoryEvent::Kind::empty_cache, Category::temporary, module, 0, 0, op}); }

ModuleId Runtime::add_module(std::string path, std::string type, ModuleId parent) {
  trace.modules.push_back({std::move(path), std::move(type), parent});
  return ModuleId(trace.modules.size() - 1);
}

void Runtime::push(MemoryEvent::Kind kind, const Storage& s) { trace.events.push_back({kind, s.category, module, s.block, s.bytes, op}); }

void Runtime::allocated(Storage& s) {
  if (trace.events.size() >= kMostEvents)
    throw Error("the run makes more than " + grouped(std::int64_t(kMostEvents)) + " memory events", "fewer layers or steps");
  s.category = category;
  s.block = trace.blocks++;
  push(MemoryEvent::Kind::alloc, s);
}
void Runtime::freed(const Storage& s) { push(MemoryEvent::Kind::free, s); }
void Runtime::categorized(const Storage& s) { push(MemoryEvent::Kind::categorize, s); }

}  // namespace memest
