#include "spec/recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "base/text.h"
#include "spec/file_kind.h"
#include "spec/json.h"
#include "spec/json_stream.h"
#include "spec/pickle_machine.h"

namespace memest::spec {
namespace {
using Action = RecordedEvent::Action;
using Kind = PickleObject::Kind;

constexpr Bytes kMostFile = 2 * kGiB;
constexpr Bytes kMostBytes = Bytes{1} << 44;  // of one block or segment: 16 TiB
constexpr Bytes kMostAddress = Bytes{1} << 60;
constexpr std::size_t kMostEvents = 20'000'000, kMostDevices = 256, kMostFrames = 128;

constexpr std::array kActions = {std::pair{std::string_view("alloc"), Action::alloc},
                                 std::pair{std::string_view("free_requested"), Action::free_requested},
                                 std::pair{std::string_view("free_completed"), Action::free_completed},
                                 std::pair{std::string_view("segment_alloc"), Action::segment_alloc},
                                 std::pair{std::string_view("segment_free"), Action::segment_free},
                                 std::pair{std::string_view("segment_map"), Action::segment_map},
                                 std::pair{std::string_view("segment_unmap"), Action::segment_unmap},
                                 std::pair{std::string_view("oom"), Action::oom}};

Action action_of(std::string_view name) {
  for (auto& [known, action] : kActions)
    if (known == name) return action;
  std::vector<std::string> names;
  for (auto& pair : kActions) names.emplace_back(pair.first);
  throw Error(fmt::format("unknown action '{}'", name.substr(0, 40)), did_you_mean(std::string(name.substr(0, 40)), names));
}

/// Addresses and sizes that the sums of a whole recording cannot overflow.
void check(const RecordedEvent& e) {
  if (e.bytes < (e.action == Action::free_requested || e.action == Action::free_completed ? 0 : 1) || e.bytes > kMostBytes)
    throw Error(fmt::format("a size of {} bytes", e.bytes));
  if (e.address < 0 || e.address > kMostAddress) throw Error(fmt::format("an address of {}", e.address));
}

/// Numbers places, a text once.
class Places {
 public:
  explicit Places(std::vector<std::string>& texts) : texts_(texts) {}
  std::uint32_t number(const std::string& text) {
    if (text.empty()) return 0;
    const auto [it, fresh] = numbers_.try_emplace(text, std::uint32_t(texts_.size()));
    if (fresh) texts_.push_back(text);
    return it->second;
  }

 private:
  std::vector<std::string>& texts_;
  std::unordered_map<std::string, std::uint32_t> numbers_;
};

/// Streams as they come; settle() numbers them in order, which is that in which the allocator goes through them.
class Streams {
 public:
  int number(const DeviceRecording::Stream& stream) {
    const auto [it, fresh] = numbers_.try_emplace(stream, int(numbers_.size()));
    if (fresh && numbers_.size() > 100'000) throw Error("more than 100,000 streams");
    return it->second;
  }
  void settle(DeviceRecording& recording) const {
    std::vector<int> order(numbers_.size());
    for (auto& [stream, number] : numbers_) {
      order[std::size_t(number)] = int(recording.streams.size());
      recording.streams.push_back(stream);
    }
    for (RecordedEvent& e : recording.events) e.stream = order[std::size_t(e.stream)];
    for (RecordedSegment& s : recording.segments) s.stream = order[std::size_t(s.stream)];
  }

 private:
  std::map<DeviceRecording::Stream, int> numbers_;
};

// ---- snapshots

class SnapshotReader {
 public:
  Recording read(const PickleObject& top) {
    recording_.kind = "PyTorch snapshot";
    recording_.has_segments = true;
    if (top.kind == Kind::list)
      throw Error("this is a list, as torch.cuda.memory_snapshot() gives: it has segments and no events",
                  "record with torch.cuda.memory._record_memory_history(), then torch.cuda.memory._dump_snapshot(\"FILE\")");
    const PickleObject* traces = top.kind == Kind::dict ? top.find("device_traces") : nullptr;
    const PickleObject* segments = top.kind == Kind::dict ? top.find("segments") : nullptr;
    if (!traces || !segments)
      throw Error("the pickle is no memory snapshot: that is a dict with \"segments\" and \"device_traces\"",
                  "torch.cuda.memory._dump_snapshot(\"FILE\") writes one");
    list(*traces, "device_traces");
    if (traces->items.size() > kMostDevices) throw Error(fmt::format("{} devices", traces->items.size())).within("device_traces");
    for (std::size_t d = 0; d < traces->items.size(); ++d) events(list(*traces->items[d], fmt::format("device_traces[{}]", d)), d);
    list(*segments, "segments");
    for (std::size_t s = 0; s < segments->items.size(); ++s) {
      try {
        segment(*segments->items[s]);
      } catch (Error& e) {
        throw e.within(fmt::format("segments[{}]", s));
      }
    }
    settings(top.find("allocator_settings"));
    for (auto& [number, device] : devices_) {
      device.streams.settle(device.recording);
      if (!device.recording.events.empty() || !device.recording.segments.empty()) recording_.devices.push_back(std::move(device.recording));
    }
    if (std::none_of(recording_.devices.begin(), recording_.devices.end(), [](auto& d) { return !d.events.empty(); }))
      throw Error("the snapshot has no events: the memory history was not recorded",
                  "call torch.cuda.memory._record_memory_history() before the run, and dump the snapshot after it");
    return std::move(recording_);
  }

