#include "run/loop.h"

#include <fmt/format.h>

#include <set>

#include "base/text.h"
#include "fake/autograd.h"
#include "fake/observer.h"
#include "ops/ops.h"
#include "optim/clip_grad.h"
#include "optim/grad_scaler.h"
#include "optim/master_weights.h"
#include "optim/optimizer.h"
#include "run/averaged_model.h"
#include "run/checkpointed.h"
#include "run/lora.h"
#include "run/loss.h"
#include "run/quantize.h"
#include "run/saved_tensors.h"

namespace memest::run {
namespace {

/// x_host.to("cuda").
Tensor to_device(T host, MemoryFormat format) {
  CategoryScope category(Category::input);
  return ops::to_device(host, format == MemoryFormat::channels_last && host.dim() == 4 ? format : MemoryFormat::preserve);
}

/// The tensor that a loss looks at: the output, or the first tensor of a structure.
Tensor loss_input(const Value& out) {
  Tensors tensors;
  collect_tensors(out, tensors);
  if (tensors.empty()) throw Error("the model's output holds no tensor");
  return tensors[0];
}

bool matches_any(const std::vector<std::string>& globs, const std::string& name) {
  for (auto& glob : globs)
    if (glob_match(glob, name)) return true;
  return false;
}

/// What a recorded region is: grad mode as an option names it.
class GradScope {
 public:
  GradScope(bool grad, bool inference)
      : grad_(runtime().grad_mode, grad && runtime().grad_mode), inference_(runtime().inference_mode, inference) {}

 private:
  Scoped<bool> grad_, inference_;
};

class Loop {
 public:
  Loop(nn::Model& model, const RunOptions& options) : model_(model), o_(options), rt_(runtime()) {
    training_ = o_.mode == Mode::train;
    if (auto type = autocast_dtype(o_.precision)) amp_ = *type;
  }

  RunResult run() {
    if (o_.new_tokens > 0 && !model_.generates())
      throw Error("--new-tokens: this model does not generate",
                  "a Hugging Face config of a decoder-only model or of an encoder-decoder does");
    const bool quantized = o_.quantization.has_value(), checkpointed = o_.checkpointing.where != Checkpointing::Where::none;
    if (quantized) quantize(model_, *o_.quantization, amp_.value_or(model_dtype(o_.precision)));
    if (o_.lora) add_lora(model_, *o_.lora, checkpointed, quantized || o_.kbit_training);
    freeze();
    count_states();
    model_.root->train(training_);
    set_batch(1);
    choose_loss();
    wrap_checkpointed(model_, o_.checkpointing);
    for (auto& x : host_inputs()) result_.inputs.push_back({model_.inputs[result_.inputs.size()].name, x.sizes(), x.dtype()});
    model_.root->enter_trace();
    begin(Phase::load, 0);
    if (quantized)
      load_quantized(model_);
    else
      model_.root->to_device(o_.memory_format == MemoryFormat::channels_last ? MemoryFormat::channels_last : MemoryFormat::preserve);
    if (o_.kbit_training) prepare_kbit_training(model_);
    if (o_.lora) load_adapters(model_);
    if (quantized || o_.kbit_training) count_stored_bytes();
    if (o_.inputs_resident) batch_on_device(host_batch());
    if (training_) make_training_state();
    hooks_ = saved_tensor_hooks(training_ ? o_.saved_tensors : SavedTensors::kept, host_saved_);
    if (rt_.observer) announce(*rt_.observer);
    for (int step = 1; step <= o_.steps; ++step) {
      set_batch(step);
      one_step(step);
      if (o_.empty_cache == EmptyCache::step) rt_.empty_cache();
    }
    result_.optimizer_state_bytes = optimizer_ ? optimizer_->state_bytes() : 0;
    result_.host_bytes.optimizer_state = optimizer_ ? optimizer_->host_state_bytes() : 0;
    result_.host_bytes.saved_peak = host_saved_.peak;
    result_.gradient_bytes = training_ ? result_.trainable_bytes : 0;
    result_.averaged_bytes = averaged_ ? averaged_->bytes() : 0;
    result_.master_bytes = masters_ ? masters_->bytes() : 0;
    result_.trace = std::move(rt_.trace);  // what the end of the loop's names frees belongs to no phase
    rt_.observer = nullptr;
    return std::move(result_);
  }

