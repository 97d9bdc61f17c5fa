// config.json of a model of diffusers: one that names its class in _class_name.
#pragma once
#include <memory>

#include "spec/json.h"
#include "spec/reader.h"

namespace memest::spec {

inline bool is_diffusers_config(const Json& file) {
  return file.is_object() && file.contains("_class_name") && !file.contains("model_type");
}
std::unique_ptr<nn::Model> read_diffusers_config(const Json& file, const std::string& path, const ReadOptions& options);
/// A model_index.json names the parts of a pipeline, each in a folder of its own; throws Error that names them.
[[noreturn]] void refuse_pipeline(const std::string& model_index);

}  // namespace memest::spec
