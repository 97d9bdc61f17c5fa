#include <catch2/catch.hpp>

#include "ops/ops.h"
#include "unit/fake/fixture.h"

using namespace memest;

TEST_CASE("weights are cast once and kept until the context exits") {
  TestRun run;
  Tensor w = leaf({8, 8}), x = empty({4, 8}, DType::float32);
  Tensor a, b;
  {
    AutocastContext context(true, DType::bfloat16);
    run.since();
    a = ops::linear(x, w, Tensor());
    const std::string first = run.events();
    run.since();
    b = ops::linear(x, w, Tensor());
    CHECK(first.find("+128 +64") == 0);        // weight, then input
    CHECK(run.events().find("+64 +64") == 0);  // the input again, no weight; then the output
    CHECK(a.dtype() == DType::bfloat16);
    CHECK(run.runtime.autocast.cache.size() == 1);
  }
  CHECK(run.runtime.autocast.cache.empty());
}

TEST_CASE("policies choose the type an op runs in") {
  TestRun run;
  AutocastContext context(true, DType::float16);
  Tensor half = empty({4, 8}, DType::float16), single = empty({4, 8}, DType::float32);
  CHECK(ops::softmax(half, -1, std::nullopt).dtype() == DType::float32);
  CHECK(ops::exp(half).dtype() == DType::float32);
  CHECK(ops::relu(half).dtype() == DType::float16);
  CHECK(ops::mm(single, ops::t(single)).dtype() == DType::float16);
  CHECK(ops::layer_norm(half, {8}, Tensor(), Tensor(), 1e-5, true).dtype() == DType::float32);
  CHECK(ops::add(half, single, 1).dtype() == DType::float32);
}
