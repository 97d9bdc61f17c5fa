// Quantised models and LoRA against recorded runs: each line of quantize.txt, allocation by allocation.
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/text.h"
#include "estimate.h"

using namespace memest;
namespace fs = std::filesystem;

namespace {

EstimateRequest request_of(const std::string& how) {
  EstimateRequest r;
  r.read.use_cache = false;
  std::istringstream words(how);
  for (std::string word; words >> word;) {
    const auto equals = word.find('=');
    const std::string key = word.substr(0, equals), value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (key == "batch") r.run.batches = {*parse_int(value)};
    if (key == "batch" || key == "seq") r.read.sizes.emplace_back(key, *parse_int(value));
    if (key == "precision") r.run.precision = run::parse_precision(value);
    if (key == "quant") r.run.quantization = nn::parse_quantization(value);
    if (key == "lora") r.run.lora = run::parse_lora(value);
    if (key == "kbit") r.run.kbit_training = r.read.checkpoint = r.read.reentrant = true;
    if (key == "task") r.read.task = value;
    if (key == "attention") r.read.attention = value;
    if (key == "gpu") r.gpu = value;
    if (key == "use_cache") r.read.use_cache = true;
    if (key == "infer") r.run.mode = run::Mode::infer, r.read.training = false;
    if (key == "checkpoint") {
      r.run.checkpointing = run::parse_checkpointing(value);
      r.run.checkpointing_given = true;
      r.read.checkpoint = r.run.checkpointing.where == run::Checkpointing::Where::full;
      r.read.reentrant = r.run.checkpointing.reentrant;
    }
  }
  return r;
}

}  // namespace

TEST_CASE("quantised weights and adapters allocate what bitsandbytes and peft allocate") {
  std::ifstream file(std::string(MEMEST_SOURCE_DIR) + "/tests/unit/run/quantize.txt");
  int rows = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const auto first = line.find('|'), second = line.find('|', first + 1);
    std::istringstream numbers(line.substr(0, first));
    std::size_t allocations = 0;
    std::uint64_t hash = 0;
    Bytes peak = 0, reserved = 0;
    numbers >> allocations >> hash >> peak >> reserved;
    INFO(line);
    const std::string model = line.substr(line.find('{', second));
    const fs::path path = fs::temp_directory_path() / ("memest_quantize_" + std::to_string(std::hash<std::string>{}(line)) + ".json");
    std::ofstream(path) << model;
    EstimateRequest request = request_of(line.substr(first + 1, second - first - 1));
    request.spec = path.string();
    if (model.find("model_type") == std::string::npos) request.read.use_cache.reset();
    const Estimate e = estimate(request);
    fs::remove(path);
    std::size_t count = 0;
    std::uint64_t found = 0xcbf29ce484222325;
    for (auto& event : e.trace().events) {
      if (event.kind != MemoryEvent::Kind::alloc) continue;
      ++count;
      for (int i = 0; i < 8; ++i) found = (found ^ (std::uint64_t(event.bytes) >> (8 * i) & 255)) * 0x100000001b3;
    }
    CHECK(count == allocations);
    CHECK(found == hash);
    CHECK(e.replay.allocated_peak == peak);
    CHECK(e.replay.reserved_peak == reserved);
    ++rows;
  }
  CHECK(rows >= 24);
}
