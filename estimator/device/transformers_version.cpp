#include "device/transformers_version.h"

#include "device/release_text.h"

namespace memest {

std::optional<TransformersVersion> TransformersVersion::parse(std::string_view text) {
  TransformersVersion version{0, 0};
  const auto rest = after_release(text, version.major, version.minor);
  if (!rest || (!rest->empty() && (rest->front() != '.' || rest->size() == 1))) return {};
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
