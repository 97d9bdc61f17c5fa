// How a model is run: every choice of the training and inference loops.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "fake/kernel.h"
#include "fake/tensor.h"
#include "nn/quantization.h"

namespace memest::run {

enum class Mode { train, infer };
enum class Precision { fp32, amp_fp16, amp_bf16, bf16, fp16 };
enum class ZeroGradAt { start, before_backward, end };
/// --infer-mode: what an inference run records.
enum class InferMode { no_grad, inference_mode, grad };
/// --ema: a second copy of the model, averaged after each step (torch.optim.swa_utils.AveragedModel).
enum class Averaging { none, ema, swa };
/// --eval-between: an evaluation of one batch after each step.
enum class EvalBetween { none, no_grad, inference_mode, grad };
/// --resume: where torch.load puts the checkpoint, and whether its name outlives loading.
enum class Resume { no, host, device, device_kept };
/// --saved-tensors: what hooks around the forward do with what autograd saves.
enum class SavedTensors { kept, cpu, int8, fp8 };
/// --empty-cache: when torch.cuda.empty_cache() runs.
enum class EmptyCache { never, step, phase };

std::string_view name_of(Mode mode);
std::string_view name_of(Precision precision);
std::string_view name_of(ZeroGradAt at);
std::string_view name_of(InferMode mode);
std::string_view name_of(Averaging averaging);
std::string_view name_of(EvalBetween when);
std::string_view name_of(Resume resume);
std::string_view name_of(EmptyCache when);
std::string_view name_of(SavedTensors where);
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
  std::vector<KernelKind> keep;  ///< of keep=KIND: whose results are not computed again
  std::string text() const;
};
Checkpointing parse_checkpointing(const std::string& text);

/// --lora: peft's LoraConfig.
struct Lora {
  std::int64_t r = 8;
  double alpha = 8;  ///< lora_alpha
  double dropout = 0;
  std::optional<DType> dtype;        ///< of the adapters; none: float32 beside 16-bit weights (autocast_adapter_dtype)
  std::vector<std::string> targets;  ///< target_modules; "all-linear"
  std::string text() const;
};
/// "r=8,alpha=16,dropout=0.1,dtype=bf16,targets=q_proj+v_proj"; throws Error.
Lora parse_lora(const std::string& text);

struct RunOptions {
  Mode mode = Mode::train;
  Precision precision = Precision::fp32;
  std::vector<std::int64_t> batches{1};  ///< samples of each step; the last one repeats
  int steps = 3;
  std::string optimizer = "adamw";
  std::vector<std::string> no_decay;                       ///< globs of parameters in a group of their own, with weight_decay=0
  std::vector<std::vector<std::string>> parameter_groups;  ///< globs of each further group
  std::string master_weights;                              ///< a record of optim/master_weights.h; empty: none
  int grad_accum = 1;
  bool zero_grad_to_none = true;
  ZeroGradAt zero_grad_at = ZeroGradAt::start;
  std::string loss;  ///< empty: the model's own, or else the sum of the output in training
  bool input_grad = false;
  bool inputs_resident = false;
  InferMode infer_mode = InferMode::no_grad;
  std::optional<double> clip_grad_norm, clip_grad_value;
  Averaging averaging = Averaging::none;
  bool leak_loss = false;  ///< each loss is appended to a list
  EvalBetween eval_between = EvalBetween::none;
  Resume resume = Resume::no;
  EmptyCache empty_cache = EmptyCache::never;
  std::vector<std::string> freeze;  ///< globs of parameters that do not require grad
  std::int64_t new_tokens = 0;      ///< of an inference: model.generate() instead of a forward
  bool all_logits = false;          ///< generate() keeps the logits of the whole prompt
  bool math_attention = false;      ///< sdpa_kernel(SDPBackend.MATH) around the run
  bool keep_output = true;
  MemoryFormat memory_format = MemoryFormat::contiguous;
  Checkpointing checkpointing;
  bool checkpointing_given = false;  ///< else --kbit-training chooses
  std::optional<Lora> lora;
  std::optional<nn::Quantization> quantization;
  bool kbit_training = false;  ///< peft.prepare_model_for_kbit_training
  SavedTensors saved_tensors = SavedTensors::kept;
};

}  // namespace memest::run
