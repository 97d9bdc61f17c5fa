#include "device/device.h"

#include <catch2/catch.hpp>
#include <set>

#include "base/error.h"

using namespace memest;

namespace {

std::string hint_for(std::string_view name) {
  try {
    find_device(name);
  } catch (const Error& error) {
    return error.message() + " | " + error.hint();
  }
  return "found";
}

}  // namespace

TEST_CASE("a card is found by any way of writing its name") {
  for (const char* name : {"a100-80gb", "A100 80GB", "a100_80gb", "NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"})
    CHECK(find_device(name).name == "a100-80gb");
  CHECK(find_device("GeForce RTX 4090").name == "rtx4090");
  CHECK(find_device("NVIDIA GeForce RTX 3060").name == "rtx3060-12gb");
  CHECK(find_device("Tesla T4").name == "t4");
}

TEST_CASE("an unknown card is answered with near ones") {
  CHECK_THAT(hint_for("rtx4900"), Catch::Contains("unknown GPU 'rtx4900'") && Catch::Contains("rtx4090"));
  CHECK_THAT(hint_for("a100"), Catch::Contains("a100-40gb") && Catch::Contains("a100-80gb"));
  CHECK_THAT(hint_for("h100"), Catch::Contains("h100-80gb"));
  CHECK_THAT(hint_for(""), Catch::Contains("unknown GPU ''"));
}

TEST_CASE("every row is complete and plausible") {
  std::set<std::string> names;
  for (const Device& device : device_catalogue()) {
    INFO(device.name);
    CHECK(names.insert(device.name).second);
    CHECK(&find_device(device.name) == &device);
    CHECK(device.total_memory > 7 * kGiB);
    CHECK(device.total_memory % 65536 == 0);
    CHECK(device.context >= 100 * kMiB);
    CHECK(device.context <= 600 * kMiB);
    CHECK(device.multiprocessors >= 24);
    CHECK(device.multiprocessors <= 192);
    CHECK_FALSE(device.source.empty());
    CHECK_FALSE(device.product.empty());
  }
}

TEST_CASE("resident threads of an SM follow the capability") {
  CHECK(find_device("a100-80gb").threads_per_multiprocessor == 2048);
  CHECK(find_device("t4").threads_per_multiprocessor == 1024);
  CHECK(find_device("rtx3090").threads_per_multiprocessor == 1536);
  CHECK(find_device("rtx4090").threads_per_multiprocessor == 1536);
  CHECK(find_device("h100-80gb").threads_per_multiprocessor == 2048);
  CHECK(find_device("rtx5090").threads_per_multiprocessor == 1536);
}

TEST_CASE("the cuBLAS workspace by card and release") {
  CHECK(find_device("a100-80gb").cublas_workspace({2, 15}) == 8519680);
  CHECK(find_device("t4").cublas_workspace({2, 4}) == 8519680);
  CHECK(find_device("h100-80gb").cublas_workspace({2, 4}) == 33554432);
  CHECK(find_device("h200").cublas_workspace({2, 15}) == 33554432);
  for (const char* name : {"b200", "rtx5090"}) {
    CHECK(find_device(name).cublas_workspace({2, 11}) == 8519680);
    CHECK(find_device(name).cublas_workspace({2, 12}) == 33554432);
  }
}

TEST_CASE("without --gpu an A100 is assumed") {
  CHECK(default_device().capability() == 80);
  CHECK(default_device().total_memory == 81154 * kMiB);
}
