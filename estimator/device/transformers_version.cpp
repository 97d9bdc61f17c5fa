#include "device/transformers_version.h"

#include <charconv>

namespace memest {

std::optional<TransformersVersion> TransformersVersion::parse(std::string_view text) {
  TransformersVersion version{0, 0};
  const char* end = text.data() + text.size();
  auto [dot, first] = std::from_chars(text.data(), end, version.major);
  if (first != std::errc{} || dot == end || *dot != '.') return {};
  auto [rest, second] = std::from_chars(dot + 1, end, version.minor);
  if (second != std::errc{} || (rest != end && (*rest != '.' || rest + 1 == end))) return {};
  constexpr int kLastMinorOf4 = 57;
  if (version < oldest() || version > newest() || (version.major == 4 && version.minor > kLastMinorOf4)) return {};
  return version;
}

TransformersVersion TransformersVersion::beside(TorchVersion torch) {
  if (torch.at_least(10)) return newest();
  if (torch.at_least(8)) return {4, 57};
  return torch.at_least(7) ? TransformersVersion{4, 55} : TransformersVersion{4, 51};
}

}  // namespace memest