 private:
  void begin(Phase phase, int step, int micro = 0) {
    if (o_.empty_cache == EmptyCache::phase && step > 0) rt_.empty_cache();
    rt_.begin_phase(phase, step, micro);
  }

  /// --freeze: requires_grad_(False) on the parameters that a glob names.
  void freeze() {
    for (auto& glob : o_.freeze) {
      std::vector<std::string> names;
      bool found = false;
      for (auto& [name, p] : model_.root->named_parameters()) {
        names.push_back(name);
        if (!glob_match(glob, name)) continue;
        p->requires_grad = false;
        found = true;
      }
      if (!found) throw Error(fmt::format("--freeze {}: no parameter of the model has such a name", glob), did_you_mean(glob, names));
    }
  }

  void count_states() {
    for (auto& [name, p] : model_.root->named_parameters()) {
      const Bytes bytes = checked_mul(p.numel(), item_size(p.dtype()));
      result_.parameters = checked_add(result_.parameters, p.numel());
      result_.parameter_bytes = checked_add(result_.parameter_bytes, bytes);
      if (!p->requires_grad) continue;
      trainable_.push_back(p);
      trainable_names_.push_back(name);
      result_.trainable += p.numel();
      result_.trainable_bytes += bytes;
    }
    for (auto& [name, b] : model_.root->named_buffers()) {
      ++result_.buffers;
      result_.buffer_bytes = checked_add(result_.buffer_bytes, checked_mul(b.numel(), item_size(b.dtype())));
    }
  }

  /// Parameters as they lie on the device, with their scales.
  void count_stored_bytes() {
    result_.parameter_bytes = quantization_state_bytes(*model_.root);
    result_.trainable_bytes = 0;
    for (auto& p : model_.root->parameters()) {
      const Bytes bytes = checked_mul(p.numel(), item_size(p.dtype()));
      result_.parameter_bytes = checked_add(result_.parameter_bytes, bytes);
      if (p->requires_grad) result_.trainable_bytes += bytes;
    }
  }

  void announce(Observer& observer) {
    for (auto& [name, p] : model_.root->named_parameters()) observer.state(name, p);
    for (auto& [name, b] : model_.root->named_buffers()) observer.state(name, b);
    hooks_ = observer.hooks();
  }

  void set_batch(int step) { (*model_.symbols)["batch"] = o_.batches[std::min(std::size_t(step) - 1, o_.batches.size() - 1)]; }

  Tensors host_inputs() const {
    Tensors inputs;
    for (auto& spec : model_.inputs) {
      const DType type = is_floating(spec.dtype) && !spec.keep_dtype ? model_dtype(o_.precision) : spec.dtype;
      inputs.push_back(host_tensor(spec.sizes(*model_.symbols), type));
    }
    return inputs;
  }

  /// Resolves --loss, the file's own and the default, and checks that the loss fits the output.
  void choose_loss() {
    if (model_.computes_loss()) {
      result_.loss = o_.loss == "chunked" ? o_.loss : "the model's own";
      return;
    }
    std::string name = o_.loss.empty() ? training_ ? (model_.loss.empty() ? "sum" : model_.loss) : "none" : o_.loss;
    result_.loss = name;
    loss_.emplace(name);
    if (!training_ && name == "none") loss_.reset();
  }

  /// The targets' shape needs the output's: a pass on a runtime of its own, whose events nobody sees.
  Tensor host_target() {
    if (!loss_ || !loss_->target(host_tensor({2, 2}, DType::float32))) return {};
    const std::int64_t batch = (*model_.symbols)["batch"];
    if (target_ && target_batch_ == batch) return target_;
    Runtime dry(rt_.settings);
    dry.default_dtype = rt_.default_dtype;
    dry.sdp = rt_.sdp;
    NoGrad guard;
    std::optional<AutocastContext> autocast;
    if (amp_) autocast.emplace(true, *amp_);
    Tensors inputs;
    for (auto& x : host_inputs()) inputs.push_back(to_device(x, o_.memory_format));
    nn::Outcome outcome = model_.forward(inputs);
    target_ = loss_->target(loss_input(outcome.out));
    target_batch_ = batch;
    return target_;
  }

  Tensors host_batch() {
    Tensors batch = host_inputs();
    inputs_ = batch.size();
    if (Tensor target = host_target()) batch.push_back(target);
    return batch;
  }

