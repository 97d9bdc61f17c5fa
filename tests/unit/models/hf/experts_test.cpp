#include "models/hf/experts.h"

#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>

#include "spec/reader.h"
#include "unit/fake/fixture.h"

using namespace memest;
namespace fs = std::filesystem;

namespace {

hf::ExpertParameters experts_of(const std::string& config) {
  const fs::path path = fs::temp_directory_path() / ("memest_experts_test_" + std::to_string(std::hash<std::string>{}(config)) + ".json");
  std::ofstream(path) << config;
  TestRun run;
  spec::ReadOptions options;
  options.sizes = {{"batch", 1}};
  options.task = "causal-lm";
  auto model = spec::read_model(path.string(), options);
  fs::remove(path);
  return hf::expert_parameters(*model->root);
}

}  // namespace

TEST_CASE("experts: all parameters, and those of one token") {
  auto mixtral = experts_of(R"({"model_type": "mixtral"})");
  CHECK(mixtral.total == std::int64_t{32} * 8 * 3 * 4096 * 14336);
  CHECK(mixtral.active == mixtral.total / 4);
  auto deepseek = experts_of(R"({"model_type": "deepseek_v3"})");  // 58 of 61 layers, 8 of 256 experts
  CHECK(deepseek.total == std::int64_t{58} * 256 * 3 * 7168 * 2048);
  CHECK(deepseek.active == deepseek.total / 32);
  CHECK(experts_of(R"({"model_type": "llama"})").total == 0);
}

TEST_CASE("tokens are spread evenly over the experts") {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < 6; ++i) {
    const std::int64_t tokens = hf::tokens_of_expert(i, 6, 20);
    CHECK((tokens == 3 || tokens == 4));
    sum += tokens;
  }
  CHECK(sum == 20);
}
