// What memest_torch.so answers.
#include <torch/version.h>

#include "torch/plugin.h"

namespace memest::plugin {

Json dispatch(const Json& request) {
  const std::string what = request.value("what", "");
  if (what == "version") return {{"torch", TORCH_VERSION}};
  register_meta_kernels();
  if (what == "record") return record_torchscript(request);
  if (what == "probe") return probe(request);
  throw BadRequest{"the plugin knows no request '" + what + "'", "it is of another version of memest"};
}

}  // namespace memest::plugin
