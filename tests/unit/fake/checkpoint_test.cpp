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

TEST_CASE("a reentrant region's outputs run back together, an unused one with zeros") {
  for (bool both : {false, true}) {
    TestRun run;
    Tensor w = leaf({64});
    Region two = [](const Tensors& inputs) {
      Tensor shared = ops::mul(inputs[0], inputs[0]);
      return Tensors{ops::sqrt(shared), ops::rsqrt(shared)};
    };
    Tensors y = checkpoint_reentrant(two, {w});
    Tensor used = both ? ops::add(y[0], y[1], 1) : y[0];
    y.clear();
    backward(used, empty_like(used));
    CHECK(w->grad.sizes() == Dims{64});
  }
}
