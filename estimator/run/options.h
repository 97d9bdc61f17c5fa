// How a model is run: every choice of the training and inference loops.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "fake/tensor.h"

namespace memest::run {

enum class Mode { train, infer };
enum class Precision { fp32, amp_fp16, amp_bf16, bf16, fp16 };
enum class ZeroGradAt { start, before_backward, end };

std::string_view name_of(Mode mode);
std::string_view name_of(Precision precision);
std::string_view name_of(ZeroGradAt at);
Precision parse_precision(const std::string& text);

/// The type that the model and its floating inputs have.
DType model_dtype(Precision p);
/// The autocast type; none without autocast.
std::optional<DType> autocast_dtype(Precision p);

/// --checkpoint
struct Checkpointing {
  enum class Where { none, full, every, segments, sqrt, modules } where = Where::none;
  std::int64_t count = 0;  ///< of every=K and segments=N
  std::string pattern;     ///< of modules=GLOB
  bool reentrant = false;
  std::string text() const;
};
Checkpointing parse_checkpointing(const std::string& text);

struct RunOptions {
  Mode mode = Mode::train;
  Precision precision = Precision::fp32;
  std::vector<std::int64_t> batches{1};  ///< samples of each step; the last one repeats
  int steps = 3;
  std::string optimizer = "adamw";
  int grad_accum = 1;
  bool zero_grad_to_none = true;
  ZeroGradAt zero_grad_at = ZeroGradAt::start;
  std::string loss;  ///< empty: the model's own, or else the sum of the output in training
  bool input_grad = false;
  bool inputs_resident = false;
  bool keep_output = true;
  MemoryFormat memory_format = MemoryFormat::contiguous;
  Checkpointing checkpointing;
};

}  // namespace memest::run
