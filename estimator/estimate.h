// EstimateRequest -> Estimate: spec, model, run, trace, allocator replay. No option is global; two estimates in two threads do not touch
// each other.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fake/runtime.h"
#include "ops/recorder.h"
#include "report/result.h"
#include "run/options.h"
#include "spec/reader.h"

namespace memest {

struct EstimateRequest {
  std::string spec;
  spec::ReadOptions read;
  run::RunOptions run;
  TorchVersion torch = TorchVersion::newest();
  std::optional<std::string> gpu;                                ///< --gpu
  std::optional<Bytes> gpu_memory;                               ///< --gpu-memory: bytes of a card without a name
  std::string alloc_conf;                                        ///< --alloc-conf
  std::vector<std::pair<std::string, std::string>> environment;  ///< --env
  RunSettings::Semantics semantics = RunSettings::Semantics::cuda;
  std::string counted_device;  ///< "meta" or "cpu": LibTorch's tensors there, with Semantics::fake_tensor
  bool strict = false;
  bool record_events = false;      ///< for --trace
  bool alloc_what_if = false;      ///< --alloc-what-if
  bool figures = true;             ///< of a Hugging Face config: parameters by part, cache, and a second run with one sample more
  std::string largest;             ///< --seq max, --batch max: the size whose largest value that fits is looked for; empty: none
  std::vector<std::string> given;  ///< names of the options that the user set
};

/// Throws Error: kind usage for a wrong request or unreadable input, kind unknown where --strict met an unknown.
Estimate estimate(const EstimateRequest& request);

/// The forward of each step of the same run, to be run by LibTorch.
Program record(const EstimateRequest& request);

}  // namespace memest
