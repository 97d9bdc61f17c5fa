// What people do to a training step: clipping, copies, leaks, freezing, resuming. One struct, one set-up, one translation into RunOptions.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "run/options.h"

namespace memest::cli {

/// As given on the command line.
struct TrainingOptions {
  std::string clip_grad_norm, clip_grad_value, ema, eval_between, resume = "no", empty_cache = "never", infer_mode = "no_grad",
                                                                  saved_tensors = "kept", lora, quantization, master_weights;
  std::vector<std::string> no_decay, freeze, parameter_groups;
  bool leak_loss = false, kbit_training = false;
};
void add_training_options(CLI::App& app, TrainingOptions& options);
/// Throws Error for values and combinations that do not exist or that PyTorch refuses.
void apply(const TrainingOptions& options, const CLI::App& app, run::RunOptions& run);

}  // namespace memest::cli