 private:
  struct Device {
    DeviceRecording recording;
    Streams streams;
  };
  Device& device(std::int64_t number) {
    if (number < 0 || number >= std::int64_t(kMostDevices)) throw Error(fmt::format("a device numbered {}", number));
    Device& d = devices_[int(number)];
    d.recording.device = int(number);
    return d;
  }

  static const PickleObject& list(const PickleObject& o, const std::string& what) {
    if (o.kind != Kind::list && o.kind != Kind::tuple) throw Error("a list is expected").within(what);
    return o;
  }
  static const PickleObject& field(const PickleObject& o, const char* key) {
    if (o.kind != Kind::dict) throw Error("a dict is expected");
    if (const PickleObject* value = o.find(key)) return *value;
    throw Error(fmt::format("there is no \"{}\"", key));
  }
  static std::int64_t integer(const PickleObject& o, const char* key) {
    const PickleObject& value = field(o, key);
    if (value.kind != Kind::integer) throw Error(fmt::format("\"{}\" is no integer", key));
    return value.number;
  }
  static std::string_view text(const PickleObject& o, const char* key) {
    const PickleObject& value = field(o, key);
    if (value.kind != Kind::text) throw Error(fmt::format("\"{}\" is no text", key));
    return value.text;
  }
  static DeviceRecording::Stream stream(const PickleObject& o, const char* pool_key) {
    DeviceRecording::Stream s{integer(o, "stream"), 0, 0};
    const PickleObject* pool = o.find(pool_key);
    if (pool && pool->items.size() == 2) s.pool_owner = pool->items[0]->number, s.pool = pool->items[1]->number;
    return s;
  }

  void events(const PickleObject& trace, std::size_t number) {
    Device& d = device(std::int64_t(number));
    seen_ += trace.items.size();
    if (seen_ > kMostEvents) throw Error(fmt::format("more than {} events", grouped(kMostEvents)));
    d.recording.events.reserve(trace.items.size());
    for (std::size_t i = 0; i < trace.items.size(); ++i) {
      try {
        const PickleObject& o = *trace.items[i];
        const std::string_view action = text(o, "action");
        if (action == "snapshot") continue;
        if (o.find("pool_id")) pools_told_ = true;
        RecordedEvent e{action_of(action), 0, integer(o, "size"), d.streams.number(stream(o, "pool_id")), 0, 0};
        e.address = integer(o, e.action == Action::oom ? "device_free" : "addr");
        const PickleObject* frames = o.find("frames");
        if (e.action == Action::alloc || e.action == Action::oom) e.place = place(frames);
        if (e.action != Action::free_requested && e.action != Action::free_completed) e.stack = stack(frames);
        check(e);
        d.recording.events.push_back(e);
      } catch (Error& e) {
        throw e.within(fmt::format("device_traces[{}][{}]", number, i));
      }
    }
  }

