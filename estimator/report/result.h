// What an estimate is: the one structure that every report prints.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/replay.h"
#include "base/diagnostics.h"
#include "device/device.h"
#include "device/transformers_version.h"
#include "run/loop.h"
#include "run/options.h"
#include "trace/trace.h"

namespace memest {

/// A resolved option and where it came from.
struct Setting {
  std::string name;  ///< as on the command line, without dashes
  std::string value;
  std::string origin;  ///< "given", "default", "spec"
};

struct ModuleBytes {
  ModuleId id;
  std::string path, type;
  int depth = 0;                          ///< 0: the model itself
  Bytes parameters = 0, activations = 0;  ///< of the module itself; activations: saved at the end of forward, last step
  Bytes parameters_cumulative = 0, activations_cumulative = 0;  ///< with its descendants
};

struct Fit {
  std::string gpu;     ///< empty where only a size was given
  Bytes capacity = 0;  ///< total memory of the card
  Bytes free = 0;      ///< capacity − context: what the allocator can get
  bool fits = false;
  std::optional<OutOfMemory> out_of_memory;
};

/// The run's trace replayed under another setting of the allocator.
struct AllocWhatIf {
  std::string alloc_conf;  ///< what is set beside --alloc-conf; empty: as run
  Bytes reserved_peak = 0;
  Bytes device_peak = 0;     ///< with the context
  std::optional<bool> fits;  ///< where a card or its memory was given
};

/// Work of one step (the last), as torch.utils.flop_counter counts it.
struct Compute {
  std::int64_t forward_flops = 0;
  std::int64_t backward_flops = 0;    ///< with what checkpointing repeats
  std::int64_t recomputed_flops = 0;  ///< of the backward's
};

inline std::array<std::pair<const char*, std::int64_t>, 6> named_parts(const nn::ParameterParts& p) {
  return {
      {{"embeddings", p.embeddings}, {"attention", p.attention}, {"mlp", p.mlp}, {"norms", p.norms}, {"head", p.head}, {"other", p.other}}};
}

/// How the peak grows with the batch, around the batch of the run.
struct Scaling {
  Bytes constant = 0, per_sample = 0;          ///< of allocated_peak
  std::optional<Bytes> activations_per_token;  ///< saved for backward; none in inference and where an input has no tokens
};

/// --seq max, --batch max.
struct Largest {
  std::string option;         ///< "seq"
  std::int64_t value = 0;     ///< 0: not even 1 fits
  bool by_positions = false;  ///< the model has positions for no more; memory would allow it
};

struct Estimate {
  std::string source, kind, name;
  run::RunOptions run;
  run::RunResult states;  ///< counts and unrounded sums; its trace is the run's
  std::vector<Setting> settings;
  TorchVersion torch;
  std::optional<TransformersVersion> transformers;  ///< whose classes ran, for a Hugging Face config
  Device device;
  bool device_given = false;
  std::string semantics;  ///< "cuda" or "fake-tensor"

  ReplayResult replay;
  Bytes context = 0;
  Bytes device_peak = 0;  ///< reserved peak + context
  int peak_step = 0;
  Phase peak_phase = Phase::load;
  std::string peak_module, peak_module_type, peak_op;
  std::vector<ModuleBytes> modules;  ///< in order of registration, parents before children
  Compute compute;
  std::optional<Fit> fit;
  std::vector<AllocWhatIf> alloc_what_if;
  // of a Hugging Face config
  std::optional<nn::ParameterParts> parts;
  std::optional<nn::CacheBytes> cache;
  std::optional<nn::StoredWeights> stored;
  std::optional<Scaling> scaling;
  std::int64_t most_tokens = 0;  ///< that the model has positions for; 0: not known
  std::optional<Largest> largest;
  Diagnostics diagnostics;

  const MemoryTrace& trace() const { return states.trace; }
};

}  // namespace memest
