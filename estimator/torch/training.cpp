#include "torch/training.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <optional>

#include "torch/grad_scaler.h"
#include "torch/phases.h"
#include "torch/player.h"

namespace memest::plugin {
namespace {

class Training {
 public:
  Training(const Json& request, Backend& backend)
      : request_(request), backend_(backend), training_(request.value("training", true)), phases_(backend.memory()) {
    if (request.value("scaler", false)) scaler_.emplace();
  }

  Json run() {
    if (request_.value("math_attention", false)) {
      at::globalContext().setSDPUseFlash(false);
      at::globalContext().setSDPUseMemEfficient(false);
    }
    at::globalContext().setSDPUseCuDNN(false);  // whose workspaces nobody knows
    Json shortage;
    at::AutoGradMode grad(training_);
    try {
      loop();
    } catch (const c10::OutOfMemoryError& e) {
      shortage = {{"step", now_.step}, {"phase", now_.phase}, {"message", message_of(e)}};
      if (player_) {
        shortage["op"] = player_->running_op();
        shortage["module"] = player_->running_module();
      }
      phases_.end(now_.step, now_.phase);
    }
    Json reply = phases_.reply();
    if (!shortage.is_null()) reply["out_of_memory"] = std::move(shortage);
    return reply;
  }

 private:
  void loop() {
    std::optional<c10::ScalarType> autocast;
    if (request_.contains("autocast")) autocast = type_named(request_.at("autocast"));
    player_.emplace(request_.at("program"), backend_.device(), backend_.memory(), autocast);
    player_->load();
    phases_.parameters = player_->of("parameter");
    phases_.buffers = player_->of("buffer");
    if (training_) phases_.optimizer = backend_.optimizer(request_.at("optimizer"), phases_.trainable());
    backend_.memory().take_peak();
    while (const auto* mark = player_->next()) {
      if (auto* backward = std::get_if<Player::Backward>(mark)) {
        const at::Tensor& loss = player_->value(backward->loss);
        scaler_ ? scaler_->scale(loss).backward() : loss.backward();
      } else {
        end_phase(false);
        begin_phase(std::get<Player::Step>(*mark));
      }
    }
    end_phase(true);
  }

  void end_phase(bool last) {
    if (now_.step == 0) return;
    phases_.inputs = player_->of("input");
    phases_.end(now_.step, now_.phase);
    phases_.inputs.clear();
    if (last) backend_.end_step(now_.step);
  }

  void begin_phase(const Player::Step& next) {
    if (next.step != now_.step) {
      if (now_.step > 0) backend_.end_step(now_.step);
      backend_.begin_step(next.step);
    }
    now_ = next;
    if (now_.phase == "zero_grad") phases_.zero_grad();
    if (now_.phase == "optimizer") optimizer_step();
  }

  void optimizer_step() {
    if (!phases_.optimizer) return;
    at::NoGradGuard guard;
    if (scaler_) scaler_->unscale(phases_.parameters);
    phases_.optimizer->step();
    if (scaler_) scaler_->update();
  }

  const Json& request_;
  Backend& backend_;
  bool training_;
  std::optional<Player> player_;
  Phases phases_;
  std::optional<GradScaler> scaler_;
  Player::Step now_{"load", 0, 0};
};

}  // namespace

Json run_program(const Json& request, Backend& backend) { return Training(request, backend).run(); }

}  // namespace memest::plugin