  void segment(const PickleObject& o) {
    Device& d = device(integer(o, "device"));
    RecordedSegment s;
    s.address = integer(o, "address");
    s.bytes = integer(o, "total_size");
    check({Action::segment_alloc, s.address, s.bytes, 0, 0, 0});
    // Older releases name no pool in events; the pool of a segment alone would part what is one.
    s.stream = d.streams.number(stream(o, pools_told_ ? "segment_pool_id" : ""));
    const PickleObject* expandable = o.find("is_expandable");
    s.expandable = expandable && expandable->number != 0;
    Bytes at = s.address;
    const PickleObject& blocks = list(field(o, "blocks"), "blocks");
    seen_ += blocks.items.size();
    if (seen_ > kMostEvents) throw Error(fmt::format("more than {} blocks and events", grouped(kMostEvents)));
    for (std::size_t b = 0; b < blocks.items.size(); ++b) {
      const PickleObject& block = *blocks.items[b];
      const std::string_view state = text(block, "state");
      const Bytes size = integer(block, "size");
      check({Action::alloc, at, size, 0, 0, 0});
      const PickleObject* requested = block.find("requested_size");  // of a free block: left over from its last use
      RecordedSegment::Block found{at, size, requested && requested->number > 0 ? requested->number : size, state != "inactive"};
      if (found.allocated && found.requested > size) throw Error(fmt::format("blocks[{}] holds more than its size", b));
      s.blocks.push_back(found);
      at += size;
      if (at > s.address + s.bytes) throw Error("its blocks are larger than the segment");
    }
    d.recording.segments.push_back(std::move(s));
  }

  void settings(const PickleObject* o) {
    if (!o || o->kind != Kind::dict) return;
    for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"})
      if (const PickleObject* conf = o->find(name); conf && conf->kind == Kind::text && !conf->text.empty())
        recording_.alloc_conf = conf->text.substr(0, 4096);
  }

  static std::uint32_t stack(const PickleObject* frames) {
    if (!frames) return 0;
    std::size_t hash = 0;
    for (std::size_t i = 0; i < std::min(frames->items.size(), kMostFrames); ++i) {
      const PickleObject *file = frames->items[i]->find("filename"), *line = frames->items[i]->find("line");
      hash = hash * 1'000'003 + (file ? std::hash<std::string_view>()(file->text) : 0) + std::size_t(line ? line->number : 0) + 1;
    }
    return std::uint32_t(hash ^ hash >> 32);
  }

  /// The innermost frame outside PyTorch's own Python, or the innermost one.
  std::uint32_t place(const PickleObject* frames) {
    if (!frames || frames->items.empty()) return 0;
    const PickleObject* chosen = nullptr;
    for (std::size_t i = 0; i < std::min(frames->items.size(), kMostFrames); ++i) {
      const PickleObject* frame = frames->items[i];
      if (frame->kind != Kind::dict) throw Error("a frame is a dict");
      if (!chosen) chosen = frame;
      const PickleObject* file = frame->find("filename");
      if (!file || !file->text.ends_with(".py") || file->text.find("/torch/") != file->text.npos) continue;
      chosen = frame;
      break;
    }
    if (const auto it = places_of_frames_.find(chosen); it != places_of_frames_.end()) return it->second;
    const PickleObject *name = chosen->find("name"), *file = chosen->find("filename"), *line = chosen->find("line");
    std::string where(name ? name->text.substr(0, 100) : std::string_view());
    if (file && line && !file->text.empty())
      where += fmt::format(" ({}:{})", file->text.substr(file->text.rfind('/') + 1).substr(0, 100), line->number);
    for (char& c : where)
      if (std::uint8_t(c) < 32 || c == 127) c = '?';
    return places_of_frames_[chosen] = places_.number(where);
  }

