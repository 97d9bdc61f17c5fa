#include "report/json.h"

#include <nlohmann/json.hpp>

namespace memest::report {
namespace {
using Json = nlohmann::ordered_json;

Json categories(const ByCategory& bytes) {
  Json j = Json::object();
  for (int i = 0; i < kCategoryCount; ++i)
    if (bytes[std::size_t(i)]) j[std::string(name_of(Category(i)))] = bytes[std::size_t(i)];
  return j;
}

/// Settings of the allocator that the run was given; --alloc-conf wins.
std::string alloc_conf(const Estimate& e) {
  std::string conf;
  for (auto& setting : e.settings) {
    if (setting.name == "alloc-conf" && !setting.value.empty()) return setting.value;
    if (setting.name == "env PYTORCH_ALLOC_CONF" || setting.name == "env PYTORCH_CUDA_ALLOC_CONF") conf = setting.value;
  }
  return conf;
}

}  // namespace

std::string to_json(const Estimate& e) {
  Json j;
  j["schema_version"] = 1;
  const run::RunResult& s = e.states;
  j["model"] = {
      {"source", e.source},
      {"kind", e.kind},
      {"name", e.name},
      {"parameters",
       {{"count", s.parameters}, {"trainable_count", s.trainable}, {"bytes", s.parameter_bytes}, {"trainable_bytes", s.trainable_bytes}}},
      {"buffers", {{"count", s.buffers}, {"bytes", s.buffer_bytes}}}};
  Json run = Json::object(), origins = Json::object();
  for (auto& setting : e.settings) {
    run[setting.name] = setting.value;
    origins[setting.name] = setting.origin;
  }
  Json inputs = Json::array();
  for (auto& input : s.inputs)
    inputs.push_back({{"name", input.name},
                      {"shape", std::vector<std::int64_t>(input.sizes.begin(), input.sizes.end())},
                      {"dtype", name_of(input.dtype)}});
  run["input_tensors"] = inputs;
  run["origins"] = origins;
  j["run"] = run;
  j["totals"] = {{"allocated_peak_bytes", e.replay.allocated_peak},
                 {"reserved_peak_bytes", e.replay.reserved_peak},
                 {"device_peak_bytes", e.device_peak}};
  j["peak"] = {{"step", e.peak_step},
               {"phase", name_of(e.peak_phase)},
               {"module", e.peak_module},
               {"op", e.peak_op},
               {"categories", categories(e.replay.at_peak)}};
  j["overhead"] = {{"cached_bytes", e.replay.reserved_peak - e.replay.allocated_peak}, {"context_bytes", e.context}};
  j["states"] = {{"parameters_bytes", s.parameter_bytes},
                 {"buffers_bytes", s.buffer_bytes},
                 {"gradients_bytes", s.gradient_bytes},
                 {"optimizer_state_bytes", s.optimizer_state_bytes}};
  if (s.master_bytes) j["states"]["master_weights_bytes"] = s.master_bytes;
  Json phases = Json::array();
  for (std::size_t i = 0; i < e.trace().phases.size(); ++i) {
    auto& mark = e.trace().phases[i];
    auto& bytes = e.replay.phases[i];
    if (mark.phase == Phase::load) continue;
    phases.push_back({{"step", mark.step},
                      {"micro", mark.micro},
                      {"phase", name_of(mark.phase)},
                      {"peak_bytes", bytes.peak},
                      {"end_bytes", bytes.end},
                      {"reserved_bytes", bytes.reserved_end},
                      {"flops", mark.flops}});
  }
  j["phases"] = phases;
  j["compute"] = {{"forward_flops", e.compute.forward_flops},
                  {"backward_flops", e.compute.backward_flops},
                  {"recomputed_flops", e.compute.recomputed_flops}};
  Json modules = Json::array();
  for (auto& m : e.modules)
    modules.push_back({{"path", m.path},
                       {"type", m.type},
                       {"parameters_bytes", m.parameters},
                       {"activations_bytes", m.activations},
                       {"parameters_cumulative_bytes", m.parameters_cumulative},
                       {"activations_cumulative_bytes", m.activations_cumulative}});
  j["modules"] = modules;
  if (e.fit) {
    Json gpu = e.fit->gpu.empty() ? Json(nullptr) : Json(e.fit->gpu);
    j["fit"] = {{"gpu", gpu}, {"capacity_bytes", e.fit->capacity}, {"free_bytes", e.fit->free}, {"fits", e.fit->fits}};
  } else {
    j["fit"] = nullptr;
  }
  if (s.host_bytes.saved_peak > 0 || s.host_bytes.optimizer_state > 0)
    j["host"] = {{"saved_tensors_peak_bytes", s.host_bytes.saved_peak}, {"optimizer_state_bytes", s.host_bytes.optimizer_state}};
  if (!e.alloc_what_if.empty()) {
    Json rows = Json::array();
    for (auto& row : e.alloc_what_if)
      rows.push_back({{"alloc_conf", row.alloc_conf},
                      {"reserved_peak_bytes", row.reserved_peak},
                      {"device_peak_bytes", row.device_peak},
                      {"fits", row.fits ? Json(*row.fits) : Json(nullptr)}});
    j["alloc_what_if"] = rows;
  }
  Json diagnostics = Json::array();
  for (auto& d : e.diagnostics.list())
    diagnostics.push_back(
        {{"severity", name_of(d.severity)}, {"code", d.code}, {"message", d.message}, {"where", d.where}, {"hint", d.hint}});
  j["diagnostics"] = diagnostics;
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string trace_to_json(const Estimate& e) {
  const MemoryTrace& trace = e.trace();
  std::string text = R"({"fields": ["action", "address", "bytes", "step", "phase", "module", "op", "category"], )";
  if (const std::string conf = alloc_conf(e); !conf.empty()) text += R"("alloc_conf": )" + Json(conf).dump() + ", ";
  text += R"("events": [)";
  std::size_t phase = 0;
  bool first = true;
  for (auto& event : e.replay.events) {
    while (phase + 1 < trace.phases.size() && trace.phases[phase + 1].first_event <= event.trace_event) ++phase;
    const MemoryEvent& cause = trace.events[event.trace_event];
    const PhaseMark mark = trace.phases.empty() ? PhaseMark{Phase::load, 0, 0, 0} : trace.phases[phase];
    Json row = Json::array({name_of(event.action), event.address, event.bytes, mark.step, name_of(mark.phase),
                            trace.modules[cause.module].path, cause.op, name_of(cause.category)});
    text += first ? "\n" : ",\n";
    text += row.dump(-1, ' ', false, Json::error_handler_t::replace);
    first = false;
  }
  return text + "\n]}\n";
}

}  // namespace memest::report
