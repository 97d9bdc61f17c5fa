// The quantization_config of a config.json.
#pragma once
#include <memory>

#include "base/config.h"
#include "nn/quantization.h"

namespace memest::spec {

/// How the checkpoint's weights are stored; null where they are plain, or where the runtime's card has transformers 5.24 make them so.
/// Throws Error for a method that memest does not read.
std::shared_ptr<const nn::Quantization> read_quantization(const Config& config);

}  // namespace memest::spec
