#include "spec/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/text.h"
#include "spec/file_kind.h"

namespace memest::spec {
namespace fs = std::filesystem;
namespace {

std::vector<const Reader*>& registered() {
  static std::vector<const Reader*> readers;
  return readers;
}

std::string head_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string head(4096, '\0');
  file.read(head.data(), std::streamsize(head.size()));
  head.resize(std::size_t(file.gcount()));
  return head;
}

}  // namespace

Reader::Reader(const char* reader_name) : name(reader_name) { registered().push_back(this); }

std::optional<std::string> shipped_folder() {
  std::vector<fs::path> places;
  if (const char* set = std::getenv("MEMEST_SPECS")) places.emplace_back(set);
  std::error_code problem;
  const fs::path exe = fs::read_symlink("/proc/self/exe", problem);
  if (!problem) {
    places.push_back(exe.parent_path() / ".." / "share" / "memest" / "model_specs");
    places.push_back(exe.parent_path() / "model_specs");
    places.push_back(exe.parent_path() / ".." / ".." / "model_specs");
  }
  for (auto& place : places)
    if (fs::is_directory(place, problem)) return place.lexically_normal().string();
  return {};
}

std::vector<std::string> shipped_specs() {
  std::vector<std::string> names;
  if (auto folder = shipped_folder())
    for (auto& entry : fs::directory_iterator(*folder))
      if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

namespace {

/// The options that choose how a configuration's model is built, of a file that has its model in it.
void refuse_building_options(const ReadOptions& o) {
  const std::pair<const char*, bool> given[] = {{"--attn", o.attention != "sdpa"},
                                                {"--task", !o.task.empty()},
                                                {"--experts", !o.experts.empty()},
                                                {"--use-cache", o.use_cache.has_value()},
                                                {"--cache", !o.cache.empty()},
                                                {"--loss chunked", o.chunked_loss},
                                                {"--transformers-version", o.transformers.has_value()}};
  for (auto& [option, there] : given)
    if (there)
      throw Error(fmt::format("{} chooses how a Hugging Face config's model is built, and this file says itself what runs", option),
                  "leave it out");
}

}  // namespace

std::unique_ptr<nn::Model> read_model(const std::string& spec, const ReadOptions& options) {
  std::error_code problem;
  fs::path path = spec;
  const std::string source = spec;
  if (!fs::exists(path, problem)) {
    const bool plain = spec.find('/') == std::string::npos && !spec.empty();
    const auto folder = shipped_folder();
    if (plain && folder && fs::exists(fs::path(*folder) / (spec + ".json"), problem)) {
      path = fs::path(*folder) / (spec + ".json");
    } else {
      throw Error(fmt::format("'{}' is neither a file nor a spec that ships with memest", spec.substr(0, 200)),
                  plain ? did_you_mean(spec, shipped_specs()) : std::string());
    }
  }
  const bool folder = fs::is_directory(path, problem);
  if (!folder && !fs::is_regular_file(path, problem)) throw Error("this is no regular file").within(spec);
  const std::string head = folder ? std::string() : head_of(path);
  for (auto* reader : registered()) {
    if (!reader->recognises(path.string(), head)) continue;
    try {
      if (!reader->builds()) refuse_building_options(options);
      auto model = reader->read(path.string(), options);
      model->source = source;
      if (model->name.empty()) model->name = path.stem().string();
      return model;
    } catch (Error& e) {
      e.within(spec);
      throw;
    }
  }
  if (folder) throw Error("this folder holds no config.json and no spec that memest reads").within(spec);
  if (head.find_first_not_of(" \t\r\n") == std::string::npos)
    throw Error("the file is empty", "a spec is a JSON object that starts with { \"memest_spec\": 1, ...").within(spec);
  throw not_a_model(path.string(), head).within(spec);
}

}  // namespace memest::spec
