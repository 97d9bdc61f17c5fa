// What the probes of a counted device and of a GPU have in common.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "estimate.h"
#include "spec/probe.h"

namespace memest::cli {

struct ProbeOptions {
  std::string device = "meta", tolerance = "0%", batches, strategies;
  bool validate = false;
};

/// The kinds of bytes that LibTorch's run is told apart by.
inline constexpr std::array kKinds = {"parameters", "buffers", "inputs", "gradients", "optimizer state", "activations and others"};

struct PhaseEnd {
  int step;
  Phase phase;
  Bytes end = 0, peak = 0;
  std::array<Bytes, kKinds.size()> kinds{};
};
/// Of the estimate: what lives at the end of each phase but the loading.
std::vector<PhaseEnd> ends_of(const Estimate& e);
/// A line for each phase, the two side by side. Throws Error where LibTorch ran others.
void print_phases(const std::vector<PhaseEnd>& estimated, const spec::ProbeResult& probe);
/// Whether a figure is as close to LibTorch's as `tolerance` asks.
bool is_within(Bytes estimated, Bytes measured, double tolerance);
/// "+12", "0".
std::string signed_text(Bytes difference);

/// The estimate is of LibTorch's own release. Returns whether that is another than it was of.
bool take_release(EstimateRequest& r, const std::string& release);

/// What LibTorch is asked to run beside the estimate. `program` holds what the request refers to.
spec::ProbeRequest probe_request(const EstimateRequest& r, const Estimate& e, const std::string& device, Program& program);

/// Runs on the GPU: each batch with each strategy. Returns the exit code.
int probe_gpu(const EstimateRequest& r, const ProbeOptions& o, double tolerance);

}  // namespace memest::cli
