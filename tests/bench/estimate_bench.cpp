// Three training steps, spec to result, by the number of layers: the cost must grow linearly. And the shipped networks that people ask for.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "estimate.h"

namespace {
using namespace memest;

/// A spec of `layers` linear layers with an activation each, in a file of its own.
std::string chain_of(std::int64_t layers) {
  const std::string path = "bench-chain-" + std::to_string(layers) + ".json";
  std::ofstream file(path);
  file << R"({"memest_spec": 1, "name": "chain", "inputs": [{"name": "x", "shape": ["batch", 64]}], "layers": [)";
  for (std::int64_t i = 0; i < layers; ++i)
    file << (i ? "," : "") << (i % 2 ? R"({"type": "ReLU"})" : R"({"type": "Linear", "in_features": 64, "out_features": 64})");
  file << "]}";
  return path;
}

void estimate_chain(benchmark::State& state) {
  EstimateRequest request;
  request.spec = chain_of(state.range(0));
  request.run.batches = {8};
  request.read.sizes = {{"batch", 8}};
  for (auto _ : state) benchmark::DoNotOptimize(estimate(request).replay.allocated_peak);
  std::remove(request.spec.c_str());
  state.SetComplexityN(state.range(0));
}
BENCHMARK(estimate_chain)->RangeMultiplier(10)->Range(10, 10000)->Unit(benchmark::kMillisecond)->Complexity(benchmark::oN);

void estimate_shipped(benchmark::State& state, const char* name) {
  EstimateRequest request;
  request.spec = std::string(MEMEST_SPECS) + "/" + name + ".json";
  request.run.batches = {32};
  request.read.sizes = {{"batch", 32}};
  for (auto _ : state) benchmark::DoNotOptimize(estimate(request).replay.allocated_peak);
}
BENCHMARK_CAPTURE(estimate_shipped, resnet50, "resnet50")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(estimate_shipped, resnet152, "resnet152")->Unit(benchmark::kMillisecond);

}  // namespace
