// memest_torch.so: what needs LibTorch. It is looked for and loaded where a request needs it, in a process of its own, so that a file that
// makes LibTorch crash is answered with a message, and LibTorch's memory goes with it.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace memest::spec {

/// MEMEST_TORCH_PLUGIN, else memest_torch.so beside the executable or in ../lib/memest; none where it is not there.
std::optional<std::string> torch_plugin_path();

/// The reply to a request (torch/plugin.h). Throws Error where there is no plugin, with how to get it, and for what the plugin refuses.
nlohmann::ordered_json call_torch_plugin(const nlohmann::ordered_json& request);

}  // namespace memest::spec
