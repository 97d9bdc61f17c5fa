#include "torch/region.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <utility>
#include <vector>

namespace memest::plugin {

/// Lives while a holder does.
struct Region::Frame {
  std::function<void()> again;
  std::size_t packed = 0;   ///< tensors saved by the first run
  std::size_t arrived = 0;  ///< tensors saved by the second so far
  bool runs_again = false, done = false;
  std::vector<at::Tensor> values;
};

namespace {

using FramePtr = std::shared_ptr<Region::Frame>;

/// The region that the thread is in.
FramePtr& current() {
  static thread_local FramePtr frame;
  return frame;
}

class Holder final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Holder(FramePtr frame) : frame_(std::move(frame)) {}

  void call_pack_hook(const at::Tensor& x) override {
    Region::Frame& f = *frame_;
    if (!f.runs_again) {
      place_ = f.packed++;
      return;
    }
    value_ = x.detach();
    if (f.arrived < f.values.size()) f.values[f.arrived] = value_;
    frame_.reset();
    if (++f.arrived == f.packed) throw StopRecomputation();
  }

  at::Tensor call_unpack_hook() override {
    if (value_.defined()) return value_;
    Region::Frame& f = *frame_;
    if (!f.done) run_again(f);
    return std::move(f.values[place_]);
  }

 private:
  void run_again(Region::Frame& f) {
    f.values.resize(f.packed);
    f.runs_again = true;
    const FramePtr outer = std::exchange(current(), frame_);
    at::AutoGradMode grad(true);
    try {
      f.again();
    } catch (const StopRecomputation&) {
    }
    current() = outer;
    f.done = true;
  }

  FramePtr frame_;
  std::size_t place_ = 0;
  at::Tensor value_;  ///< of a second run's own graph
};

/// The engine that everything asks for hooks.
struct Engine final : torch::autograd::Engine {
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (!current()) return nullptr;
    return std::make_unique<Holder>(current());
  }
};
torch::autograd::Engine& engine() {
  static auto* one = new Engine;
  return *one;
}

}  // namespace

Region::Region(std::function<void()> again) {
  static const bool set = (torch::autograd::set_default_engine_stub(&engine), true);
  (void)set;
  auto frame = std::make_shared<Frame>();
  frame->again = std::move(again);
  outer_ = std::exchange(current(), std::move(frame));
}
Region::~Region() { current() = std::move(outer_); }

}  // namespace memest::plugin
