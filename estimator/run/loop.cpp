#include "run/loop.h"

#include <fmt/format.h>

#include "fake/autograd.h"
#include "ops/ops.h"
#include "optim/grad_scaler.h"
#include "optim/optimizer.h"
#include "run/checkpointed.h"
#include "run/loss.h"

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

class Loop {
 public:
  Loop(nn::Model& model, const RunOptions& options) : model_(model), o_(options), rt_(runtime()) {
    training_ = o_.mode == Mode::train;
    if (auto type = autocast_dtype(o_.precision)) amp_ = *type;
  }

  RunResult run() {
    count_states();
    model_.root->train(training_);
    set_batch(1);
    choose_loss();
    for (auto& x : host_inputs()) result_.inputs.push_back({model_.inputs[result_.inputs.size()].name, x.sizes(), x.dtype()});
    model_.root->enter_trace();
    rt_.begin_phase(Phase::load, 0);
    model_.root->to_device(o_.memory_format == MemoryFormat::channels_last ? MemoryFormat::channels_last : MemoryFormat::preserve);
    if (o_.inputs_resident) batch_on_device(host_batch());
    if (training_ && !trainable_.empty())
      if (auto make = optim::parse_optimizer(o_.optimizer)) optimizer_ = make(trainable_);
    if (training_ && o_.precision == Precision::amp_fp16) scaler_ = std::make_unique<optim::GradScaler>();
    for (int step = 1; step <= o_.steps; ++step) {
      set_batch(step);
      one_step(step);
    }
    result_.optimizer_state_bytes = optimizer_ ? optimizer_->state_bytes() : 0;
    result_.gradient_bytes = training_ ? result_.trainable_bytes : 0;
    result_.trace = std::move(rt_.trace);  // what the end of the loop's names frees belongs to no phase
    return std::move(result_);
  }

 private:
  void count_states() {
    for (auto& [name, p] : model_.root->named_parameters()) {
      const Bytes bytes = checked_mul(p.numel(), item_size(p.dtype()));
      result_.parameters = checked_add(result_.parameters, p.numel());
      result_.parameter_bytes = checked_add(result_.parameter_bytes, bytes);
      if (!p->requires_grad) continue;
      trainable_.push_back(p);
      result_.trainable += p.numel();
      result_.trainable_bytes += bytes;
    }
    for (auto& [name, b] : model_.root->named_buffers()) {
      ++result_.buffers;
      result_.buffer_bytes = checked_add(result_.buffer_bytes, checked_mul(b.numel(), item_size(b.dtype())));
    }
  }

  void set_batch(int step) { (*model_.symbols)["batch"] = o_.batches[std::min(std::size_t(step) - 1, o_.batches.size() - 1)]; }

  Tensors host_inputs() const {
    Tensors inputs;
    for (auto& spec : model_.inputs) {
      const DType type = is_floating(spec.dtype) ? model_dtype(o_.precision) : spec.dtype;
      inputs.push_back(host_tensor(spec.sizes(*model_.symbols), type));
    }
    return inputs;
  }

  /// Resolves --loss, the file's own and the default, and checks that the loss fits the output.
  void choose_loss() {
    if (model_.computes_loss()) {
      result_.loss = "the model's own";
      return;
    }
    std::string name = o_.loss.empty() ? training_ ? (model_.loss.empty() ? "sum" : model_.loss) : "none" : o_.loss;
    result_.loss = name;
    loss_ = &find_loss(name);
    if (!training_ && name == "none") loss_ = nullptr;
  }

  /// The targets' shape needs the output's: a pass on a runtime of its own, whose events nobody sees.
  Tensor host_target() {
    if (!loss_ || !loss_->target(host_tensor({2, 2}, DType::float32))) return {};
    const std::int64_t batch = (*model_.symbols)["batch"];
    if (target_ && target_batch_ == batch) return target_;
    Runtime dry(rt_.settings);
    dry.default_dtype = rt_.default_dtype;
    NoGrad guard;
    AutocastContext autocast(amp_.has_value(), amp_.value_or(DType::float16));
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

  /// x, y = x_host.to("cuda"), y_host.to("cuda"): both exist before the old ones go.
  void batch_on_device(const Tensors& host) {
    Tensors fresh;
    for (auto& x : host) fresh.push_back(to_device(x, o_.memory_format));
    if (o_.input_grad && !fresh.empty()) fresh[0]->requires_grad = true;
    for (std::size_t i = 0; i < fresh.size(); ++i) {
      if (i < batch_.size())
        batch_[i] = std::move(fresh[i]);
      else
        batch_.push_back(std::move(fresh[i]));
    }
  }

  void zero_grad(int step) {
    rt_.begin_phase(Phase::zero_grad, step);
    for (auto& p : trainable_) {
      if (o_.zero_grad_to_none) p->grad.reset();
    }
    if (o_.inputs_resident && o_.input_grad && !batch_.empty()) batch_[0]->grad.reset();
  }

  void forward() {
    AutocastContext autocast(amp_.has_value(), amp_.value_or(DType::float16));
    nn::Outcome outcome = run_checkpointed(model_, o_.checkpointing, Tensors(batch_.begin(), batch_.begin() + std::ptrdiff_t(inputs_)));
    if (loss_) outcome.loss = loss_->compute(loss_input(outcome.out), batch_.size() > inputs_ ? batch_.back() : Tensor());
    out_ = std::move(outcome.out);
    loss_value_ = std::move(outcome.loss);
  }

  void one_step(int step) {
    for (int micro = 1; micro <= o_.grad_accum; ++micro) {
      const Tensors host = o_.inputs_resident ? Tensors() : host_batch();
      rt_.begin_phase(Phase::inputs, step, micro);
      if (!o_.inputs_resident) batch_on_device(host);
      if (training_ && micro == 1 && o_.zero_grad_at == ZeroGradAt::start) zero_grad(step);
      rt_.begin_phase(Phase::forward, step, micro);
      if (training_) {
        forward();
        if (o_.grad_accum > 1) loss_value_ = ops::div_scalar(loss_value_, std::int64_t{o_.grad_accum});
      } else {
        NoGrad guard;
        forward();
      }
      if (!o_.keep_output) out_ = None{};
      if (!training_) continue;
      if (micro == 1 && o_.zero_grad_at == ZeroGradAt::before_backward) zero_grad(step);
      rt_.begin_phase(Phase::backward, step, micro);
      backward_pass();
    }
    if (!training_) return;
    rt_.begin_phase(Phase::optimizer, step);
    optimizer_step();
    if (o_.zero_grad_at == ZeroGradAt::end) zero_grad(step);
  }

  void backward_pass() {
    if (scaler_) {
      Tensor scaled = scaler_->scale(loss_value_);
      memest::backward(scaled);
    } else {
      memest::backward(loss_value_);
    }
  }

  void optimizer_step() {
    if (!optimizer_) return;
    NoGrad guard;
    if (scaler_) {
      scaler_->step(*optimizer_);
      scaler_->update();
    } else {
      optimizer_->step();
    }
  }

  nn::Model& model_;
  const RunOptions& o_;
  Runtime& rt_;
  bool training_ = true;
  std::optional<DType> amp_;
  const LossRule* loss_ = nullptr;
  Tensors trainable_;
  RunResult result_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::GradScaler> scaler_;
  std::size_t inputs_ = 0;
  Tensor target_;
  std::int64_t target_batch_ = -1;
  // the loop's names
  Tensors batch_;
  Value out_;
  Tensor loss_value_;
};

}  // namespace

RunResult run_loop(nn::Model& model, const RunOptions& options) { return Loop(model, options).run(); }

}  // namespace memest::run
