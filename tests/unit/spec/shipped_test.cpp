// The specs that ship: each is read and counts what PyTorch counts for the eager model (shipped_counts.txt, made by scripts/export_spec.py
// --counts).
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "base/error.h"
#include "spec/reader.h"
#include "unit/fake/fixture.h"

using namespace memest;
namespace fs = std::filesystem;

namespace {
const fs::path kRoot = MEMEST_SOURCE_DIR;

spec::ReadOptions batch_of(std::int64_t batch) {
  spec::ReadOptions options;
  options.sizes = {{"batch", batch}};
  return options;
}

std::unique_ptr<nn::Model> read_text(const std::string& text) {
  const fs::path path = fs::temp_directory_path() / ("memest_shipped_test_" + std::to_string(std::hash<std::string>{}(text)) + ".json");
  std::ofstream(path) << text;
  auto model = spec::read_model(path.string(), batch_of(1));
  fs::remove(path);
  return model;
}
}  // namespace

TEST_CASE("shipped specs count what PyTorch counts") {
  std::ifstream file(kRoot / "tests/unit/spec/shipped_counts.txt");
  std::map<std::string, std::vector<std::int64_t>> expected;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string name;
    std::int64_t parameters = 0, buffers = 0, bytes = 0;
    words >> name >> parameters >> buffers >> bytes;
    expected[name] = {parameters, buffers, bytes};
  }
  REQUIRE(expected.size() >= 41);
  for (auto& entry : fs::directory_iterator(kRoot / "model_specs")) {
    INFO(entry.path().string());
    CHECK(expected.contains(entry.path().stem().string()));  // a shipped spec without a count
  }
  for (auto& [name, counts] : expected) {
    INFO(name);
    TestRun run;
    auto model = spec::read_model((kRoot / "model_specs" / (name + ".json")).string(), batch_of(1));
    std::int64_t parameters = 0, bytes = 0;
    for (auto& p : model->root->parameters()) parameters += p.numel();
    auto buffers = model->root->named_buffers();
    for (auto& [path, b] : buffers) bytes += b.numel() * item_size(b.dtype());
    CHECK(parameters == counts[0]);
    CHECK(std::int64_t(buffers.size()) == counts[1]);
    CHECK(bytes == counts[2]);
  }
}

TEST_CASE("the classes of a shipped spec are a size") {
  TestRun run;
  const std::string path = (kRoot / "model_specs/resnet18.json").string();
  spec::ReadOptions options = batch_of(1);
  options.sizes.emplace_back("classes", 10);
  auto model = spec::read_model(path, options);
  const auto parameters = model->root->named_parameters();
  REQUIRE(parameters.back().first == "fc.bias");
  CHECK(parameters.back().second.numel() == 10);
}

TEST_CASE("layers keep the names that a spec gives them") {
  TestRun run;
  const std::string head = R"({"memest_spec": 1, "inputs": [{"name": "x", "shape": ["batch", 4]}], "layers": [)";
  auto model = read_text(
      head +
      R"({"type": "Linear", "name": "first", "in_features": 4, "out_features": 4}, {"type": "Linear", "in_features": 4, "out_features": 4}]})");
  const auto parameters = model->root->named_parameters();
  REQUIRE(parameters.size() == 4);
  CHECK(parameters[0].first == "first.weight");
  CHECK(parameters[2].first == "1.weight");
  CHECK_THROWS_AS(read_text(head + R"({"type": "ReLU", "name": "a"}, {"type": "ReLU", "name": "a"}]})"), Error);
  CHECK_THROWS_AS(read_text(head + R"({"type": "ReLU", "name": "a.b"}]})"), Error);
  CHECK_THROWS_AS(read_text(head + R"({"type": "ReLU", "name": "a", "repeat": 2}]})"), Error);
}

TEST_CASE("$training in a graph follows the mode") {
  TestRun run;
  auto model = read_text(R"({"memest_spec": 1, "inputs": [{"name": "x", "shape": ["batch", 128]}],
    "nodes": [{"name": "x", "op": "placeholder"},
              {"name": "y", "op": "call_function", "target": "dropout", "args": ["%x", 0.5, "$training"]},
              {"name": "output", "op": "output", "args": ["%y"]}]})");
  const Tensor x = empty({1, 128}, DType::float32);
  run.since();
  model->root->train(false);
  model->root->call({x});
  CHECK(run.events().empty());
  model->root->train(true);
  model->root->call({x});
  CHECK(!run.events().empty());
}
