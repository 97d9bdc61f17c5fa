#include "cli/training_options.h"

#include <fmt/format.h>

#include "base/text.h"
#include "cli/parse.h"

namespace memest::cli {

void add_training_options(CLI::App& app, TrainingOptions& o) {
  const char* group = "The training step";
  app.add_option(
         "--clip-grad-norm", o.clip_grad_norm,
         "clip_grad_norm_ to VALUE (1.0) before the step: a scalar for each gradient and a buffer of partial norms, gradients in place")
      ->group(group)
      ->expected(0, 1)
      ->default_str("1.0");
  app.add_option("--clip-grad-value", o.clip_grad_value, "clip_grad_value_ to VALUE (1.0) before the step: in place, takes nothing")
      ->group(group)
      ->expected(0, 1)
      ->default_str("1.0");
  app.add_option(
         "--no-decay", o.no_decay,
         "Parameters that match GLOB get a param_group with weight_decay=0 (repeatable): each group steps alone, so its temporaries "
         "are smaller")
      ->group(group)
      ->allow_extra_args(false);
  app.add_option("--param-group", o.parameter_groups,
                 "Parameters that match one of GLOB,GLOB,... get a param_group of their own (repeatable), as with another learning rate: "
                 "each group steps alone, so its temporaries are smaller")
      ->group(group)
      ->allow_extra_args(false);
  app.add_option("--master-weights", o.master_weights,
                 "float32 copies of 16-bit parameters, which the optimizer and its states work on. apex (fp16): amp O2, a copy of each "
                 "and a float32 gradient; deepspeed (fp16, bf16): one flat copy, and with bf16 a flat float32 gradient that stays")
      ->group(group);
  app.add_option("--freeze", o.freeze,
                 "Parameters that match GLOB do not require grad (repeatable): no gradient, no state, and autograd saves less")
      ->group(group)
      ->allow_extra_args(false);
  app.add_option("--lora", o.lora,
                 "Train adapters alone, as peft adds them: r=8,alpha=16,targets=q_proj+v_proj or targets=all-linear, also dropout=P and "
                 "dtype=bf16 (float32 beside 16-bit weights otherwise)")
      ->group(group);
  app.add_option("--quant", o.quantization,
                 "Weights of linear layers as bitsandbytes stores them: int8 (1 byte an element), nf4 or fp4 (half a byte, and a float32 "
                 "for each 64), nf4-dq or fp4-dq (double quantisation: a byte for each 64); dequantised for each product and again in "
                 "backward. Also ,compute=bf16 (the type of products), ,dtype=bf16 (of what is not quantised), ,skip=NAME+NAME (a Hugging "
                 "Face model's head where not given)")
      ->group("How it is run");
  app.add_flag("--kbit-training", o.kbit_training,
               "peft's prepare_model_for_kbit_training: 16-bit parameters that are not quantised become float32, and a Hugging Face model "
               "checkpoints its layers unless --checkpoint says otherwise")
      ->group(group);
  app.add_option("--ema", o.ema,
                 "AveragedModel beside the model, updated after each step: ema or swa; one more copy of parameters and buffers")
      ->group(group)
      ->expected(0, 1)
      ->default_str("ema");
  app.add_flag("--leak-loss", o.leak_loss, "Each loss is appended to a list, the usual leak; the result shows what a step adds")
      ->group(group);
  app.add_option("--eval-between", o.eval_between,
                 "Evaluate one batch after each step: no_grad, inference_mode, or grad (forgotten no_grad: everything is saved until the "
                 "function returns)")
      ->group(group)
      ->expected(0, 1)
      ->default_str("no_grad");
  app.add_option("--saved-tensors", o.saved_tensors,
                 "What hooks around the forward do with what autograd saves: kept; cpu (save_on_cpu(pin_memory=True): host memory, moved "
                 "back one by one in backward); int8 or fp8 (one scale for each tensor; weights stay as they are)")
      ->group(group)
      ->capture_default_str();
  app.add_option("--resume", o.resume,
                 "Load a checkpoint first: host (states move to the GPU before the first forward), device (map_location: a second model "
                 "until it is deleted), device-kept (the name stays)")
      ->group(group)
      ->capture_default_str();
  app.add_option("--empty-cache", o.empty_cache,
                 "torch.cuda.empty_cache() after each step or each phase: reserved falls, and segments are asked for again")
      ->group(group)
      ->capture_default_str();
  app.add_option("--infer-mode", o.infer_mode, "With --mode infer: no_grad, inference_mode, or grad (forgotten no_grad)")
      ->group(group)
      ->capture_default_str();
}

void apply(const TrainingOptions& o, const CLI::App& app, run::RunOptions& run) {
  auto number = [&](const char* option, const std::string& text) -> std::optional<double> {
    if (app.count(option) == 0) return {};
    return text.empty() ? 1.0 : positive_number(option, text);
  };
  run.clip_grad_norm = number("--clip-grad-norm", o.clip_grad_norm);
  run.clip_grad_value = number("--clip-grad-value", o.clip_grad_value);
  run.no_decay = o.no_decay;
  run.freeze = o.freeze;
  for (auto& text : o.parameter_groups) {
    run.parameter_groups.push_back(split(text, ','));
    for (auto& glob : run.parameter_groups.back())
      if (glob.empty()) throw Error(fmt::format("--param-group: '{}' has an empty pattern", text.substr(0, 80)));
  }
  run.master_weights = o.master_weights;
  if (!run.master_weights.empty() && run.optimizer == "none")
    throw Error("--master-weights: --optimizer none has no step to keep them for");
  if (app.count("--lora") > 0) run.lora = run::parse_lora(o.lora);
  if (app.count("--quant") > 0) run.quantization = nn::parse_quantization(o.quantization);
  run.kbit_training = o.kbit_training;
  if (app.count("--ema") > 0)
    run.averaging =
        one_of<run::Averaging>("--ema", o.ema.empty() ? "ema" : o.ema, {{"ema", run::Averaging::ema}, {"swa", run::Averaging::swa}});
  run.leak_loss = o.leak_loss;
  using run::EvalBetween;
  if (app.count("--eval-between") > 0)
    run.eval_between = one_of<EvalBetween>("--eval-between", o.eval_between.empty() ? "no_grad" : o.eval_between,
                                           {{"no_grad", EvalBetween::no_grad},
                                            {"inference_mode", EvalBetween::inference_mode},
                                            {"grad", EvalBetween::grad},
                                            {"none", EvalBetween::none}});
  using run::SavedTensors;
  run.saved_tensors = one_of<SavedTensors>(
      "--saved-tensors", o.saved_tensors,
      {{"kept", SavedTensors::kept}, {"cpu", SavedTensors::cpu}, {"int8", SavedTensors::int8}, {"fp8", SavedTensors::fp8}});
  using run::Resume;
  run.resume = one_of<Resume>(
      "--resume", o.resume, {{"no", Resume::no}, {"host", Resume::host}, {"device", Resume::device}, {"device-kept", Resume::device_kept}});
  using run::EmptyCache;
  run.empty_cache = one_of<EmptyCache>("--empty-cache", o.empty_cache,
                                       {{"never", EmptyCache::never}, {"step", EmptyCache::step}, {"phase", EmptyCache::phase}});
  using run::InferMode;
  run.infer_mode =
      one_of<InferMode>("--infer-mode", o.infer_mode,
                        {{"no_grad", InferMode::no_grad}, {"inference_mode", InferMode::inference_mode}, {"grad", InferMode::grad}});
  if (run.mode == run::Mode::infer) {
    for (const char* option : {"--clip-grad-norm", "--clip-grad-value", "--no-decay", "--ema", "--eval-between", "--resume",
                               "--saved-tensors", "--param-group", "--master-weights", "--kbit-training"})
      if (app.count(option) > 0) throw Error(fmt::format("{} is for training; --mode infer has no step", option));
  } else if (app.count("--infer-mode") > 0) {
    throw Error("--infer-mode is for --mode infer");
  }
}

}  // namespace memest::cli
