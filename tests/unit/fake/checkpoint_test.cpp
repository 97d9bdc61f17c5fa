#include <catch2/catch.hpp>

#include "fake/checkpoint.h"
#include "ops/ops.h"
#include "unit/fake/fixture.h"

using namespace memest;

namespace {
Tensors region(const Tensors& in) { return {ops::exp(ops::exp(in[0]))}; }
}  // namespace

TEST_CASE("a checkpointed region keeps only its input and output") {
  TestRun run;
  Tensor w = leaf({256});
  run.since();
  Tensor y = checkpoint(region, {w})[0];
  CHECK(run.events() == "+1024 +1024 -0");
}

TEST_CASE("the recomputation stops once the last saved tensor is there") {
  TestRun run;
  Tensor w = leaf({4, 4});
  Tensor x = empty({4, 4}, DType::float32);
  // ends in a product, whose last saved tensor is an input: its output is not made again
  Tensor y = checkpoint([&](const Tensors& in) { return Tensors{ops::mm(ops::exp(in[0]), x)}; }, {w})[0];
  Tensor seed = empty_like(y);
  run.since();
  backward(y, seed);
  // exp again; its gradient product with the workspace; no second output of the region's mm
  CHECK(run.events().substr(0, 4) == "+64 ");
  CHECK(w->grad.defined());
}

TEST_CASE("both kinds give the gradient of the region's input") {
  for (bool reentrant : {false, true}) {
    TestRun run;
    Tensor w = leaf({64});
    Tensor y = reentrant ? checkpoint_reentrant(region, {w})[0] : checkpoint(region, {w})[0];
    backward(y, empty_like(y));
    CHECK(w->grad.sizes() == Dims{64});
  }
}

TEST_CASE("a reentrant region's outputs go back through its graph together") {
  TestRun run;
  Tensor w = leaf({64});
  auto both = [](const Tensors& in) {
    Tensor h = ops::exp(in[0]);
    return Tensors{ops::exp(h), h};
  };
  const Tensors y = checkpoint_reentrant(both, {w});
  Tensor z = ops::mul(y[0], y[1]);
  backward(z, empty_like(z));
  CHECK(w->grad.sizes() == Dims{64});
  // a gradient that did not arrive is made
  const Tensors again = checkpoint_reentrant(both, {w});
  backward(again[0], empty_like(again[0]));
  CHECK(w->grad.sizes() == Dims{64});
}
TEST_CASE("where with two numbers makes a tensor of each") {
  TestRun run;
  Tensor condition = empty({}, DType::boolean);
  run.since();
  Value y = call_op("aten::where", {condition, 1.0, 2.0}, {});
  CHECK(run.events() == "+4 +4 +4 -1 -0");
}
