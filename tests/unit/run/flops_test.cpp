// FLOPs of the shipped specs against torch.utils.flop_counter (flops.txt, made by scripts/record_flops.py).
#include <catch2/catch.hpp>

#include <fstream>
#include <sstream>

#include "estimate.h"

using namespace memest;

namespace {
EstimateRequest request_of(const std::string& name) {
  EstimateRequest request;
  request.spec = std::string(MEMEST_SOURCE_DIR) + "/model_specs/" + name + ".json";
  request.run.batches = {2};
  request.run.steps = 1;
  request.run.loss = "sum";
  request.read.sizes = {{"batch", 2}};
  return request;
}
Bytes forward_end(const Estimate& e) {
  Bytes end = 0;
  for (std::size_t i = 0; i < e.trace().phases.size(); ++i)
    if (e.trace().phases[i].phase == Phase::forward) end = e.replay.phases[i].end;
  return end;
}
}  // namespace

TEST_CASE("FLOPs are flop_counter's on every shipped spec") {
  std::ifstream file(std::string(MEMEST_SOURCE_DIR) + "/tests/unit/run/flops.txt");
  int specs = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string name;
    std::int64_t forward = 0, backward = 0;
    words >> name >> forward >> backward;
    INFO(name);
    const Estimate e = estimate(request_of(name));
    CHECK(e.compute.forward_flops == forward);
    CHECK(e.compute.backward_flops == backward);
    CHECK(e.compute.recomputed_flops == 0);
    ++specs;
  }
  CHECK(specs >= 41);
}

TEST_CASE("what checkpointing repeats is counted apart") {
  EstimateRequest request = request_of("resnet50");
  const Estimate plain = estimate(request);
  request.run.checkpointing = run::parse_checkpointing("modules=layer*");
  const Estimate checkpointed = estimate(request);
  CHECK(checkpointed.compute.forward_flops == plain.compute.forward_flops);
  CHECK(checkpointed.compute.recomputed_flops > plain.compute.forward_flops / 2);
  CHECK(checkpointed.compute.recomputed_flops < plain.compute.forward_flops);
  CHECK(checkpointed.compute.backward_flops == plain.compute.backward_flops + checkpointed.compute.recomputed_flops);
  CHECK(checkpointed.replay.allocated_peak < plain.replay.allocated_peak);
  request.run.checkpointing = run::parse_checkpointing("modules=layer*,keep=convolution");
  const Estimate selective = estimate(request);
  CHECK(selective.compute.recomputed_flops == 0);
  CHECK(forward_end(selective) > forward_end(checkpointed));
  CHECK(forward_end(selective) < forward_end(plain));
}
