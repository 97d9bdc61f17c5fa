// The training and the inference loop, names rebound as Python does (design 5.1).
#pragma once
#include "nn/model.h"
#include "run/options.h"

namespace memest::run {

/// What a run knows when it is over.
struct RunResult {
  MemoryTrace trace;
  std::int64_t parameters = 0, trainable = 0, buffers = 0;           ///< elements; buffers: tensors
  Bytes parameter_bytes = 0, trainable_bytes = 0, buffer_bytes = 0;  ///< unrounded, shared ones once
  Bytes gradient_bytes = 0, optimizer_state_bytes = 0;
  Bytes averaged_bytes = 0;  ///< of the EMA or SWA copy
  Bytes master_bytes = 0;    ///< of float32 copies of the parameters
  struct {
    Bytes optimizer_state = 0;
    Bytes saved_peak = 0;  ///< saved tensors that hooks moved to the host: most at one time
  } host_bytes;            ///< what options put on the host instead of the device
  std::string loss;        ///< as resolved
  struct Input {
    std::string name;
    Dims sizes;
    DType dtype;
    bool operator==(const Input&) const = default;
  };
  std::vector<Input> inputs;  ///< of the first step
};

/// What the model decides where the options leave it open, and what the two together do not allow: quantised weights, checkpointing. Throws
/// Error.
void settle(RunOptions& options, const nn::Model& model);

/// Loads the model and runs the loop on the current runtime; its trace, which ends with the last phase, moves into the result. Throws Error
/// where the model and the options do not fit.
RunResult run_loop(nn::Model& model, const RunOptions& options);

}  // namespace memest::run