  Recording recording_;
  Places places_{recording_.places};
  std::map<int, Device> devices_;
  std::unordered_map<const PickleObject*, std::uint32_t> places_of_frames_;
  std::size_t seen_ = 0;
  bool pools_told_ = false;
};

// ---- memest's own traces

class TraceReader {
 public:
  Recording read(const std::string& text) {
    std::size_t at = 0;
    JsonStream json(
        [&](char* into, std::size_t most) {
          const std::size_t count = std::min(most, text.size() - at);
          std::memcpy(into, text.data() + at, count);
          at += count;
          return count;
        },
        "trace");
    DeviceRecording device;
    device.streams.push_back({0, 0, 0});
    bool found = false;
    json.object([&](std::string_view key) {
      if (key == "fields") {
        fields_.clear();
        json.array([&] { fields_.emplace_back(json.string()); });
      } else if (key == "alloc_conf") {
        recording_.alloc_conf = json.string();
      } else if (key == "events") {
        found = true;
        json.array([&] { event(json, device); });
      } else {
        json.skip();
      }
    });
    json.finish();
    if (!found)
      throw Error("this is no trace of memest: that is an object with \"fields\" and \"events\"",
                  "memest estimate SPEC --trace FILE writes one");
    if (device.events.empty()) throw Error("the trace has no events");
    recording_.kind = "memest trace";
    recording_.devices.push_back(std::move(device));
    return std::move(recording_);
  }

 private:
  void event(JsonStream& json, DeviceRecording& device) {
    RecordedEvent e{Action::alloc, 0, 0, 0, 0, 0};
    std::string step, phase, module, op;
    std::size_t i = 0;
    json.array([&] {
      static const std::string none;
      const std::string& field = i < fields_.size() ? fields_[i] : none;
      ++i;
      if (field == "action") {
        const std::string name(json.string());
        try {
          e.action = action_of(name);
        } catch (const Error& problem) {
          throw json.error(problem.message(), problem.hint());
        }
      } else if (field == "address") {
        e.address = json.integer();
      } else if (field == "bytes") {
        e.bytes = json.integer();
      } else if (field == "step") {
        step = std::to_string(json.integer());
      } else if (field == "phase") {
        phase = json.string();
      } else if (field == "module") {
        module = json.string();
      } else if (field == "op") {
        op = json.string();
      } else {
        json.skip();
      }
    });
    try {
      if (e.action == Action::oom) e.address = std::max<Bytes>(e.address, 0);
      check(e);
    } catch (const Error& problem) {
      throw json.error(problem.message());
    }
    if (e.action == Action::alloc) {
      std::vector<std::string> parts;
      if (!step.empty() && step != "0") parts.push_back("step " + step);
      if (!phase.empty()) parts.push_back(phase);
      if (!module.empty() || !op.empty()) parts.push_back(op.empty() ? module : module.empty() ? op : fmt::format("{} ({})", module, op));
      e.place = places_.number(join(parts, ", "));
    }
    if (device.events.size() >= kMostEvents) throw json.error(fmt::format("more than {} events", grouped(kMostEvents)));
    device.events.push_back(e);
  }

  Recording recording_;
  Places places_{recording_.places};
  std::vector<std::string> fields_{"action", "address", "bytes"};
};

}  // namespace

Recording read_recording(const std::string& path) {
  const std::string bytes = read_file(path, kMostFile);
  const auto first = bytes.find_first_not_of(" \t\r\n");
  try {
    if (first == bytes.npos) throw Error("the file is empty");
    if (bytes[0] == '\x80') {
      const PickleTree tree(bytes, {.globals = false, .most_objects = 50'000'000, .deepest = 32});
      return SnapshotReader().read(tree.top());
    }
    if (bytes[first] == '{') return TraceReader().read(bytes);
    const Error other = not_a_model(path, bytes.substr(0, 4096));
    throw Error(other.message() + ": a recording is a pickle of torch.cuda.memory._snapshot(), or what memest estimate --trace writes");
  } catch (Error& e) {
    throw e.within(path);
  }
}

}  // namespace memest::spec
