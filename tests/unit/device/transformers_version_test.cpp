#include "device/transformers_version.h"

#include <catch2/catch.hpp>

namespace memest {

TEST_CASE("releases of transformers are read from their names") {
  CHECK(TransformersVersion::parse("4.51.3") == TransformersVersion{4, 51});
  CHECK(TransformersVersion::parse("5.24") == TransformersVersion::newest());
  for (const char* text : {"", "5", "4.", "4.47", "5.25", "4.51x", "v4.51", "4.51.", "4.58"}) CHECK_FALSE(TransformersVersion::parse(text));
}

TEST_CASE("a PyTorch comes with the transformers of its time") {
  CHECK(TransformersVersion::beside({2, 4}).name() == "4.51");
  CHECK(TransformersVersion::beside({2, 7}).name() == "4.55");
  CHECK(TransformersVersion::beside({2, 9}).name() == "4.57");
  CHECK(TransformersVersion::beside({2, 10}) == TransformersVersion::newest());
}

}  // namespace memest
