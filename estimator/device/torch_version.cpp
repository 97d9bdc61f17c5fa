#include "device/torch_version.h"

#include <charconv>

namespace memest {

std::optional<TorchVersion> TorchVersion::parse(std::string_view text) {
  TorchVersion version{0, 0};
  const char* end = text.data() + text.size();
  auto [dot, first] = std::from_chars(text.data(), end, version.major);
  if (first != std::errc{} || dot == end || *dot != '.') return {};
  auto [rest, second] = std::from_chars(dot + 1, end, version.minor);
  if (second != std::errc{} || (rest != end && *rest != '.' && *rest != '+')) return {};
  if (version < oldest() || version > newest()) return {};
  return version;
}

}  // namespace memest
