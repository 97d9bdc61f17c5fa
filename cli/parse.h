// Texts of the command line to values; throws Error with what is allowed.
#pragma once
#include <fmt/core.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "device/torch_version.h"
#include "device/transformers_version.h"

namespace memest::cli {

inline std::int64_t positive(const char* option, const std::string& text) {
  auto value = parse_int(text);
  if (!value || *value < 1) throw Error(fmt::format("{}: '{}' is not a positive integer", option, text.substr(0, 60)));
  return *value;
}

inline double positive_number(const char* option, const std::string& text) {
  auto value = parse_number(text);
  if (!value || !(*value > 0)) throw Error(fmt::format("{}: '{}' is not a positive number", option, text.substr(0, 60)));
  return *value;
}

inline TorchVersion torch_version(const std::string& text) {
  if (auto version = TorchVersion::parse(text)) return *version;
  throw Error(fmt::format("--torch-version: '{}' is no release that memest models", text.substr(0, 40)), "it models 2.4 to 2.15");
}

inline TransformersVersion transformers_version(const std::string& text) {
  if (auto version = TransformersVersion::parse(text)) return *version;
  throw Error(fmt::format("--transformers-version: '{}' is no release that memest models", text.substr(0, 40)), "it models 4.48 to 5.24");
}

inline Bytes gpu_memory(const std::string& text) {
  const auto bytes = parse_size(text);
  if (!bytes || *bytes == 0)
    throw Error(fmt::format("--gpu-memory: '{}' is no size", text.substr(0, 60)), "for example 24GiB, 24GB, 24000MiB or bytes");
  return *bytes;
}

template <class V>
V one_of(const char* option, const std::string& text, std::initializer_list<std::pair<const char*, V>> choices) {
  std::vector<std::string> names;
  for (auto& [name, value] : choices) {
    if (text == name) return value;
    names.emplace_back(name);
  }
  throw Error(fmt::format("{}: '{}' is none of {}", option, text.substr(0, 60), join(names, ", ")), did_you_mean(text, names));
}

}  // namespace memest::cli
