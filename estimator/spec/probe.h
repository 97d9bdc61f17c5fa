// A run of a TorchScript file in LibTorch itself, with its memory counted (torch/probe.cpp).
#pragma once
#include <array>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/dims.h"
#include "base/dtype.h"

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
  Bytes constants = 0;    ///< tensors that the script holds itself; not in the phases
  std::string recurrent;  ///< a recurrent op that ran: "aten::lstm"
};

struct ProbeRequest {
  std::string path, method, device, optimizer, loss;  ///< optimizer as --optimizer has it
  bool training = true;
  int steps = 3;
  DType dtype = DType::float32;  ///< float32: as the file has it
  struct Input {
    std::string name;
    Dims sizes;
    DType dtype;
  };
  std::vector<Input> inputs;
};
/// Throws Error where the plugin is missing or refuses.
ProbeResult probe_torchscript(const ProbeRequest& request);

}  // namespace memest::spec
