#include "nn/text_options.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"

namespace memest {
namespace {

Value parse_value(const std::string& text) {
  std::string low;
  for (char c : text) low += char(c >= 'A' && c <= 'Z' ? c + 32 : c);
  if (low == "true" || low == "yes") return true;
  if (low == "false" || low == "no") return false;
  if (low == "none") return None{};
  if (auto i = parse_int(text)) return *i;
  if (auto d = parse_number(text)) return *d;
  if (text.find('+') != std::string::npos) {
    Values items;
    for (auto& part : split(text, '+')) items.push_back(parse_value(part));
    return make_tuple(std::move(items));
  }
  return text;
}

}  // namespace

NamedOptions parse_named_options(const std::string& option, const std::string& text, const char* example) {
  const auto colon = text.find(':');
  NamedOptions parsed{text.substr(0, colon), {}};
  if (colon == std::string::npos) return parsed;
  for (auto& part : split(std::string_view(text).substr(colon + 1), ',')) {
    const auto equals = part.find('=');
    if (equals == std::string::npos || equals == 0)
      throw Error(fmt::format("{} {}: '{}' is not of the form key=value", option, text, part), std::string("for example ") + example);
    parsed.keywords.emplace_back(part.substr(0, equals), parse_value(part.substr(equals + 1)));
  }
  return parsed;
}

}  // namespace memest