  Tensors moved(const Tensors& host) const {
    Tensors fresh;
    for (auto& x : host) fresh.push_back(to_device(x, o_.memory_format));
    return fresh;
  }

  /// x, y = x_host.to("cuda"), y_host.to("cuda"): both exist before the old ones go.
  void batch_on_device(const Tensors& host) {
    Tensors fresh = moved(host);
    if (o_.input_grad && !fresh.empty()) fresh[0]->requires_grad = true;
    for (std::size_t i = 0; i < fresh.size(); ++i) {
      if (i < batch_.size())
        batch_[i] = std::move(fresh[i]);
      else
        batch_.push_back(std::move(fresh[i]));
    }
  }

  /// The rest, then each --param-group, then --no-decay; a parameter is in the first that names it.
  optim::ParameterGroups parameter_groups() const {
    struct Named {
      const char* option;
      const std::vector<std::string>& globs;
      bool decays;
    };
    std::vector<Named> named;
    for (auto& globs : o_.parameter_groups) named.push_back({"--param-group", globs, true});
    if (!o_.no_decay.empty()) named.push_back({"--no-decay", o_.no_decay, false});
    optim::ParameterGroups groups(1 + named.size());
    for (std::size_t i = 0; i < trainable_.size(); ++i) {
      std::size_t group = 0;
      for (std::size_t k = 0; k < named.size() && group == 0; ++k)
        if (matches_any(named[k].globs, trainable_names_[i])) group = k + 1;
      groups[group].parameters.push_back(trainable_[i]);
    }
    for (std::size_t k = 0; k < named.size(); ++k) {
      groups[k + 1].decays = named[k].decays;
      if (groups[k + 1].parameters.empty())
        throw Error(fmt::format("{} {}: no trainable parameter {}has such a name", named[k].option, join(named[k].globs, ","),
                                k > 0 ? "outside the groups before it " : ""),
                    did_you_mean(named[k].globs[0], trainable_names_));
    }
    if (groups[0].parameters.empty() && !named.empty()) groups.erase(groups.begin());
    return groups;
  }

  void make_training_state() {
    if (o_.averaging != Averaging::none) averaged_ = std::make_unique<AveragedModel>(*model_.root, o_.averaging);
    if (!trainable_.empty())
      if (auto make = optim::parse_optimizer(o_.optimizer)) optimizer_ = make(parameter_groups());
    if (o_.precision == Precision::amp_fp16) scaler_ = std::make_unique<optim::GradScaler>();
    if (scaler_ && optimizer_ && optimizer_->needs_closure())
      throw Error("Closure use is not currently supported if GradScaler is enabled",
                  "use --precision amp-bf16 or fp32 with this optimizer");
    if (!o_.master_weights.empty() && optimizer_) {
      if (o_.resume != Resume::no) throw Error("--master-weights: --resume is not modelled with it");
      masters_ = optim::make_master_weights(o_.master_weights, model_dtype(o_.precision), *optimizer_);
    }
    if (optimizer_ && optimizer_->needs_closure() && o_.grad_accum > 1)
      throw Error("--grad-accum: an optimizer that calls a closure runs the whole step itself", "leave --grad-accum out");
    resume();
  }

  /// checkpoint = torch.load(path, map_location=...); model.load_state_dict copies in place; the optimizer takes the tensors, moved where
  /// they are on the host.
  void resume() {
    if (o_.resume == Resume::no) return;
    const bool mapped = o_.resume != Resume::host;
    if (mapped) {
      load_copies(*model_.root);
      if (optimizer_) optimizer_->load_state(true);
    } else if (optimizer_) {
      optimizer_->load_state(false);
    }
    if (o_.resume != Resume::device_kept) checkpoint_.drop();
  }
  /// model.state_dict() in its order, each storage once.
  void load_copies(nn::Module& module) {
    auto copies = [&](const auto& list, Category category) {
      CategoryScope scope(category);
      for (auto& [name, x] : list)
        if (x && loaded_.insert(x.get()).second) checkpoint_.push_back(empty_like(x));
    };
    copies(module.own_parameters(), Category::parameter);
    copies(module.own_buffers(), Category::buffer);
    for (auto& [name, child] : module.children()) load_copies(*child);
  }

