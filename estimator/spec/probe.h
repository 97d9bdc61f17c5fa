// A run in LibTorch itself, with its memory counted (torch/probe.cpp).
#pragma once
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/dims.h"
#include "base/dtype.h"
#include "ops/recorder.h"

namespace memest::spec {

struct ProbeResult {
  struct Phase {
    Bytes end = 0, peak = 0;
    /// At the end: parameters, buffers, inputs, gradients, optimizer state, and the rest: what autograd saves, outputs.
    std::array<Bytes, 6> kinds{};
  };
  std::string torch;  ///< its version
  std::vector<Phase> phases;
  std::int64_t allocations = 0;
  Bytes constants = 0;  ///< tensors that a script holds itself; not in the phases

  struct OutOfMemory {
    int step;
    std::string phase, op, module;
    std::string message;  ///< LibTorch's
  };
  struct Gpu {
    std::string name;
    Bytes total_memory = 0, context = 0;  ///< context: what is taken beyond what the allocator reserved
    Bytes allocated_peak = 0, reserved_peak = 0;
    std::int64_t retries = 0;            ///< times that the allocator had to give its cache back
    std::vector<double> milliseconds{};  ///< of each step
    std::optional<OutOfMemory> out_of_memory{};
  };
  std::optional<Gpu> gpu;
};

/// What runs is the file, by LibTorch's interpreter, or the program.
struct ProbeRequest {
  std::string path, device, optimizer;  ///< optimizer as --optimizer has it
  bool training = true;
  bool math_attention = false;
  const Program* program = nullptr;
  std::optional<DType> autocast;  ///< of a program
  bool scaler = false;            ///< GradScaler
  // Of a TorchScript file.
  std::string method, loss;
  int steps = 3;
  DType dtype = DType::float32;  ///< float32: as the file has it
  struct Input {
    std::string name;
    Dims sizes;
    DType dtype;
  };
  std::vector<Input> inputs;
};
/// What LibTorch says of the GPU, and its own version.
struct LibTorchGpu {
  std::string name;
  Bytes memory = 0;
  std::string torch;
};
LibTorchGpu gpu_of_libtorch();
/// Throws Error where the plugin is missing or refuses.
ProbeResult probe(const ProbeRequest& request);

}  // namespace memest::spec
