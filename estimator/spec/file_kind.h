// What a file that no reader takes is, for one clear message.
#pragma once
#include <string>

#include "base/error.h"

namespace memest::spec {

/// `head`: its first 4 KiB.
Error not_a_model(const std::string& path, const std::string& head);

}  // namespace memest::spec
