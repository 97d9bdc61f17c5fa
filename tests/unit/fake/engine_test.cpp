#include <catch2/catch.hpp>

#include "fake/checkpoint.h"
#include "ops/ops.h"
#include "unit/fake/fixture.h"

using namespace memest;

TEST_CASE("a gradient that nobody else holds is stolen by .grad") {
  TestRun run;
  Tensor w = leaf({4, 4}), x = empty({4, 4}, DType::float32);
  Tensor y = ops::mul(w, x);
  run.since();
  backward(y, empty_like(y));
  CHECK(run.events() == "+64 +64 -0");  // the seed, and the gradient, which stays
  CHECK(w->grad->storage->category == Category::gradient);
}

TEST_CASE("a gradient that two leaves share is copied for the second") {
  TestRun run;
  Tensor a = leaf({8}), b = leaf({8});
  Tensor y = ops::add(a, b, 1);
  run.since();
  {
    Tensor seed = empty_like(y);
    backward(y, std::move(seed));
  }
  CHECK(a->grad->storage.get() != b->grad->storage.get());
}

TEST_CASE("a second backward adds in place and the new gradient is a transient") {
  TestRun run;
  Tensor w = leaf({16});
  for (int i = 0; i < 2; ++i) {
    Tensor y = ops::mul(w, empty({16}, DType::float32));
    if (i == 1) run.since();
    backward(y, empty_like(y));
  }
  CHECK(run.events().find("+64 +64 ") == 0);  // seed, product; then both go
}

TEST_CASE("broadcast gradients are summed and cast by the engine") {
  TestRun run;
  Tensor bias = leaf({8}), x = empty({4, 8}, DType::float32);
  Tensor y = ops::add(x, bias, 1);
  backward(y, empty_like(y));
  CHECK(bias->grad.sizes() == Dims{8});
  Tensor half = leaf({4}, DType::float16);
  Tensor z = ops::mul(half, empty({4}, DType::float32));
  backward(z, empty_like(z));
  CHECK(half->grad.dtype() == DType::float16);
}

TEST_CASE("saved tensors are dropped when their node is done") {
  TestRun run;
  Tensor w = leaf({128});
  Tensor y = ops::exp(w);
  Tensor z = ops::exp(y);
  y.reset();
  run.since();
  backward(z, empty_like(z));
  // seed; gradient of the outer exp; its saved result stays with z; gradient of w; then the inner result and the intermediate gradient go
  CHECK(run.events().find("-") != std::string::npos);
  CHECK(w->grad.defined());
}

TEST_CASE("chains of 100,000 nodes are destroyed without recursion") {
  TestRun run;
  Tensor x = leaf({1});
  for (int i = 0; i < 100'000; ++i) x = ops::neg(x);
  CHECK(x.requires_grad());
  x.reset();
  SUCCEED();
}

TEST_CASE("a backward inside a backward has its own state") {
  TestRun run;
  Tensor w = leaf({8, 8}), x = leaf({4, 8});
  // w is used inside the checkpointed region and outside it
  Tensor inner = checkpoint_reentrant([&](const Tensors& in) { return Tensors{ops::mm(in[0], w)}; }, {x})[0];
  Tensor outer = ops::mm(inner, w);
  backward(outer, empty_like(outer));
  CHECK(w->grad.defined());
  CHECK(x->grad.defined());
}

TEST_CASE("in place on a view: the base gets a CopySlices node") {
  TestRun run;
  Tensor w = leaf({4, 8});
  Tensor base = ops::mul(w, empty({4, 8}, DType::float32));
  Tensor row = ops::select(base, 0, 1);
  ops::mul_(row, empty({8}, DType::float32));
  REQUIRE(grad_fn(base));
  CHECK(std::string(grad_fn(base)->name) == "CopySlices");
  CHECK(std::string(grad_fn(row)->name) == "AsStridedBackward0");
  backward(base, empty_like(base));
  CHECK(w->grad.sizes() == Dims{4, 8});
}

TEST_CASE("no node is made without grad, and none is saved") {
  TestRun run;
  Tensor w = leaf({8});
  NoGrad guard;
  Tensor y = ops::exp(w);
  CHECK_FALSE(y.requires_grad());
  CHECK(y->storage->category == Category::temporary);
}

TEST_CASE("backward of a loss that needs no gradient is refused") {
  TestRun run;
  Tensor x = empty({1}, DType::float32);
  CHECK_THROWS_AS(backward(x), Error);
  Tensor w = leaf({2});
  Tensor y = ops::exp(w);
  CHECK_THROWS_AS(backward(y), Error);  // not a scalar
}

TEST_CASE("gradients of one node that are added to others go together, after the last of them has arrived") {
  TestRun run;
  Tensor x = leaf({16}), y = leaf({16});
  Tensor product = ops::sum(ops::mul(x, y), std::nullopt);
  Tensor loss = ops::add(product, ops::sum(ops::add(x, y, 1), std::nullopt), 1);  // its gradients are expanded: not added to in place
  run.since();
  backward(loss, {});
  CHECK(run.events() == "+4 +64 +64 +64 +64 -2 -1 -0");  // as PyTorch 2.15
}
