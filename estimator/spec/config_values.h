// What the readers of configurations share: JSON as plain values, and --input.
#pragma once
#include "base/config.h"
#include "spec/json.h"
#include "spec/reader.h"

namespace memest::spec {

/// A JSON value without its library.
ConfigValue setting_of(const Json& json);
/// Other shapes and types of the model's inputs; throws Error for a name that it does not have.
void override_inputs(nn::Model& model, const ReadOptions& options);

}  // namespace memest::spec
