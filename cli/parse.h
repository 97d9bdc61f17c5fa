// Texts of the command line to values; throws Error with what is allowed.
#pragma once
#include <fmt/core.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"

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
