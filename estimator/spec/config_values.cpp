#include "spec/config_values.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace memest::spec {

ConfigValue setting_of(const Json& json) {
  ConfigValue s;
  if (json.is_boolean())
    s.value = json.get<bool>();
  else if (json.is_number_integer())
    s.value = json.get<std::int64_t>();
  else if (json.is_number())
    s.value = json.get<double>();
  else if (json.is_string())
    s.value = json.get<std::string>();
  else if (json.is_array()) {
    ConfigValue::List list;
    for (auto& item : json) list.push_back(setting_of(item));
    s.value = std::move(list);
  } else if (json.is_object()) {
    ConfigValue::Object object;
    for (auto& [key, value] : json.items()) object.emplace_back(key, setting_of(value));
    s.value = std::move(object);
  }
  return s;
}

void override_inputs(nn::Model& model, const ReadOptions& options) {
  for (auto& given : options.inputs) {
    auto it = std::find_if(model.inputs.begin(), model.inputs.end(), [&](auto& i) { return i.name == given.name; });
    if (it == model.inputs.end()) {
      std::vector<std::string> names;
      for (auto& i : model.inputs) names.push_back(i.name);
      throw Error(fmt::format("--input: the model has no input '{}'", given.name.substr(0, 60)), "it has " + join(names, ", "));
    }
    it->shape.clear();
    for (auto& part : given.shape) it->shape.emplace_back(part);
    if (given.dtype) it->dtype = *given.dtype;
  }
}

}  // namespace memest::spec
