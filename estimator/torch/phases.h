// The loop of a probe that all ways to run a forward share: parameters, optimizer, and what lives at the end of each phase.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "torch/memory.h"
#include "torch/optimizer.h"
#include "torch/plugin.h"

namespace memest::plugin {

/// Bytes of the storages of tensors, each storage once.
std::int64_t storage_bytes(const std::vector<at::Tensor>& tensors);

/// Once an LSTM is to run on the CPU: by steps, without oneDNN, which would run it whole and keep a workspace whose size only it knows.
void run_lstm_by_steps(c10::Device device);

class Phases {
 public:
  explicit Phases(Memory& memory) : memory_(memory) {}

  std::vector<at::Tensor> parameters, buffers, inputs;
  std::unique_ptr<Optimizer> optimizer;
  std::int64_t constants = 0;  ///< bytes that no phase counts

  /// parameters' grads to none.
  void zero_grad();
  /// Trainable parameters; throws where there are none.
  std::vector<at::Tensor> trainable() const;
  void end(int step, const std::string& phase);
  /// {"torch", "phases", "allocations", "constants_bytes"}
  Json reply();

 private:
  Memory& memory_;
  Json phases_ = Json::array();
};

}  // namespace memest::plugin
