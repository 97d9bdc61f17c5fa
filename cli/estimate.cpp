// memest estimate SPEC
#include "estimate.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "base/text.h"
#include "cli/command.h"
#include "cli/estimate_options.h"
#include "cli/output.h"
#include "cli/parse.h"
#include "cli/training_options.h"
#include "report/json.h"
#include "report/table.h"

namespace memest::cli {
namespace {

/// As given on the command line; texts are understood in request().
struct EstimateOptions {
  std::string method, spec, batch = "1", image, mode = "train", amp, precision, optimizer = "adamw", zero_grad = "none",
                            zero_grad_at = "start", loss, checkpoint = "none";
  std::string gpu, gpu_memory, alloc_conf, torch_version, transformers_version,
      inputs = "loader", keep_output = "yes", memory_format = "contiguous", semantics = "cuda", lifetimes = "frames";
  std::string task, attention = "sdpa", experts, use_cache, cache, cache_dtype, logits, seq;
  std::vector<std::string> input, set, env;
  std::int64_t src_seq = 0, tgt_seq = 0;
  int steps = 3, grad_accum = 1;
  std::int64_t new_tokens = 0, classes = 0, images = 0;
  bool input_grad = false, strict = false, alloc_what_if = false;
  TrainingOptions training;
  // display
  std::string json, trace;
  bool quiet = false;
  int depth = 1;
};

std::pair<std::string, std::string> named(const char* option, const std::string& text) {
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    throw Error(fmt::format("{}: '{}' is not of the form NAME=VALUE", option, text.substr(0, 80)));
  return {text.substr(0, equals), text.substr(equals + 1)};
}

/// NAME=SHAPE[:DTYPE], the shape as 8x3x224x224 or 8,3,224,224.
spec::ReadOptions::InputOverride parse_input(const std::string& text) {
  auto [name, value] = named("--input", text);
  spec::ReadOptions::InputOverride input;
  input.name = name;
  if (const auto colon = value.rfind(':'); colon != std::string::npos) {
    input.dtype = dtype_from(value.substr(colon + 1));
    if (!input.dtype) throw Error(fmt::format("--input {}: unknown dtype '{}'", name, value.substr(colon + 1)));
    value.resize(colon);
  }
  for (auto& part : split(value, value.find(',') == std::string::npos ? 'x' : ',')) {
    if (part.empty()) throw Error(fmt::format("--input {}: '{}' is no shape", name, value), "for example x=8x3x224x224:float32");
    input.shape.push_back(part);
  }
  return input;
}

run::Precision precision_of(const EstimateOptions& o, bool amp_given) {
  if (amp_given && !o.precision.empty()) throw Error("--amp and --precision exclude each other");
  if (amp_given) return one_of<run::Precision>("--amp", o.amp, {{"fp16", run::Precision::amp_fp16}, {"bf16", run::Precision::amp_bf16}});
  return o.precision.empty() ? run::Precision::fp32 : run::parse_precision(o.precision);
}

EstimateRequest request(const EstimateOptions& o, const CLI::App& app) {
  EstimateRequest r;
  r.spec = o.spec;
  run::RunOptions& run = r.run;
  run.batches.clear();
  if (o.batch == "max" || o.seq == "max") r.largest = o.batch == "max" ? "batch" : "seq";
  if (o.batch == "max" && o.seq == "max")
    throw Error("--batch max and --seq max: one of the two can be looked for", "give the other a number");
  for (auto& part : split(o.batch == "max" ? "1" : o.batch, ',')) run.batches.push_back(positive("--batch", part));
  r.read.sizes.emplace_back("batch", run.batches[0]);
  if (app.count("--batch") > 0) r.read.batches = run.batches;
  if (!o.seq.empty() && o.seq != "max") r.read.sizes.emplace_back("seq", positive("--seq", o.seq));
  if (app.count("--src-seq")) r.read.sizes.emplace_back("src_seq", positive("--src-seq", std::to_string(o.src_seq)));
  if (app.count("--tgt-seq")) r.read.sizes.emplace_back("tgt_seq", positive("--tgt-seq", std::to_string(o.tgt_seq)));
  if (!o.image.empty()) {
    const auto x = o.image.find('x');
    const std::int64_t height = positive("--image", o.image.substr(0, x));
    const std::int64_t width = x == std::string::npos ? height : positive("--image", o.image.substr(x + 1));
    r.read.sizes.emplace_back("image", height);
    r.read.sizes.emplace_back("height", height);
    r.read.sizes.emplace_back("width", width);
  }
  if (app.count("--images") > 0) {
    if (o.images < 0 || o.images > 10'000) throw Error(fmt::format("--images: {} is not between 0 and 10,000", o.images));
    r.read.sizes.emplace_back("images", o.images);
  }
  if (app.count("--classes") > 0) r.read.sizes.emplace_back("classes", positive("--classes", std::to_string(o.classes)));
  for (auto& text : o.set) {
    auto [name, value] = named("--set", text);
    auto number = parse_int(value);
    if (!number) throw Error(fmt::format("--set {}: '{}' is not an integer", name, value));
    r.read.sizes.emplace_back(name, *number);
  }
  for (auto& text : o.input) r.read.inputs.push_back(parse_input(text));
  run.mode = one_of<run::Mode>("--mode", o.mode, {{"train", run::Mode::train}, {"infer", run::Mode::infer}});
  run.precision = precision_of(o, app.count("--amp") > 0);
  if (!o.precision.empty() && !run::autocast_dtype(run.precision)) r.read.dtype = run::model_dtype(run.precision);
  r.read.graph_lifetimes = one_of<bool>("--lifetimes", o.lifetimes, {{"frames", false}, {"graph", true}});
  run.optimizer = o.optimizer;
  run.grad_accum = o.grad_accum;
  run.steps = o.steps;
  if (run.grad_accum < 1 || run.grad_accum > 10'000)
    throw Error(fmt::format("--grad-accum: {} is not between 1 and 10,000", run.grad_accum));
  if (run.steps < 1 || run.steps > 10'000) throw Error(fmt::format("--steps: {} is not between 1 and 10,000", run.steps));
  run.zero_grad_to_none = one_of<bool>("--zero-grad", o.zero_grad, {{"none", true}, {"zero", false}});
  run.zero_grad_at = one_of<run::ZeroGradAt>(
      "--zero-grad-at", o.zero_grad_at,
      {{"start", run::ZeroGradAt::start}, {"before-backward", run::ZeroGradAt::before_backward}, {"end", run::ZeroGradAt::end}});
  run.loss = o.loss;
  r.read.chunked_loss = o.loss == "chunked";
  if (r.read.chunked_loss && run.mode != run::Mode::train)
    throw Error("--loss chunked is for training", "in --mode infer, --logits last keeps the logits of one position");
  run.input_grad = o.input_grad;
  run.inputs_resident = one_of<bool>("--inputs", o.inputs, {{"loader", false}, {"resident", true}});
  run.keep_output = one_of<bool>("--keep-output", o.keep_output, {{"yes", true}, {"no", false}});
  run.memory_format = one_of<MemoryFormat>("--memory-format", o.memory_format,
                                           {{"contiguous", MemoryFormat::contiguous}, {"channels_last", MemoryFormat::channels_last}});
  run.checkpointing = run::parse_checkpointing(o.checkpoint);
  apply(o.training, app, run);
  r.read.method = o.method;
  r.read.task = o.task;
  r.read.attention =
      one_of<std::string>("--attn", o.attention, {{"sdpa", "sdpa"}, {"eager", "eager"}, {"flash", "flash"}, {"math", "sdpa"}});
  run.math_attention = o.attention == "math";
  if (!o.experts.empty())
    r.read.experts =
        one_of<std::string>("--experts", o.experts, {{"grouped_mm", "grouped_mm"}, {"batched_mm", "batched_mm"}, {"eager", "eager"}});
  if (!o.use_cache.empty()) r.read.use_cache = one_of<bool>("--use-cache", o.use_cache, {{"yes", true}, {"no", false}});
  r.read.training = run.mode == run::Mode::train;
  r.read.file_dtype = o.precision.empty() && app.count("--amp") == 0 && !(run.quantization && run.quantization->dtype);
  if (!o.cache.empty()) r.read.cache = one_of<std::string>("--cache", o.cache, {{"dynamic", ""}, {"static", "static"}});
  if (!o.cache_dtype.empty()) {
    one_of<bool>("--cache-dtype", o.cache_dtype, {{"fp8", true}});
    if (!r.read.cache.empty()) throw Error("--cache-dtype: a static cache has the model's own type", "leave --cache static out");
    r.read.cache = o.cache_dtype;
  }
  if (app.count("--new-tokens") > 0 || !o.logits.empty()) {
    if (r.read.training) throw Error("--new-tokens and --logits are for --mode infer");
    if (o.new_tokens < 0 || o.new_tokens > 1'000'000)
      throw Error(fmt::format("--new-tokens: {} is not between 0 and 1,000,000", o.new_tokens));
    const bool all = o.logits.empty() ? o.new_tokens == 0 : one_of<bool>("--logits", o.logits, {{"last", false}, {"all", true}});
    run.new_tokens = o.new_tokens;
    run.all_logits = all;
    r.read.generates = o.new_tokens > 0;
    if (r.read.generates && !o.loss.empty()) throw Error("--loss: --new-tokens generates, and computes no loss", "leave one of them out");
    if (r.read.generates && app.count("--steps") == 0) run.steps = 1;
    if (!all) r.read.logits_to_keep = 1;
  }
  run.checkpointing_given = app.count("--checkpoint") > 0;
  const bool by_kbit = run.kbit_training && !run.checkpointing_given;
  r.read.checkpoint = run.checkpointing.where == run::Checkpointing::Where::full || by_kbit;
  r.read.reentrant = run.checkpointing.reentrant || by_kbit;
  if (!o.torch_version.empty()) r.torch = torch_version(o.torch_version);
  if (!o.transformers_version.empty()) r.read.transformers = transformers_version(o.transformers_version);
  if (!o.gpu.empty()) r.gpu = o.gpu;
  if (!o.gpu_memory.empty()) {
    r.gpu_memory = gpu_memory(o.gpu_memory);
    if (r.gpu) throw Error("--gpu and --gpu-memory exclude each other");
  }
  r.alloc_conf = o.alloc_conf;
  for (auto& text : o.env) r.environment.push_back(named("--env", text));
  r.semantics = one_of<RunSettings::Semantics>("--semantics", o.semantics,
                                               {{"cuda", RunSettings::Semantics::cuda},
                                                {"fake-tensor", RunSettings::Semantics::fake_tensor},
                                                {"meta", RunSettings::Semantics::fake_tensor},
                                                {"cpu", RunSettings::Semantics::fake_tensor}});
  if (o.semantics == "meta" || o.semantics == "cpu") r.counted_device = o.semantics;
  r.strict = o.strict;
  r.alloc_what_if = o.alloc_what_if;
  r.record_events = !o.trace.empty();
  if (r.record_events && !r.counted_device.empty())
    throw Error("--trace writes an allocator's events, and --semantics " + r.counted_device + " has no allocator");
  for (auto* option : app.get_options())
    if (option->count() > 0 && !option->get_lnames().empty()) r.given.push_back(option->get_lnames()[0]);
  if (app.count("--amp") > 0) r.given.emplace_back("precision");
  return r;
}

int run_estimate(const EstimateOptions& o, const CLI::App& app) {
  EstimateRequest r = request(o, app);
  r.figures = !o.quiet || !o.json.empty();
  Output json(o.json), trace(o.trace);
  const Estimate e = estimate(r);
  if (!o.quiet) print_notes(e.diagnostics);
  if (!o.json.empty()) json.write(report::to_json(e));
  if (!o.trace.empty()) trace.write(report::trace_to_json(e));
  if (o.json != "-" && o.trace != "-" && !o.quiet) fmt::print("{}", report::to_table(e, {.depth = o.depth}));
  return e.fit && !e.fit->fits ? kDoesNotFit : kDone;
}

void add_options(CLI::App* sub, EstimateOptions& o) {
  sub->add_option(
         "SPEC", o.spec,
         "A memest JSON spec, the name of one that ships with memest (memest list specs), a config.json of transformers or diffusers, a "
         ".pt2 or a TorchScript file")
      ->required();
  const char* model = "Model and input";
  sub->add_option("--batch", o.batch,
                  "Samples of a step; a list (32,32,7) changes from step to step; max: the largest number that fits --gpu or --gpu-memory")
      ->group(model)
      ->capture_default_str();
  sub->add_option("--seq", o.seq,
                  "Tokens of a sample: the size \"seq\" of the spec; max: the longest context that fits --gpu or --gpu-memory, up to the "
                  "model's own")
      ->group(model);
  sub->add_option("--src-seq", o.src_seq, "Tokens of an encoder's input, where they are not those of --seq: the size \"src_seq\"")
      ->group(model);
  sub->add_option("--tgt-seq", o.tgt_seq,
                  "Tokens of a decoder's target, the labels or decoder_input_ids, where they are not those of --seq: the size \"tgt_seq\"")
      ->group(model);
  sub->add_option("--image", o.image,
                  "Height and width of the image in pixels, N or HxW: the sizes \"image\", \"height\" and \"width\"; the latents of a "
                  "diffusion model are an eighth of it")
      ->group(model);
  sub->add_option(
         "--images", o.images,
         "Images of a sample, of a model of images and text; --seq counts their tokens. One with --task image-text-to-text, none with "
         "causal-lm, by default")
      ->group(model);
  sub->add_option("--input", o.input, "Another shape or type of an input: NAME=SHAPE[:DTYPE], as x=8x3x224x224:float32")
      ->group(model)
      ->allow_extra_args(false);
  sub->add_option("--method", o.method, "Of a TorchScript file: the method to run, forward by default")->group(model);
  sub->add_option("--task", o.task,
                  "Of a Hugging Face config: causal-lm, masked-lm, seq-cls, token-cls, question-answering, multiple-choice, pretraining, "
                  "seq2seq, image-cls, semantic-seg, masked-image, zero-shot-image-cls, image-text-to-text, audio-cls, ctc, text-encoding, "
                  "base; the class that the file names by default. Of AutoencoderKL of diffusers: encode or decode alone")
      ->group(model);
  sub->add_option("--attn", o.attention,
                  "sdpa; math: scaled_dot_product_attention with its math kernel alone; of a Hugging Face config also eager, and flash: "
                  "flash_attention_2, grouped heads as they are and no masks")
      ->group(model)
      ->capture_default_str();
  sub->add_option("--experts", o.experts,
                  "Of a Hugging Face config: how experts are computed, grouped_mm (the library's own), batched_mm or eager")
      ->group(model);
  sub->add_option("--new-tokens", o.new_tokens,
                  "Of a Hugging Face config, with --mode infer: model.generate() with a prompt of --seq tokens and its mask; the phase "
                  "forward is the prefill, decode the rest, in which the KV cache grows by a token a call")
      ->group(model);
  sub->add_option("--logits", o.logits,
                  "With --mode infer: last (logits_to_keep=1, the default of generate) or all positions of the prompt (the default of a "
                  "plain forward; generate then casts them to float32 too, as transformers did before 4.45)")
      ->group(model);
  sub->add_option("--use-cache", o.use_cache, "Of a Hugging Face config: yes or no; the config's own by default")->group(model);
  sub->add_option("--cache", o.cache,
                  "With --new-tokens: dynamic, which grows by a token a call, or static (cache_implementation=\"static\"): keys and values "
                  "of prompt and new tokens from the first call on, windows no longer than they are; run without torch.compile")
      ->group(model);
  sub->add_option(
         "--cache-dtype", o.cache_dtype,
         "With --new-tokens: fp8 (cache_implementation=\"quantized\", backend fp8): one byte an element, and all of a layer in the "
         "model's type while it is attended to")
      ->group(model);
  sub->add_option("--classes", o.classes, "Classes of the head: the size \"classes\" of the spec, num_labels of a Hugging Face config")
      ->group(model);
  sub->add_option("--set", o.set, "Any other size of the spec: NAME=VALUE")->group(model)->allow_extra_args(false);
  sub->add_option("--lifetimes", o.lifetimes,
                  "Of an exported program: frames, values live as in the module that it was exported from; graph, they go after their last "
                  "use, as running the program itself has it")
      ->group(model)
      ->capture_default_str();
  const char* run = "How it is run";
  sub->add_option("--mode", o.mode, "train, or infer: eval mode under no_grad, nothing is saved for backward")
      ->group(run)
      ->capture_default_str();
  sub->add_option("--amp", o.amp,
                  "torch.autocast: fp16 (with a GradScaler) or bf16; parameters stay fp32, casts of them are kept until the context exits")
      ->group(run)
      ->expected(0, 1)
      ->default_str("fp16");
  sub->add_option("--precision", o.precision, "fp32, amp-fp16, amp-bf16, or bf16/fp16: the whole model and its inputs in that type")
      ->group(run);
  sub->add_option("--optimizer", o.optimizer,
                  "As in torch.optim, in lower case, with its own arguments: sgd:momentum=0.9,nesterov=true; adamw:fused=true; none")
      ->group(run)
      ->capture_default_str();
  sub->add_option("--grad-accum", o.grad_accum, "Micro-batches of a step; gradients stay between them")->group(run)->capture_default_str();
  sub->add_option(
         "--checkpoint", o.checkpoint,
         "Recompute in backward instead of saving. Of a list of layers: full (checkpoint_sequential, one segment a layer; of an HF "
         "model: each layer), segments=N, sqrt (that many segments), every=K (each K-th layer); modules=GLOB: modules by path, as "
         "layer*.*. With ,reentrant: use_reentrant=True; with ,keep=matmul, attention or convolution: their results are saved and "
         "not computed again")
      ->group(run)
      ->capture_default_str();
  sub->add_option("--zero-grad", o.zero_grad, "none frees gradients; zero keeps them, and each backward adds to them")
      ->group(run)
      ->capture_default_str();
  sub->add_option("--zero-grad-at", o.zero_grad_at, "start of the step, before-backward, or end of the step: gradients live until then")
      ->group(run)
      ->capture_default_str();
  sub->add_option("--loss", o.loss,
                  "cross_entropy, mse, l1, ... (memest list losses), with arguments as in huber:delta=0.5; sum, mean or none; the spec's "
                  "own where it names one, else sum. Of a Hugging Face config's causal-lm its own, or chunked: head and loss by "
                  "liger_kernel (Trainer's use_liger_kernel, this function alone), which never holds the logits of all tokens")
      ->group(run);
  sub->add_flag("--input-grad", o.input_grad, "The first input requires grad")->group(run);
  sub->add_option("--steps", o.steps, "Steps to run; the third is the steady state (one with --new-tokens)")
      ->group(run)
      ->capture_default_str();
  sub->add_option("--inputs", o.inputs, "loader moves each batch to the GPU; resident keeps one there for the whole run")
      ->group(run)
      ->capture_default_str();
  sub->add_option("--keep-output", o.keep_output,
                  "Whether the output's name lives until the next step's (yes) or is dropped after forward (no)")
      ->group(run)
      ->capture_default_str();
  sub->add_option("--memory-format", o.memory_format, "contiguous or channels_last, for model and images")
      ->group(run)
      ->capture_default_str();
  add_training_options(*sub, o.training);
  const char* device = "GPU and PyTorch";
  sub->add_option("--gpu", o.gpu, "The card, for the verdict and the sizes that depend on it (memest list gpus)")->group(device);
  sub->add_option("--gpu-memory", o.gpu_memory, "A card by its memory alone: 24GiB, 24GB, 24000MiB or bytes")->group(device);
  sub->add_option("--alloc-conf", o.alloc_conf, "PYTORCH_CUDA_ALLOC_CONF: max_split_size_mb:128,expandable_segments:True, ...")
      ->group(device);
  sub->add_flag("--alloc-what-if", o.alloc_what_if,
                "Also what other settings of the allocator would reserve: the run's allocations replayed under each")
      ->group(device);
  sub->add_option("--torch-version", o.torch_version, "The release to follow, 2.4 to 2.15 (the default)")->group(device);
  sub->add_option(
         "--transformers-version", o.transformers_version,
         "Of a Hugging Face config: the release of transformers to follow, 4.48 to 5.24 (the default); with PyTorch up to 2.9 one of "
         "its time")
      ->group(device);
  sub->add_option("--env", o.env, "A variable that PyTorch reads: NAME=VALUE")->group(device)->allow_extra_args(false);
  sub->add_option("--semantics", o.semantics,
                  "cuda; for diagnosis only: fake-tensor counts as PyTorch's FakeTensorMode, meta and cpu as LibTorch there (memest probe)")
      ->group(device)
      ->capture_default_str();
  sub->add_flag("--strict", o.strict, "An op that memest does not know is an error (exit 3) instead of an assumption")->group(device);
}

}  // namespace

std::function<EstimateRequest()> add_request_options(CLI::App& sub) {
  auto options = std::make_shared<EstimateOptions>();
  add_options(&sub, *options);
  return [options, &sub] {
    EstimateRequest r = request(*options, sub);
    r.figures = false;
    return r;
  };
}

void print_notes(const Diagnostics& diagnostics) {
  for (auto& d : diagnostics.list()) {
    std::string text = fmt::format("memest: {}: ", name_of(d.severity));
    if (!d.where.empty()) text += d.where + ": ";
    text += d.message;
    if (!d.hint.empty()) text += "\n  " + d.hint;
    fmt::print(stderr, "{}\n", text);
  }
}

Command add_estimate(CLI::App& app) {
  auto options = std::make_shared<EstimateOptions>();
  auto& o = *options;
  CLI::App* sub = app.add_subcommand("estimate", "What a training step or an inference of a model takes, and whether it fits");
  add_options(sub, o);
  const char* output = "Output";
  sub->add_option("--json", o.json, "Write the whole result as JSON to a file, - for stdout")->group(output);
  sub->add_option("--trace", o.trace, "Write the allocator's events as JSON to a file, - for stdout")->group(output);
  sub->add_option("--depth", o.depth, "Levels of modules in the table")->group(output)->capture_default_str()->check(CLI::Range(1, 100));
  sub->add_flag("--quiet", o.quiet, "No table and no notes; the exit code answers")->group(output);
  return {sub, [options, sub] { return run_estimate(*options, *sub); }};
}

}  // namespace memest::cli
