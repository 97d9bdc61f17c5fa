#include <catch2/catch.hpp>

#include "ops/ops.h"
#include "unit/fake/fixture.h"

using namespace memest;

namespace {
std::string of_mm(TorchVersion torch, int calls) {
  TestRun run(torch);
  Tensor a = empty({4, 4}, DType::float32);
  run.since();
  for (int i = 0; i < calls; ++i) ops::mm(a, a);
  return run.events();
}
std::string of_addmm(TorchVersion torch) {
  TestRun run(torch);
  Tensor a = empty({4, 4}, DType::float32), bias = empty({4}, DType::float32);
  run.since();
  Tensor y = ops::addmm(bias, a, a, 1, 1);
  return run.events();
}
}  // namespace

TEST_CASE("the cuBLAS workspace is kept before 2.15 and taken per call since") {
  CHECK(of_mm({2, 15}, 2) == "+64 +8519680 -1 -0 +64 +8519680 -3 -2");
  CHECK(of_mm({2, 6}, 2) == "+64 +8519680 -0 +64 -2");
}

TEST_CASE("an addmm with a bias takes its cuBLASLt scratch as its release does") {
  CHECK(of_addmm({2, 15}) == "+64 +1048576 -1");
  CHECK(of_addmm({2, 6}) == "+64 +1048576 +8519680 -1");
  CHECK(of_addmm({2, 9}) == "+64 +8519680 +1048576");
  CHECK(of_addmm({2, 12}) == "+64 +8519680");
}

TEST_CASE("environment variables that change sizes") {
  RunSettings s = RunSettings::for_device(default_device(), TorchVersion::newest());
  CHECK(s.cublas_workspace == 8519680);
  s.set_environment("CUBLAS_WORKSPACE_CONFIG", ":4096:8");
  CHECK(s.cublas_workspace == 33554432);
  s.set_environment("CUBLAS_WORKSPACE_CONFIG", ":0:0");
  CHECK(s.cublas_workspace == 0);
  CHECK_THROWS_AS(s.set_environment("CUBLAS_WORKSPACE_CONFIG", "4096"), Error);
  CHECK_THROWS_AS(s.set_environment("SOMETHING", "1"), Error);
  CHECK(RunSettings::for_device(find_device("h100-80gb"), TorchVersion::newest()).cublas_workspace == 33554432);
}
