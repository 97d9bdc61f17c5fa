#include "report/replayed.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace memest::report {
namespace {
using Json = nlohmann::ordered_json;

std::string counted(std::size_t n, const char* what) { return fmt::format("{} {}{}", grouped(std::int64_t(n)), what, n == 1 ? "" : "s"); }

std::string flushed(std::size_t times) {
  return "cache flushed for room" + (times == 1 ? std::string(" once") : fmt::format(" {} times", times));
}

std::string title(const ReplayedSetting& s) {
  const std::string conf = s.alloc_conf.empty() ? "default settings" : s.alloc_conf;
  return s.as_recorded ? "memest, " + conf : conf;
}

std::string row(const std::string& name, Bytes allocated, Bytes reserved, const std::string& split, const std::string& note) {
  const double unused = reserved > 0 ? 100 * double(reserved - allocated) / double(reserved) : 0;
  return fmt::format("  {:<50} {:>10} {:>10} {:>7.1f} % {:>10}{}", name, human(allocated), human(reserved), unused, split,
                     note.empty() ? "" : "  " + note);
}

std::string note(const ReplayedDevice& d, const ReplayedSetting& s) {
  std::vector<std::string> parts;
  if (s.same && !s.same->difference) parts.push_back(fmt::format("all {} as recorded", counted(s.same->same_events, "event")));
  if (s.same && s.same->difference) parts.push_back("differs at " + *s.same->difference);
  if (s.within && s.within->out_of_memory) {
    auto& oom = *s.within->out_of_memory;
    parts.push_back(fmt::format("runs out of memory at event {}: {} asked for with {} reserved", oom.trace_event, human(oom.requested),
                                human(oom.reserved)));
  } else if (s.unserved > 0) {
    parts.push_back(d.run.failed == s.unserved ? "runs out of memory as recorded"
                                               : fmt::format("{} of {} still run out", s.unserved, counted(d.run.failed, "request")));
  } else if (s.within && d.run.failed > 0) {
    parts.emplace_back("does not run out of memory");
  } else if (s.within) {
    parts.emplace_back("fits");
  }
  if (s.within && s.within->stats.num_alloc_retries > 0) parts.push_back(flushed(std::size_t(s.within->stats.num_alloc_retries)));
  return join(parts, "; ");
}

std::string device_table(const ReplayedDevice& d, bool several) {
  std::string text = several ? fmt::format("device {}: {}, {}\n", d.device, counted(d.events, "event"), counted(d.streams, "stream")) : "";
  text += fmt::format("  {:<50} {:>10} {:>10} {:>9} {:>10}\n", "at the peaks", "allocated", "reserved", "unused", "split");
  std::vector<std::string> notes;
  if (d.run.failed > 0)
    notes.push_back(fmt::format("ran out of memory {}", d.run.failed == 1 ? "once" : fmt::format("{} times", d.run.failed)));
  if (d.run.makes_room > 0) notes.push_back(flushed(d.run.makes_room));
  text += row("as recorded", d.run.allocated_peak, d.run.reserved_peak, "-", join(notes, "; ")) + "\n";
  for (auto& s : d.settings) {
    const RecordedReplay& shown = s.shown(d.limit_given);
    const Bytes split = shown.stats.inactive_split_bytes[int(StatType::all)].peak;
    text += row(title(s), shown.allocated_peak, shown.reserved_peak, human(split), note(d, s)) + "\n";
  }
  if (d.run.peak_event)
    text += fmt::format("  most allocated at event {}{}\n", *d.run.peak_event, d.peak_place.empty() ? "" : ": " + d.peak_place);
  text += fmt::format("  at the end {} allocated, {} reserved\n", human(d.run.allocated_end), human(d.run.reserved_end));
  if (d.limit)
    text += fmt::format("  the allocator can get {}{}\n", human(*d.limit), d.limit_given ? "" : " at most, as the recording shows");
  return text;
}

Json outcome(const RecordedReplay& r) {
  Json j = {{"allocated_peak_bytes", r.allocated_peak},
            {"allocated_end_bytes", r.allocated_end},
            {"reserved_peak_bytes", r.reserved_peak},
            {"reserved_end_bytes", r.reserved_end},
            {"allocated_at_reserved_peak_bytes", r.allocated_at_reserved_peak},
            {"inactive_split_peak_bytes", r.stats.inactive_split_bytes[int(StatType::all)].peak},
            {"retries", r.stats.num_alloc_retries}};
  j["out_of_memory"] = nullptr;
  if (auto& oom = r.out_of_memory)
    j["out_of_memory"] = {{"event", oom->trace_event},
                          {"requested_bytes", oom->requested},
                          {"segment_bytes", oom->segment},
                          {"allocated_bytes", oom->allocated},
                          {"reserved_bytes", oom->reserved}};
  return j;
}

Json setting_json(const ReplayedSetting& s) {
  Json j = {{"alloc_conf", s.alloc_conf}, {"as_recorded", s.as_recorded}};
  j.update(outcome(s.totals));
  j["same_events"] = s.same ? Json(s.same->same_events) : Json(nullptr);
  j["difference"] = s.same && s.same->difference ? Json(*s.same->difference) : Json(nullptr);
  j["within_limit"] = s.within ? outcome(*s.within) : Json(nullptr);
  j["unserved"] = s.unserved;
  j["fits"] = s.within ? Json(s.fits()) : Json(nullptr);
  return j;
}

}  // namespace

