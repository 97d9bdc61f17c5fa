#include "spec/probe.h"

#include <fmt/format.h>

#include <cmath>

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

std::vector<std::int64_t> numbers_of(const Dims& dims) { return {dims.begin(), dims.end()}; }

Json json_of(double v) {
  if (std::isfinite(v)) return v;
  return {{"float", std::isnan(v) ? "nan" : v > 0 ? "inf" : "-inf"}};
}
Json json_of(const Value& value);
struct ToJson {
  Json operator()(None) const { return nullptr; }
  Json operator()(const Tensor&) const { throw Error("a program's value holds a tensor"); }
  Json operator()(bool v) const { return v; }
  Json operator()(std::int64_t v) const { return v; }
  Json operator()(double v) const { return json_of(v); }
  Json operator()(const std::string& v) const { return v; }
  Json operator()(DType v) const { return {{"dtype", name_of(v)}}; }
  Json operator()(MemoryFormat v) const {
    static constexpr const char* names[] = {"contiguous", "preserve", "channels_last", "channels_last_3d"};
    return {{"memory_format", names[int(v)]}};
  }
  Json operator()(const std::shared_ptr<List>& v) const {
    Json list = Json::array();
    for (auto& item : v->items) list.push_back(json_of(item));
    return list;
  }
  Json operator()(const std::shared_ptr<Dict>& v) const {
    Json object = Json::object();
    for (auto& [key, item] : v->items) {
      auto* dtype = std::get_if<DType>(&item);
      object[key] = dtype ? Json(name_of(*dtype)) : json_of(item);
    }
    return object;
  }
  Json operator()(const std::shared_ptr<Slice>&) const { throw Error("an op takes no slice"); }
  Json operator()(Ellipsis) const { throw Error("an op takes no ellipsis"); }
};
Json json_of(const Value& value) { return std::visit(ToJson{}, value); }

// ---- instructions
Json json_of(const Program::Make& m) {
  Json j{{"make", m.value},
         {"category", name_of(m.category)},
         {"shape", numbers_of(m.sizes)},
         {"strides", numbers_of(m.strides)},
         {"dtype", name_of(m.dtype)}};
  if (m.requires_grad) j["requires_grad"] = true;
  if (m.host) j["host"] = true;
  if (m.storage_bytes != checked_mul(m.sizes.numel(), item_size(m.dtype)))  // shared with others
    j["storage"] = {{"id", m.block}, {"bytes", m.storage_bytes}, {"offset", m.offset}};
  return j;
}
Json json_of(const Program::Call& c) {
  const Schema& schema = c.op->schema();
  Json j{{"call", schema.name}, {"module", c.module}, {"args", Json::object()}, {"result", json_of(c.result)}};
  if (!schema.overload.empty()) j["overload"] = schema.overload;
  std::size_t i = 0;
  for (auto& argument : schema.arguments)
    if (argument.kind != Kind::ignored) {
      const bool unused = argument.name.starts_with('_');  // by memest: _non_blocking
      j["args"][argument.name.substr(unused ? 1 : 0)] = json_of(c.arguments.at(i++));
    }
  if (!c.grad) j["grad"] = false;
  if (c.autocast) j["autocast"] = true;
  if (c.host) j["host"] = true;
  return j;
}
Json json_of(const Program::Drop& d) { return {{"drop", d.values}}; }
Json json_of(const Program::Step& s) { return {{"phase", name_of(s.phase)}, {"step", s.step}, {"micro", s.micro}}; }
Json json_of(const Program::Backward& b) { return {{"backward", b.loss}}; }
Json json_of(const Program::Region& r) { return {{"region", r.begins}, {"holds", r.holds}}; }
Json json_of(const Program::ClearAutocast&) { return {{"clear_autocast", true}}; }

Json json_of(const Program& program) {
  Json j{{"states", Json::array()}, {"instructions", Json::array()}, {"modules", Json::array()}};
  for (auto& m : program.states) j["states"].push_back(json_of(m));
  for (auto& instruction : program.instructions)
    j["instructions"].push_back(std::visit([](auto& one) { return json_of(one); }, instruction));
  for (auto& m : program.modules) j["modules"].push_back(m.path);
  return j;
}

ProbeResult::Gpu gpu_of(const Json& reply) {
  ProbeResult::Gpu gpu{reply.at("device"),         reply.at("total_memory"),  reply.at("context"),
                       reply.at("allocated_peak"), reply.at("reserved_peak"), reply.at("retries")};
  if (reply.contains("step_ms")) gpu.milliseconds = reply.at("step_ms").get<std::vector<double>>();
  if (!reply.contains("out_of_memory")) return gpu;
  const Json& j = reply.at("out_of_memory");
  gpu.out_of_memory = ProbeResult::OutOfMemory{j.at("step"), j.at("phase"), j.value("op", ""), j.value("module", ""), j.at("message")};
  return gpu;
}

}  // namespace

LibTorchGpu gpu_of_libtorch() {
  const Json reply = call_torch_plugin({{"what", "device"}}, Plugin::cuda);
  return {reply.at("device"), reply.at("total_memory"), reply.value("torch", "")};
}

ProbeResult probe(const ProbeRequest& r) {
  Json request{{"what", "probe"}, {"device", r.device}, {"training", r.training}, {"optimizer", optimizer_of(r.optimizer)}};
  request["math_attention"] = r.math_attention;
  if (r.program) {
    request["program"] = json_of(*r.program);
    if (r.autocast) request["autocast"] = name_of(*r.autocast);
    request["scaler"] = r.scaler;
  } else {
    request["path"] = r.path;
    request["method"] = r.method.empty() ? "forward" : r.method;
    request["loss"] = r.loss;
    request["steps"] = r.steps;
    if (r.dtype != DType::float32) request["dtype"] = name_of(r.dtype);
    for (auto& input : r.inputs)
      request["inputs"].push_back({{"name", input.name}, {"shape", numbers_of(input.sizes)}, {"dtype", name_of(input.dtype)}});
  }
  Json reply;
  try {
    reply = call_torch_plugin(request, r.device == "cuda" ? Plugin::cuda : Plugin::torch);
  } catch (Error& e) {
    throw e.within(r.path);
  }
  ProbeResult result;
  result.torch = reply.at("torch");
  result.allocations = reply.at("allocations");
  result.constants = reply.at("constants_bytes");
  if (r.device == "cuda") result.gpu = gpu_of(reply);
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
