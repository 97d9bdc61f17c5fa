// memest replay FILE
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <set>

#include "base/text.h"
#include "cli/command.h"
#include "cli/estimate_options.h"
#include "cli/output.h"
#include "cli/parse.h"
#include "device/device.h"
#include "report/replayed.h"
#include "spec/recording.h"

namespace memest::cli {
namespace {

struct ReplayOptions {
  std::string file, gpu, gpu_memory, torch_version, json;
  std::vector<std::string> alloc_conf;
  int device = -1;
};

/// What the replays of all settings share.
struct Card {
  Device device = default_device();
  Bytes memory = 0;
  std::optional<Bytes> limit;  ///< what the allocator can get, where a card was given
  TorchVersion torch = TorchVersion::newest();
};

Card card_of(const ReplayOptions& o) {
  Card card;
  if (!o.gpu.empty() && !o.gpu_memory.empty()) throw Error("--gpu and --gpu-memory exclude each other");
  if (!o.gpu.empty()) card.device = find_device(o.gpu);
  card.memory = o.gpu_memory.empty() ? card.device.total_memory : gpu_memory(o.gpu_memory);
  if (!o.gpu.empty() || !o.gpu_memory.empty()) card.limit = std::max<Bytes>(card.memory - card.device.context, 0);
  if (!o.torch_version.empty()) card.torch = torch_version(o.torch_version);
  return card;
}

struct Setting {
  std::string text;
  AllocatorConfig config;
  bool as_recorded;
};

/// The recording's own settings first. One that memest cannot read is said, and the defaults stand in its place.
std::vector<Setting> settings_of(const Recording& recording, const ReplayOptions& o, Diagnostics& diagnostics) {
  std::vector<Setting> settings;
  try {
    settings.push_back({recording.alloc_conf, AllocatorConfig::parse(recording.alloc_conf), true});
  } catch (const Error& e) {
    diagnostics.add({Diagnostic::Severity::warning, "unknown-settings",
                     fmt::format("the recording's settings '{}' are not understood, the defaults stand for them: {}",
                                 recording.alloc_conf.substr(0, 200), e.message()),
                     "allocator_settings", ""});
    settings.push_back({"", AllocatorConfig{}, true});
  }
  for (auto& text : o.alloc_conf) {
    try {
      settings.push_back({text, AllocatorConfig::parse(text), false});
    } catch (Error& e) {
      throw e.within("--alloc-conf");
    }
  }
  return settings;
}

report::ReplayedSetting play(const DeviceRecording& recording, const RecordedRun& run, const Setting& setting, const Card& card,
                             std::optional<Bytes> limit) {
  report::ReplayedSetting played;
  played.alloc_conf = setting.text;
  played.as_recorded = setting.as_recorded;
  const Bytes memory = card.limit ? card.memory : std::max(card.memory, limit.value_or(0));
  RecordedReplayOptions options{setting.config, {}, memory, card.torch.block_order(), false};
  played.totals = replay(recording, run, options);
  if (limit) {
    options.device_limit = limit;
    played.within = replay(recording, run, options);
    played.unserved = run.failed - std::min(run.failed, played.within->served);
  }
  if (setting.as_recorded) {
    options.device_limit = run.limit;
    options.compare = true;
    played.same = replay(recording, run, options);
    if (!run.limit) played.totals = *played.same;  // what lived before lies as it lay
    if (limit == run.limit && limit) played.within = played.same;
  }
  return played;
}

void add_notes(const report::ReplayedDevice& d, Diagnostics& diagnostics) {
  const RecordedRun& run = d.run;
  auto note = [&](const char* code, std::string message, std::string hint = {}) {
    diagnostics.add({Diagnostic::Severity::note, code, std::move(message), fmt::format("device {}", d.device), std::move(hint)});
  };
  if (run.blocks_before > 0 || run.reserved_before > 0)
    note("lived-before",
         fmt::format(
             "{} blocks with {} in {} of segments are older than the recording: it began late, or its ring buffer lost the beginning",
             grouped(std::int64_t(run.blocks_before)), human(run.allocated_before), human(run.reserved_before)),
         "under other settings they are allocated first, in the order of their addresses");
  if (run.waits > 0)
    note("waits-for-streams",
         fmt::format("{} block{} waited for another stream before it was free (record_stream): a replay counts it as allocated until then",
                     run.waits, run.waits == 1 ? "" : "s"));
  if (d.pools > 1)
    note("private-pools",
         fmt::format("{} private pool{} (torch.cuda.MemPool, CUDA graphs) beside the common one: each keeps its own segments; in a replay "
                     "empty_cache() frees them too",
                     d.pools - 1, d.pools == 2 ? "" : "s"));
  if (run.flushes > 0)
    note("empty-cache", fmt::format("empty_cache() was called {}, and is under each setting",
                                    run.flushes == 1 ? "once" : fmt::format("{} times", run.flushes)));
}

report::ReplayedDevice replay_device(const Recording& recording, const DeviceRecording& device, const std::vector<Setting>& settings,
                                     const Card& card) {
  report::ReplayedDevice d;
  d.device = device.device;
  d.events = device.events.size();
  std::set<std::pair<std::int64_t, std::int64_t>> pools;
  std::set<std::int64_t> streams;
  for (auto& s : device.streams) pools.emplace(s.pool_owner, s.pool), streams.insert(s.id);
  d.pools = pools.size();
  d.streams = streams.size();
  d.run = understand(device, settings[0].config);
  if (d.run.peak_event) d.peak_place = recording.places[device.events[*d.run.peak_event].place];
  d.limit = card.limit ? card.limit : d.run.limit;
  d.limit_given = card.limit.has_value();
  for (auto& setting : settings) d.settings.push_back(play(device, d.run, setting, card, d.limit));
  return d;
}

int run_replay(const ReplayOptions& o) {
  const Card card = card_of(o);
  Output json(o.json);
  const Recording recording = spec::read_recording(o.file);
  report::Replayed result{o.file, recording.kind, recording.alloc_conf, o.gpu, {}, {}};
  const std::vector<Setting> settings = settings_of(recording, o, result.diagnostics);
  for (auto& device : recording.devices) {
    if (o.device >= 0 && device.device != o.device) continue;
    try {
      result.devices.push_back(replay_device(recording, device, settings, card));
    } catch (Error& e) {
      throw e.within(o.file);
    }
    add_notes(result.devices.back(), result.diagnostics);
  }
  if (result.devices.empty()) {
    std::vector<std::string> numbers;
    for (auto& device : recording.devices) numbers.push_back(std::to_string(device.device));
    throw Error(fmt::format("--device: the recording has nothing of device {}", o.device), "it has " + join(numbers, ", ")).within(o.file);
  }
  print_notes(result.diagnostics);
  json.write(report::to_json(result));
  if (o.json != "-") fmt::print("{}", report::to_table(result));
  return result.fits() ? kDone : kDoesNotFit;
}

}  // namespace

Command add_replay(CLI::App& app) {
  auto options = std::make_shared<ReplayOptions>();
  auto& o = *options;
  CLI::App* sub = app.add_subcommand("replay", "A recorded trace of PyTorch's allocator: what the same requests take under other settings");
  sub->add_option("FILE", o.file, "A pickle of torch.cuda.memory._dump_snapshot, or what memest estimate --trace writes")->required();
  sub->add_option("--alloc-conf", o.alloc_conf,
                  "A PYTORCH_CUDA_ALLOC_CONF to compare with the recording's own, as expandable_segments:True; once for each")
      ->allow_extra_args(false);
  sub->add_option("--gpu", o.gpu, "The card on which each setting should fit (memest list gpus); exit code 1 where one does not");
  sub->add_option("--gpu-memory", o.gpu_memory, "A card by its memory alone: 24GiB, 24GB, 24000MiB or bytes");
  sub->add_option("--torch-version", o.torch_version, "The release whose allocator is followed, 2.4 to 2.15 (the default)");
  sub->add_option("--device", o.device, "Of a recording of several devices: this one")->check(CLI::Range(0, 255));
  sub->add_option("--json", o.json, "Write the whole result as JSON to a file, - for stdout");
  return {sub, [options] { return run_replay(*options); }};
}

}  // namespace memest::cli
