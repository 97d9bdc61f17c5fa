#include "models/hf/release.h"

namespace memest::hf {

TransformersVersion& release() {
  thread_local TransformersVersion version = TransformersVersion::newest();
  return version;
}

}  // namespace memest::hf
