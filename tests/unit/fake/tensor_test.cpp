#include <catch2/catch.hpp>

#include "ops/iterator.h"
#include "ops/ops.h"
#include "unit/fake/fixture.h"

using namespace memest;

TEST_CASE("views of compatible strides take no copy") {
  CHECK(view_strides({2, 3, 4}, {12, 4, 1}, {6, 4}) == Dims{4, 1});
  CHECK(view_strides({2, 3, 4}, {12, 4, 1}, {2, 12}) == Dims{12, 1});
  CHECK_FALSE(view_strides({2, 3}, {1, 2}, {6}).has_value());
  CHECK(view_strides({4, 1, 3}, {3, 3, 1}, {12}) == Dims{1});
}

TEST_CASE("elementwise results keep the order of their inputs' dimensions") {
  TestRun run;
  Tensor rows = empty({4, 8}, DType::float32), columns = empty_strided({4, 8}, {1, 4}, DType::float32);
  CHECK(elementwise({columns}, DType::float32).strides() == Dims{1, 4});
  CHECK(elementwise({rows, columns}, DType::float32).strides() == Dims{8, 1});
  CHECK(elementwise({columns, rows}, DType::float32).strides() == Dims{1, 4});
  Tensor images = empty({2, 3, 8, 8}, DType::float32, MemoryFormat::channels_last), bias = empty({3, 1, 1}, DType::float32);
  CHECK(elementwise({images, bias}, DType::float32).strides() == images.strides());
  CHECK(elementwise({rows, empty({8}, DType::float32)}, DType::float32).sizes() == Dims{4, 8});
  CHECK_THROWS_AS(elementwise({rows, empty({7}, DType::float32)}, DType::float32), Error);
}

TEST_CASE("channels_last is told from contiguous as PyTorch does") {
  TestRun run;
  CHECK(suggest_memory_format(empty({2, 3, 4, 4}, DType::float32, MemoryFormat::channels_last)) == MemoryFormat::channels_last);
  CHECK(suggest_memory_format(empty({2, 3, 4, 4}, DType::float32)) == MemoryFormat::contiguous);
  CHECK(suggest_memory_format(empty({2, 3, 4, 4, 4}, DType::float32, MemoryFormat::channels_last_3d)) == MemoryFormat::channels_last_3d);
}

TEST_CASE("type promotion follows torch.result_type") {
  TestRun run;
  Tensor half = empty({2}, DType::float16), brain = empty({2}, DType::bfloat16), ints = empty({2}, DType::int64),
         scalar = empty({}, DType::float32), wide = empty({}, DType::float64), flag = empty({2}, DType::boolean);
  CHECK(result_type({half, brain}) == DType::float32);
  CHECK(result_type({half, scalar}) == DType::float16);
  CHECK(result_type({half, wide}) == DType::float16);
  CHECK(result_type({ints, scalar}) == DType::float32);
  CHECK(result_type({ints, wrapped_number(DType::float32)}) == DType::float32);
  CHECK(result_type({half, wrapped_number(DType::float32)}) == DType::float16);
  CHECK(result_type({flag, wrapped_number(DType::int64)}) == DType::int64);
  CHECK(result_type({ints, flag}) == DType::int64);
  CHECK(promote_types(DType::uint8, DType::int8) == DType::int16);
  CHECK(promote_types(DType::bfloat16, DType::complex64) == DType::complex64);
}

TEST_CASE("dimensions beyond six live on the heap") {
  Dims d;
  for (int i = 0; i < 9; ++i) d.push_back(i + 1);
  Dims copy = d, moved = std::move(copy);
  CHECK(moved == d);
  CHECK(copy.size() == 0);
  CHECK(moved.numel() == 362880);
  moved.erase(8);
  moved.insert(0, 2);
  CHECK(moved.numel() == 80640);
}
