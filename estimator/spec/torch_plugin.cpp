#include "spec/torch_plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "spec/torch_plugin_abi.h"

namespace memest::spec {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;
constexpr unsigned kMostSeconds = 600;
struct Named {
  const char *file, *variable, *how_to_get;
};
const Named& named(Plugin which) {
  static constexpr Named names[] = {
      {"memest_torch.so", "MEMEST_TORCH_PLUGIN",
       "build memest where LibTorch 2.6 or newer is found (pip install torch, an unpacked libtorch, or libtorch-dev; "
       "-DLibTorch_ROOT=FOLDER), or name the plugin in MEMEST_TORCH_PLUGIN"},
      {"memest_cuda.so", "MEMEST_CUDA_PLUGIN",
       "build memest where a LibTorch with CUDA is found, and the headers of the CUDA runtime (pip install torch brings both; "
       "-DLibTorch_ROOT=FOLDER), or name the plugin in MEMEST_CUDA_PLUGIN"}};
  return names[int(which)];
}

std::string text_of(const Json& reply) { return reply.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// In the child: the plugin's reply, or an object whose "load" says why there is none.
std::string run_plugin(const std::string& path, const std::string& request) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return text_of({{"load", dlerror()}});
  const auto abi = reinterpret_cast<memest_torch_abi_fn>(dlsym(library, "memest_torch_abi"));
  const auto run = reinterpret_cast<memest_torch_run_fn>(dlsym(library, "memest_torch_run"));
  if (!abi || !run || abi() != MEMEST_TORCH_PLUGIN_ABI) return text_of({{"load", "it is of another version of memest"}});
  const char* reply = run(request.c_str());
  return reply ? reply : text_of({{"error", "out of memory"}});
}

void write_all(int file, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = write(file, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    done += std::size_t(n);
  }
}
std::string read_all(int file) {
  std::string text;
  std::vector<char> buffer(1 << 16);
  for (;;) {
    const ssize_t n = read(file, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(buffer.data(), std::size_t(n));
  }
}

}  // namespace

std::optional<std::string> plugin_path(Plugin which) {
  const Named& n = named(which);
  if (const char* set = std::getenv(n.variable); set && *set) return set;
  std::error_code problem;
  const fs::path exe = fs::read_symlink("/proc/self/exe", problem);
  if (problem) return {};
  for (const char* place : {"", "../lib/memest/"})
    if (const fs::path path = exe.parent_path() / (std::string(place) + n.file); fs::exists(path, problem)) return path.string();
  return {};
}

Json call_torch_plugin(const Json& request, Plugin which) {
  const auto path = plugin_path(which);
  const Named& n = named(which);
  if (!path) throw Error(fmt::format("this needs LibTorch, and memest's plugin for it ({}) is not there", n.file), n.how_to_get);
  int ends[2];
  if (pipe(ends) != 0) throw Error(fmt::format("cannot start LibTorch: {}", std::strerror(errno)));
  const std::string text = text_of(request);
  const pid_t child = fork();
  if (child < 0) {
    close(ends[0]), close(ends[1]);
    throw Error(fmt::format("cannot start LibTorch: {}", std::strerror(errno)));
  }
  if (child == 0) {
    close(ends[0]);
    alarm(kMostSeconds);
    write_all(ends[1], run_plugin(*path, text));
    _exit(0);  // LibTorch's own end takes longer than its work
  }
  close(ends[1]);
  const std::string reply = read_all(ends[0]);
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) {
    if (WTERMSIG(status) == SIGALRM) throw Error(fmt::format("LibTorch took longer than {} s", kMostSeconds));
    throw Error(fmt::format("LibTorch crashed ({})", strsignal(WTERMSIG(status))), "the file may be damaged");
  }
  Json json = Json::parse(reply, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw Error("LibTorch ended without an answer");
  if (json.contains("load")) throw Error(fmt::format("{} cannot be loaded: {}", *path, json["load"].get<std::string>()), n.how_to_get);
  if (json.contains("error")) throw Error(json["error"].get<std::string>(), json.value("hint", ""));
  return json;
}

}  // namespace memest::spec
