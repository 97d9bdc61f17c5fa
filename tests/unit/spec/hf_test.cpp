// Configurations of transformers and diffusers: each line of hf_counts.txt counts what transformers counts for its class, each line of
// published_counts.txt what is published of the model.
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "spec/reader.h"
#include "unit/fake/fixture.h"

using namespace memest;
namespace fs = std::filesystem;

static void check_counts(const char* list) {
  std::ifstream file(fs::path(MEMEST_SOURCE_DIR) / "tests/unit/spec" / list);
  REQUIRE(file);
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    INFO(line);
    std::istringstream words(line);
    std::string task, config;
    std::int64_t parameters = 0, buffers = 0, bytes = 0;
    words >> task >> parameters >> buffers >> bytes;
    std::getline(words, config);
    const fs::path path = fs::temp_directory_path() / ("memest_hf_test_" + std::to_string(std::hash<std::string>{}(line)) + ".json");
    std::ofstream(path) << config.substr(config.find('{'));
    TestRun run;
    spec::ReadOptions options;
    options.sizes = {{"batch", 1}};
    options.training = false;  // of some classes memest knows the parameters alone
    options.task = task == "-" ? "" : task;
    auto model = spec::read_model(path.string(), options);
    fs::remove(path);
    std::int64_t counted = 0, counted_bytes = 0;
    for (auto& p : model->root->parameters()) counted += p.numel();
    const auto named = model->root->named_buffers();
    for (auto& [name, b] : named) counted_bytes += b.numel() * item_size(b.dtype());
    CHECK(counted == parameters);
    CHECK(std::int64_t(named.size()) == buffers);
    CHECK(counted_bytes == bytes);
  }
}

TEST_CASE("a config.json counts what transformers counts") { check_counts("hf_counts.txt"); }
TEST_CASE("a config.json counts what is published") { check_counts("published_counts.txt"); }
