#include "spec/probe.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "spec/torch_plugin.h"

namespace memest::spec {
namespace {
using Json = nlohmann::ordered_json;

/// "sgd:momentum=0.9,nesterov=true"
Json optimizer_of(const std::string& text) {
  const auto colon = text.find(':');
  Json j{{"name", text.substr(0, colon)}};
  if (colon == std::string::npos) return j;
  for (auto& part : split(text.substr(colon + 1), ',')) {
    const auto equals = part.find('=');
    const std::string key = part.substr(0, equals), value = equals == std::string::npos ? "true" : part.substr(equals + 1);
    if (value == "true" || value == "false")
      j[key] = value == "true";
    else if (const auto number = parse_number(value))
      j[key] = *number;
    else
      throw Error(fmt::format("--optimizer: '{}' is no number", value.substr(0, 40)));
  }
  return j;
}

}  // namespace

ProbeResult probe_torchscript(const ProbeRequest& r) {
  Json request{{"what", "probe"},    {"path", r.path},          {"method", r.method.empty() ? "forward" : r.method},
               {"device", r.device}, {"loss", r.loss},          {"training", r.training},
               {"steps", r.steps},   {"inputs", Json::array()}, {"optimizer", optimizer_of(r.optimizer)}};
  if (r.dtype != DType::float32) request["dtype"] = name_of(r.dtype);
  for (auto& input : r.inputs)
    request["inputs"].push_back({{"name", input.name},
                                 {"shape", std::vector<std::int64_t>(input.sizes.begin(), input.sizes.end())},
                                 {"dtype", name_of(input.dtype)}});
  Json reply;
  try {
    reply = call_torch_plugin(request);
  } catch (Error& e) {
    throw e.within(r.path);
  }
  ProbeResult result;
  result.torch = reply.at("torch");
  result.allocations = reply.at("allocations");
  result.constants = reply.at("constants_bytes");
  result.recurrent = reply.value("recurrent", "");
  for (auto& p : reply.at("phases")) {
    ProbeResult::Phase phase{p.at("end_bytes"), p.at("peak_bytes"), {}};
    std::size_t k = 0;
    for (const char* kind : {"parameter", "buffer", "input", "gradient", "optimizer_state", "activation"})
      phase.kinds[k++] = p.at("categories").at(kind);
    result.phases.push_back(phase);
  }
  return result;
}

}  // namespace memest::spec
