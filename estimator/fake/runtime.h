// A run's state: where events go, the current phase, module and op, and PyTorch's thread-local modes.
// Everything belongs to one Runtime; two runs in two threads do not touch each other.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/diagnostics.h"
#include "device/device.h"
#include "fake/tensor.h"
#include "trace/trace.h"

namespace memest {

struct CallObserver;
struct KernelPolicy;
struct Observer;
struct SavedTensorHooks;
void dispose(SavedTensorHooks* hooks);

/// What a run assumes of the world.
struct RunSettings {
  TorchVersion torch;
  Device device = default_device();
  enum class Semantics { cuda, fake_tensor } semantics = Semantics::cuda;
  Bytes cublas_workspace = 0;           ///< of one handle; see workspace.h
  bool cublas_workspace_cache = false;  ///< 2.15: TORCH_CUBLAS_WORKSPACE_CACHE=1, each thread keeps its workspace
  Bytes cublaslt_workspace = kMiB;
  bool strict = false;  ///< an unknown op is an Error

  /// Kernel scratch and library workspaces are counted (FakeTensorMode does not see them).
  bool kernel_scratch() const { return semantics == Semantics::cuda; }
  /// `PYTORCH_...` environment variables that change sizes are applied; throws Error for a value PyTorch refuses.
  void set_environment(std::string_view name, std::string_view value);
  static RunSettings for_device(const Device& device, TorchVersion torch);
};

struct AutocastState {
  bool enabled = false;
  DType dtype = DType::float16;
  bool cache_enabled = true;
  int nesting = 0;
  std::unordered_map<const TensorImpl*, Tensor> cache;  ///< low-precision casts of leaves, until the outermost context exits
};

/// torch.nn.attention.sdpa_kernel: which kernels scaled_dot_product_attention may take. cuDNN's workspaces are not known, so it is off.
struct SdpKernels {
  bool cudnn = false, flash = true, efficient = true, math = true;
};

class Runtime {
 public:
  explicit Runtime(RunSettings settings);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const RunSettings settings;
  MemoryTrace trace;
  Diagnostics diagnostics;

  const char* op = "";                      ///< the innermost op that runs
  ModuleId module = 0;                      ///< the innermost module that runs; in backward, the module of the node's forward
  Category category = Category::temporary;  ///< of new storages
  DType default_dtype = DType::float32;     ///< torch.get_default_dtype(): of new parameters
  bool grad_mode = true;
  bool inference_mode = false;
  AutocastState autocast;
  SdpKernels sdp;
  Ref<SavedTensorHooks> saved_tensor_hooks;
  KernelPolicy* kernel_policy = nullptr;  ///< of a checkpointed region that keeps some kernels' results (fake/kernel.h)
  bool recomputing = false;               ///< a checkpointed region runs again
  std::uint64_t next_sequence_nr = 0;
  std::uint64_t backward_calls = 0;
  bool in_backward_thread = false;                      ///< the autograd engine's device thread has cuBLAS handles of its own
  Tensor cublas_workspaces[2], cublaslt_workspaces[2];  ///< kept ones: forward thread, autograd thread

  void begin_phase(Phase phase, int step, int micro = 0);
  void empty_cache();
  /// Work of the current phase.
  void count_flops(std::int64_t flops);
  /// A module of the model, for paths in events.
  ModuleId add_module(std::string path, std::string type, ModuleId parent);

  // called by Storage
  void allocated(Storage& storage);
  void freed(const Storage& storage);
  void categorized(const Storage& storage);

 private:
  void push(MemoryEvent::Kind kind, const Storage& storage);
  Runtime* outer_;  // the thread's runtime before this one

 public:  // of a recording (ops/recorder.h): what is made and dies, and what ops are called
  Observer* observer = nullptr;
  CallObserver* calls = nullptr;
};

/// The thread's current run.
Runtime& runtime();
/// Null where there is none.
Runtime* current_runtime();

/// Sets a member for a scope.
template <class V>
class Scoped {
 public:
  Scoped(V& place, V value) : place_(place), old_(std::exchange(place, std::move(value))) {}
  ~Scoped() { place_ = std::move(old_); }
  Scoped(const Scoped&) = delete;
  Scoped& operator=(const Scoped&) = delete;

 private:
  V& place_;
  V old_;
};

struct GradMode {
  explicit GradMode(bool enabled) : mode_(runtime().grad_mode, enabled) {}

 private:
  Scoped<bool> mode_;
};
struct NoGrad : GradMode {
  NoGrad() : GradMode(false) {}
};
/// Storages made in this scope have this category.
struct CategoryScope {
  explicit CategoryScope(Category category) : scope_(runtime().category, category) {}

 private:
  Scoped<Category> scope_;
};

}  // namespace memest
