#include "base/text.h"

#include <catch2/catch.hpp>

#include "base/dtype.h"

using namespace memest;

TEST_CASE("sizes for people have three digits") {
  CHECK(human(512) == "512 B");
  CHECK(human(1536) == "1.50 KiB");
  CHECK(human(204'472'320) == "195 MiB");
  CHECK(human(4'735'000'000) == "4.41 GiB");
  CHECK(human(-1536) == "-1.50 KiB");
  CHECK(grouped(25557032) == "25,557,032");
  CHECK(grouped(-999) == "-999");
}

TEST_CASE("sizes as people write them") {
  CHECK(parse_size("24GiB") == 24 * kGiB);
  CHECK(parse_size("24 GB") == 24'000'000'000);
  CHECK(parse_size("1024 bytes") == 1024);
  CHECK(parse_size("1.5MiB") == 1572864);
  CHECK_FALSE(parse_size("lots").has_value());
  CHECK_FALSE(parse_size("-1GiB").has_value());
  CHECK_FALSE(parse_size("").has_value());
  CHECK_FALSE(parse_size("nan").has_value());
  CHECK_FALSE(parse_size("99999999999TiB").has_value());
}

TEST_CASE("near names") {
  const std::vector<std::string> names{"resnet18", "resnet50", "vgg16"};
  CHECK(did_you_mean("resnet5", names) == "did you mean resnet50 or resnet18?");
  CHECK(did_you_mean("qqqqqq", names).empty());
  CHECK(did_you_mean("VGG-16", names) == "did you mean vgg16?");
}

TEST_CASE("globs match whole names") {
  CHECK(glob_match("layer*.conv?", "layer1.0.conv2"));
  CHECK_FALSE(glob_match("layer*.conv?", "layer1.0.conv22"));
  CHECK(glob_match("*", ""));
}

TEST_CASE("element types by PyTorch's names") {
  CHECK(dtype_from("torch.bfloat16") == DType::bfloat16);
  CHECK(dtype_from("half") == DType::float16);
  CHECK_FALSE(dtype_from("float12").has_value());
}