  void zero_grad(int step) {
    begin(Phase::zero_grad, step);
    if (masters_) {
      masters_->zero_grad();
    } else if (optimizer_) {
      optimizer_->zero_grad(o_.zero_grad_to_none);
    } else if (o_.zero_grad_to_none) {
      for (auto& p : trainable_) p->grad.reset();
    }
    if (o_.inputs_resident && o_.input_grad && !batch_.empty()) batch_[0]->grad.reset();
  }

  bool zeroes_at(ZeroGradAt where) const { return o_.zero_grad_at == where && !(masters_ && masters_->zeroes_after_step()); }

  nn::Outcome outcome_of(const Tensors& batch) {
    nn::Outcome outcome = run_checkpointed(model_, o_.checkpointing, Tensors(batch.begin(), batch.begin() + std::ptrdiff_t(inputs_)));
    if (loss_) outcome.loss = loss_->compute(loss_input(outcome.out), batch.size() > inputs_ ? batch.back() : Tensor());
    return outcome;
  }

  void forward() {
    std::optional<AutocastContext> autocast;
    if (amp_) autocast.emplace(true, *amp_);
    std::optional<SavedTensorHooksScope> hooks;
    if (hooks_) hooks.emplace(hooks_);
    if (o_.new_tokens > 0) {
      const Tensors batch(batch_.begin(), batch_.begin() + std::ptrdiff_t(inputs_));
      out_ = model_.generate(batch, {o_.new_tokens, o_.all_logits, [this] { rt_.begin_phase(Phase::decode, step_, 1); }});
      return;
    }
    nn::Outcome outcome = outcome_of(batch_);
    hooks.reset();
    out_ = std::move(outcome.out);
    loss_value_ = std::move(outcome.loss);
  }

  void one_step(int step) {
    step_ = step;
    if (training_ && optimizer_ && optimizer_->needs_closure()) return closure_step(step);
    for (int micro = 1; micro <= o_.grad_accum; ++micro) {
      const Tensors host = o_.inputs_resident ? Tensors() : host_batch();
      begin(Phase::inputs, step, micro);
      if (!o_.inputs_resident) batch_on_device(host);
      if (training_ && micro == 1 && zeroes_at(ZeroGradAt::start)) zero_grad(step);
      begin(Phase::forward, step, micro);
      if (training_) {
        forward();
        if (o_.grad_accum > 1) loss_value_ = ops::div_scalar(loss_value_, std::int64_t{o_.grad_accum});
      } else {
        GradScope mode(o_.infer_mode == InferMode::grad, o_.infer_mode == InferMode::inference_mode);
        forward();
      }
      if (!o_.keep_output) out_ = None{};
      if (o_.leak_loss) leaked_.push_back(loss_value_ ? loss_value_ : loss_input(out_));
      if (!training_) continue;
      if (micro == 1 && zeroes_at(ZeroGradAt::before_backward)) zero_grad(step);
      begin(Phase::backward, step, micro);
      backward_pass();
    }
    if (!training_) return;
    begin(Phase::optimizer, step);
    optimizer_step();
    if (averaged_) averaged_->update();
    if (zeroes_at(ZeroGradAt::end)) zero_grad(step);
    evaluate(step);
  }

  /// optimizer.step(closure), the closure being: zero_grad, forward, backward, return loss. Its names die with each call.
  void closure_step(int step) {
    const Tensors host = o_.inputs_resident ? Tensors() : host_batch();
    begin(Phase::inputs, step, 1);
    if (!o_.inputs_resident) batch_on_device(host);
    int call = 0;
    begin(Phase::optimizer, step);
    NoGrad guard;
    optimizer_->step([&] {
      GradMode grad(true);
      ++call;
      zero_grad(step);
      begin(Phase::forward, step, call);
      forward();
      begin(Phase::backward, step, call);
      backward_pass();
      out_ = None{};
      if (o_.leak_loss) leaked_.push_back(loss_value_);
      begin(Phase::optimizer, step);
      if (o_.clip_grad_norm || o_.clip_grad_value)
        throw Error("clipping belongs into the closure of this optimizer, which memest does not model",
                    "leave --clip-grad-norm and --clip-grad-value out");
    });
    if (averaged_) averaged_->update();
    evaluate(step);
  }

