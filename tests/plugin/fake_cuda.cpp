// Stands for memest_cuda.so where there is no GPU: replies are the lines of the file that FAKE_CUDA names, the first to "device", the
// second to "probe".
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "spec/torch_plugin_abi.h"

extern "C" {
__attribute__((visibility("default"))) int memest_torch_abi() { return MEMEST_TORCH_PLUGIN_ABI; }
__attribute__((visibility("default"))) char* memest_torch_run(const char* request) noexcept {
  const char* path = std::getenv("FAKE_CUDA");
  std::ifstream file(path ? path : "");
  std::string line;
  std::getline(file, line);
  if (!std::strstr(request, "\"what\":\"device\"")) std::getline(file, line);
  return strdup(line.c_str());
}
}
