// The GPU catalogue: what PyTorch's memory depends on, each number with its source.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "device/torch_version.h"

namespace memest {

struct Device {
  std::string name;                       ///< as --gpu names it: "a100-80gb"
  std::string product;                    ///< as torch.cuda.get_device_name() does
  Bytes total_memory = 0;                 ///< bytes that the driver reports (torch.cuda.mem_get_info()[1])
  int major = 8, minor = 0;               ///< compute capability
  int multiprocessors = 0;                ///< SMs: kernels size their scratch by it
  int threads_per_multiprocessor = 2048;  ///< resident threads of one SM, likewise
  Bytes context = 0;                      ///< bytes of a CUDA context with PyTorch's kernels loaded; what nvidia-smi shows beyond reserved
  std::string_view source;                ///< where the numbers are from

  int capability() const { return major * 10 + minor; }
  /// Bytes of shared memory that one block may ask for (cudaDevAttrMaxSharedMemoryPerBlockOptin; CUDA C++ programming guide, table of
  /// technical specifications).
  Bytes shared_memory_per_block() const {
    if (major == 9 || major == 10) return 227 * kKiB;
    if (capability() == 80 || capability() == 87) return 163 * kKiB;
    if (capability() == 70) return 96 * kKiB;
    return capability() == 75 ? 64 * kKiB : 99 * kKiB;
  }
  /// Bytes of the cuBLAS workspace of one handle (aten/src/ATen/cuda/CublasHandlePool.cpp parseChosenWorkspaceSize).
  Bytes cublas_workspace(TorchVersion torch) const;
};

/// All cards, by family and size.
const std::vector<Device>& device_catalogue();
/// The card of that name (case and separators do not matter); throws Error with the nearest names.
const Device& find_device(std::string_view name);
/// What is assumed without --gpu: an A100.
const Device& default_device();

}  // namespace memest