  void backward_pass() {
    if (rt_.observer) return rt_.observer->backward(loss_value_);
    if (scaler_) {
      Tensor scaled = scaler_->scale(loss_value_);
      memest::backward(scaled);
    } else if (masters_) {
      memest::backward(masters_->before_backward(loss_value_));
      NoGrad guard;
      masters_->after_backward();
    } else {
      memest::backward(loss_value_);
    }
  }

  void optimizer_step() {
    if (rt_.observer) return;
    NoGrad guard;
    if (o_.clip_grad_norm || o_.clip_grad_value) {
      if (scaler_ && optimizer_) scaler_->unscale(*optimizer_);
      if (o_.clip_grad_norm) masters_ ? masters_->clip_grad_norm() : void(optim::clip_grad_norm(trainable_));
      if (o_.clip_grad_value) masters_ ? masters_->clip_grad_value() : optim::clip_grad_value(trainable_);
    }
    if (!optimizer_) return;
    if (masters_) {
      masters_->step();
      if (masters_->zeroes_after_step()) masters_->zero_grad();
    } else if (scaler_) {
      scaler_->step(*optimizer_);
      scaler_->update();
    } else {
      optimizer_->step();
    }
  }

  /// A function that evaluates one batch: model.eval(), its own names, model.train().
  void evaluate(int step) {
    if (o_.eval_between == EvalBetween::none) return;
    const Tensors host = o_.inputs_resident ? Tensors() : host_batch();
    begin(Phase::evaluation, step);
    model_.root->train(false);
    {
      GradScope mode(o_.eval_between == EvalBetween::grad, o_.eval_between == EvalBetween::inference_mode);
      const Tensors batch = o_.inputs_resident ? batch_ : moved(host);
      std::optional<AutocastContext> autocast;
      if (amp_) autocast.emplace(true, *amp_);
      nn::Outcome outcome = outcome_of(batch);
    }
    model_.root->train(true);
  }

  nn::Model& model_;
  const RunOptions& o_;
  Runtime& rt_;
  bool training_ = true;
  std::optional<DType> amp_;
  std::optional<Loss> loss_;
  Tensors trainable_;
  std::vector<std::string> trainable_names_;
  RunResult result_;
  std::unique_ptr<AveragedModel> averaged_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::GradScaler> scaler_;
  std::unique_ptr<optim::MasterWeights> masters_;
  optim::List checkpoint_;
  std::set<const TensorImpl*> loaded_;
  std::size_t inputs_ = 0;
  int step_ = 0;
  Tensor target_;
  std::int64_t target_batch_ = -1;
  HostBytes host_saved_;
  Ref<SavedTensorHooks> hooks_;
  // the loop's names
  Tensors batch_;
  Value out_;
  Tensor loss_value_;
  Tensors leaked_;
};

}  // namespace

void settle(RunOptions& o, const nn::Model& model) {
  if (model.quantization && o.quantization)
    throw Error("--quant: the model's weights are quantised already, " + model.quantization->text(), "leave --quant out")
        .within("/quantization_config");
  if (model.quantization) o.quantization = *model.quantization;
  if (o.kbit_training && !o.quantization)
    throw Error("--kbit-training prepares a model whose weights are quantised", "add --quant nf4-dq,compute=bf16 or the like");
  if (o.quantization && o.mode == Mode::train && !o.lora)
    throw Error("quantised weights are not trained: adapters beside them are", "add --lora targets=all-linear, or --mode infer");
  if (o.quantization && (o.averaging != Averaging::none || o.resume != Resume::no))
    throw Error("--quant does not go with --ema or --resume: quantised weights are not copied");
  if (o.quantization && o.memory_format != MemoryFormat::contiguous) throw Error("--quant does not go with --memory-format channels_last");
  if (model.kind == "diffusers-config" && o.checkpointing.where == Checkpointing::Where::full && o.checkpointing.reentrant)
    throw Error("--checkpoint full,reentrant: enable_gradient_checkpointing of diffusers has use_reentrant=False", "use --checkpoint full");
  if (o.kbit_training && !o.checkpointing_given && model.is_transformers())
    o.checkpointing.where = Checkpointing::Where::full, o.checkpointing.reentrant = true;
}

RunResult run_loop(nn::Model& model, const RunOptions& options) { return Loop(model, options).run(); }

}  // namespace memest::run
