// The parts of the plugins. Everything that includes LibTorch lies in this folder, and is built into memest_torch.so and memest_cuda.so
// alone.
#pragma once
#include <exception>
#include <nlohmann/json.hpp>
#include <string>

#include <c10/core/ScalarType.h>

namespace memest::plugin {
using Json = nlohmann::json;

/// A mistake of the user's: its message is shown as it is.
struct BadRequest {
  std::string message, hint;
};

/// The reply to a request, of each plugin its own.
Json dispatch(const Json& request);

/// What LibTorch says of a failure, in one line without its stack trace.
std::string message_of(const std::exception& e);

/// {"path", "method", "training", "grad", "dtype", "inputs": [{"name", "shape", "dtype"}]} of a TorchScript file -> a tape: its modules,
/// parameters and buffers, and each aten call of one run of the method, with its arguments, results and the values that die after it.
Json record_torchscript(const Json& request);
/// One file or one program run: real forward, backward and optimizer steps with their memory counted, phase by phase.
Json probe(const Json& request);

/// Meta kernels for what LibTorch implements in Python only; call once before anything runs on the meta device.
void register_meta_kernels();

/// memest's names of types ("float32"); throws BadRequest for one that memest does not know.
std::string name_of(c10::ScalarType type);
c10::ScalarType type_named(const std::string& name);

}  // namespace memest::plugin
