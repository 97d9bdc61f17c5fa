// memest_torch.so and memest_cuda.so: what needs LibTorch. One is looked for and loaded where a request needs it, in a process of its own,
// so that a file that makes LibTorch crash is answered with a message, and LibTorch's memory, and the GPU's, goes with it.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace memest::spec {

enum class Plugin { torch, cuda };

/// MEMEST_TORCH_PLUGIN (MEMEST_CUDA_PLUGIN), else memest_torch.so (memest_cuda.so) beside the executable or in ../lib/memest; none where it
/// is not there.
std::optional<std::string> plugin_path(Plugin which);

/// The reply to a request (torch/plugin.h). Throws Error where there is no plugin, with how to get it, and for what the plugin refuses.
nlohmann::ordered_json call_torch_plugin(const nlohmann::ordered_json& request, Plugin which = Plugin::torch);

}  // namespace memest::spec
