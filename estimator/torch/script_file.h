// A TorchScript file loaded for a device, and the arguments of a call of its method.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>

#include <string>
#include <vector>

#include "torch/plugin.h"

namespace memest::plugin {

struct Input {
  std::string name;
  at::Tensor tensor;
};

struct ScriptFile {
  torch::jit::Module module;
  std::string method;
  c10::ScalarType dtype = c10::kFloat;  ///< of its first floating parameter: inputs have it unless the request says otherwise
  bool default_types = false;           ///< an input's type was not given
  std::vector<Input> inputs;            ///< filled in by make_arguments
  Json packed = Json::array();          ///< of quantised modules: [{"path", "bytes"}] of weights that only their kernels can read
};

/// {"path", "method", "training", "dtype"}. Constants of the graph that hold numbers stay on the CPU, where they have values.
ScriptFile load_script(const Json& request, c10::Device device);

/// The method's arguments from [{"name", "shape", "dtype"}]: x=8x20, or pair.0=3x4 and feats.left=3x8 for tuples, lists and dictionaries.
std::vector<c10::IValue> make_arguments(ScriptFile& file, const Json& inputs, c10::Device device);

}  // namespace memest::plugin
