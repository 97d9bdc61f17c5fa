#include "device/release_text.h"

#include <charconv>

namespace memest {

std::optional<std::string_view> after_release(std::string_view text, int& major, int& minor) {
  const char* end = text.data() + text.size();
  auto [dot, first] = std::from_chars(text.data(), end, major);
  if (first != std::errc{} || dot == end || *dot != '.') return {};
  auto [rest, second] = std::from_chars(dot + 1, end, minor);
  if (second != std::errc{}) return {};
  return std::string_view(rest, std::size_t(end - rest));
}

}  // namespace memest
