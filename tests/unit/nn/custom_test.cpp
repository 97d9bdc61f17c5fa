// Ops that a spec describes, and ops that memest does not know.
#include "nn/custom.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "fake/autograd.h"
#include "unit/fake/fixture.h"

using namespace memest;
using namespace memest::nn;

namespace {
CustomCall scan(T x, bool saves) {
  CustomCall call;
  call.op = "scan";
  call.inputs = {x};
  call.saves_input = {saves};
  call.outputs = {{{256}, DType::float32, false}};
  return call;
}
Category category_of(T x) { return x->storage->category; }
}  // namespace

TEST_CASE("a custom op makes its outputs, then its temporaries; the gradient of each input comes in the backward pass") {
  TestRun run;
  Tensor x = leaf({512});
  run.since();
  CustomCall call = scan(x, true);
  call.temporaries = {{{128}, DType::float32, false}, {{64}, DType::int64, true}};
  call.backward_temporaries = {{{1024}, DType::uint8, false}};
  Tensor y = call_custom(call)[0];
  CHECK(run.events() == "+1024 +512 +512 -1");  // the saved one stays
  run.since();
  Tensor gradient = empty({256}, DType::float32);
  backward(y, gradient);
  CHECK(run.events() == "+1024 +1024 +2048 -1 --1");
  CHECK(x->grad.numel() == 512);
}

TEST_CASE("a custom op holds what it says it saves, and nothing without gradients") {
  TestRun run;
  for (bool saves : {true, false}) {
    Tensor w = leaf({512});
    CustomCall first = scan(w, false);
    first.outputs[0].saved = false;
    Tensor h = call_custom(first)[0];
    Tensor y = call_custom(scan(h, saves))[0];
    CHECK((category_of(h) == Category::activation) == saves);
    run.since();
    h.reset();
    CHECK(run.events() == (saves ? "" : "-" + std::to_string(-2)));
  }
  NoGrad guard;
  Tensor x = empty({512}, DType::float32);
  Tensor y = call_custom(scan(x, true))[0];
  CHECK(category_of(x) == Category::temporary);
  CHECK_FALSE(y.requires_grad());
}

TEST_CASE("an unknown op returns what is like its largest input, parameters aside, and books it as assumed") {
  TestRun run;
  Tensor weight = leaf({4096});
  weight->storage->categorize(Category::parameter);
  Tensor h = empty({64, 4}, DType::bfloat16), ids = empty({1000}, DType::int64);
  Value v = assume_call("mystery", {h, make_list({weight, ids}), std::int64_t{3}}, {}, 1);
  Tensor y = std::get<Tensor>(v);
  CHECK(y.sizes() == Dims{64, 4});
  CHECK(y.dtype() == DType::bfloat16);
  CHECK(y.requires_grad());
  CHECK(category_of(y) == Category::assumed);
  CHECK(category_of(h) == Category::assumed);  // kept by the assumption alone
  CHECK(category_of(weight) == Category::parameter);
  const Value parts = assume_call("mystery", {h}, {}, 3);
  CHECK(std::get<std::shared_ptr<List>>(parts)->items.size() == 3);
}

TEST_CASE("without a tensor there is nothing to assume") {
  TestRun run;
  try {
    assume_call("mystery", {std::int64_t{3}}, {}, 1);
    FAIL("it was assumed");
  } catch (const Error& e) {
    CHECK(e.kind() == Error::Kind::unknown);
  }
}
