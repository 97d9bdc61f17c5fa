// The loop that runs a recorded program, on any device.
#pragma once
#include <memory>
#include <vector>

#include "torch/memory.h"
#include "torch/optimizer.h"
#include "torch/plugin.h"

namespace memest::plugin {

/// What a device brings to a run.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual c10::Device device() const = 0;
  virtual Memory& memory() = 0;
  /// None for "none".
  virtual std::unique_ptr<Optimizer> optimizer(const Json& request, const std::vector<at::Tensor>& parameters) = 0;
  virtual void begin_step(int) {}
  virtual void end_step(int) {}
};

/// {"program", "training", "optimizer", "autocast": the type, "scaler": whether losses are scaled}: the phases, and "out_of_memory" where
/// the device had no more.
Json run_program(const Json& request, Backend& backend);

}  // namespace memest::plugin