bool Replayed::fits() const {
  return std::all_of(devices.begin(), devices.end(), [](auto& d) {
    return !d.limit_given || std::all_of(d.settings.begin(), d.settings.end(), [](auto& s) { return s.fits(); });
  });
}

std::string to_table(const Replayed& r) {
  std::string text = fmt::format("{} · {} · {}", r.source.substr(r.source.rfind('/') + 1), r.kind,
                                 r.alloc_conf.empty() ? "default settings" : r.alloc_conf);
  const bool several = r.devices.size() > 1;
  if (several)
    text += fmt::format(" · {}", counted(r.devices.size(), "device"));
  else
    text += fmt::format(" · {} · {}", counted(r.devices[0].events, "event"), counted(r.devices[0].streams, "stream"));
  text += "\n";
  for (auto& d : r.devices) text += "\n" + device_table(d, several);
  return text;
}

std::string to_json(const Replayed& r) {
  Json devices = Json::array();
  for (auto& d : r.devices) {
    const RecordedRun& run = d.run;
    Json settings = Json::array();
    for (auto& s : d.settings) settings.push_back(setting_json(s));
    devices.push_back(
        {{"device", d.device},
         {"events", d.events},
         {"streams", d.streams},
         {"pools", d.pools},
         {"before", {{"blocks", run.blocks_before}, {"allocated_bytes", run.allocated_before}, {"reserved_bytes", run.reserved_before}}},
         {"recorded",
          {{"allocated_peak_bytes", run.allocated_peak},
           {"allocated_end_bytes", run.allocated_end},
           {"reserved_peak_bytes", run.reserved_peak},
           {"reserved_end_bytes", run.reserved_end},
           {"allocated_at_reserved_peak_bytes", run.allocated_at_reserved_peak},
           {"mallocs", run.mallocs},
           {"out_of_memory", run.failed},
           {"flushes_for_room", run.makes_room},
           {"empty_cache", run.flushes},
           {"waits_for_streams", run.waits},
           {"peak_event", run.peak_event ? Json(*run.peak_event) : Json(nullptr)},
           {"peak_place", d.peak_place}}},
         {"limit_bytes", d.limit ? Json(*d.limit) : Json(nullptr)},
         {"settings", settings}});
  }
  Json diagnostics = Json::array();
  for (auto& n : r.diagnostics.list())
    diagnostics.push_back(
        {{"severity", name_of(n.severity)}, {"code", n.code}, {"message", n.message}, {"where", n.where}, {"hint", n.hint}});
  const Json j = {{"schema_version", 1},        {"source", r.source}, {"kind", r.kind},
                  {"alloc_conf", r.alloc_conf}, {"devices", devices}, {"diagnostics", diagnostics}};
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace memest::report
