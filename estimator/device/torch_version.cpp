#include "device/torch_version.h"

#include "device/release_text.h"

namespace memest {

std::optional<TorchVersion> TorchVersion::parse(std::string_view text) {
  TorchVersion version{0, 0};
  const auto rest = after_release(text, version.major, version.minor);
  if (!rest || (!rest->empty() && rest->front() != '.' && rest->front() != '+')) return {};
  if (version < oldest() || version > newest()) return {};
  return version;
}

}  // namespace memest
