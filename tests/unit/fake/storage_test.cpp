#include <catch2/catch.hpp>
#include <thread>

#include "fake/tensor.h"
#include "unit/fake/fixture.h"

using namespace memest;

TEST_CASE("a storage lives as long as its last reference") {
  TestRun run;
  Tensor x = empty({4, 8}, DType::float32);
  Tensor view = make_view(x, {8, 4}, {4, 1}, 0);
  x.reset();
  CHECK(run.events() == "+128");
  view.reset();
  CHECK(run.events() == "+128 -0");
}

TEST_CASE("host tensors and empty ones make no event") {
  TestRun run;
  Tensor host = host_tensor({1024}, DType::float32), none = empty({0, 4}, DType::float32);
  CHECK(run.events().empty());
  CHECK(host.on_host());
}

TEST_CASE("a storage has the category of its birth and changes it by an event") {
  TestRun run;
  Tensor x;
  {
    CategoryScope parameters(Category::parameter);
    x = empty({16}, DType::float32);
  }
  CHECK(run.runtime.trace.events.back().category == Category::parameter);
  x->storage->categorize(Category::gradient);
  CHECK(run.runtime.trace.events.back().kind == MemoryEvent::Kind::categorize);
  CHECK(run.runtime.trace.events.back().category == Category::gradient);
  x->storage->categorize(Category::gradient);
  CHECK(run.runtime.trace.events.size() == 2);
}

TEST_CASE("sizes are checked") {
  TestRun run;
  CHECK_THROWS_AS(empty({-1}, DType::float32), Error);
  CHECK_THROWS_AS(empty({std::int64_t{1} << 40, std::int64_t{1} << 40}, DType::float32), Error);
  CHECK_THROWS_AS(empty({std::int64_t{1} << 62}, DType::float32), Error);
  CHECK(run.events().empty());
}

TEST_CASE("two runs in two threads do not touch each other") {
  auto work = [](int count, std::string* out) {
    TestRun run;
    for (int i = 0; i < count; ++i) Tensor x = empty({count}, DType::uint8);
    *out = run.events();
  };
  std::string one, two, alone;
  std::thread a(work, 500, &one), b(work, 500, &two);
  a.join();
  b.join();
  work(500, &alone);
  CHECK(one == alone);
  CHECK(two == alone);
}
