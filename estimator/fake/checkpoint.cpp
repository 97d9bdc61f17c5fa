#include "fake/checkpoint.h"

#include <algorithm>
#include <deque>
#include <memory>

#include "fake/kept.h"
#include "fake/observer.h"

namespace memest {
namespace {

struct StopRecomputation {};

/// The autocast mode that the region ran under; entered again for the recomputation (an inner context: its cache goes when the outermost
/// exits).
struct AutocastModes {
  bool enabled = runtime().autocast.enabled;
  DType dtype = runtime().autocast.dtype;
};
class AutocastReentry {
 public:
  explicit AutocastReentry(const AutocastModes& modes)
      : enabled_(runtime().autocast.enabled, modes.enabled), dtype_(runtime().autocast.dtype, modes.dtype) {
    ++runtime().autocast.nesting;
  }
  ~AutocastReentry() {
    if (--runtime().autocast.nesting == 0) runtime().autocast.cache.clear();
  }

 private:
  Scoped<bool> enabled_;
  Scoped<DType> dtype_;
};

/// Results that a region keeps, in the order of its kernels.
struct KeptResults {
  std::vector<KernelKind> kinds;
  std::deque<Tensors> results;
  bool keeps(KernelKind kind) const { return std::find(kinds.begin(), kinds.end(), kind) != kinds.end(); }
};
/// _CachingTorchDispatchMode: the first run.
struct Keeping final : KernelPolicy {
  explicit Keeping(KeptResults& k) : kept(k) {}
  Tensors run(KernelKind kind, const std::function<Tensors()>& kernel) override {
    Tensors made = kernel();
    if (!kept.keeps(kind)) return made;
    Tensors copies;
    for (auto& x : made) {
      if (x && x->storage->category == Category::temporary) x->storage->categorize(Category::activation);
      copies.push_back(x ? detached(x) : x);
    }
    kept.results.push_back(std::move(copies));
    return made;
  }
  KeptResults& kept;
};
/// _CachedTorchDispatchMode: the recomputation.
struct Taking final : KernelPolicy {
  explicit Taking(KeptResults& k) : kept(k) {}
  Tensors run(KernelKind kind, const std::function<Tensors()>& kernel) override {
    if (!kept.keeps(kind) || kept.results.empty()) return kernel();
    Tensors made = std::move(kept.results.front());
    kept.results.pop_front();
    return made;
  }
  KeptResults& kept;
};

/// One checkpointed call (torch/utils/checkpoint.py _CheckpointFrame). Lives while a saved tensor of the region does.
struct Frame {
  ~Frame() {
    region = nullptr;                           // its attributes go in order
    while (!inputs.empty()) inputs.pop_back();  // a list lets go of its last member first
  }
  Region region;
  std::vector<SavedTensor> inputs;  ///< saved_args: hooks around the region see them
  AutocastModes autocast;
  ModuleId module = runtime().module;
  std::size_t packed = 0;   ///< tensors saved by the first run
  std::vector<bool> held;   ///< which of them a node of the first run still holds: others are not kept when they are made again
  std::size_t arrived = 0;  ///< tensors saved by the recomputation so far
  bool recomputed = false;
  Tensors values;
  KeptResults kept;
};

struct Holder final : Packed {
  Holder(std::shared_ptr<Frame> f, std::size_t i) : frame(std::move(f)), index(i) { frame->held.push_back(true); }
  ~Holder() override {
    frame->held[index] = false;
    if (index < frame->values.size()) frame->values[index].reset();
  }
  Tensor unpack() override;
  std::shared_ptr<Frame> frame;
  std::size_t index;
};

struct ForwardHooks final : SavedTensorHooks {
  std::shared_ptr<Frame> frame = std::make_shared<Frame>();
  std::unique_ptr<Packed> pack(T) override { return std::make_unique<Holder>(frame, frame->packed++); }
};

struct RecomputeHooks final : SavedTensorHooks {
  explicit RecomputeHooks(Frame& f) : frame(f) {}
  std::unique_ptr<Packed> pack(T x) override {
    Tensor value = x.requires_grad() ? detached(x) : x;
    if (frame.arrived < frame.values.size() && frame.held[frame.arrived]) frame.values[frame.arrived] = value;
    if (++frame.arrived == frame.packed) throw StopRecomputation{};
    return std::make_unique<Kept>(value);
  }
  Frame& frame;
};

Tensor Holder::unpack() {
  Frame& f = *frame;
  Tensors inputs;
  if (!f.recomputed) {
    f.values.resize(f.packed);
    for (auto& x : f.inputs) inputs.push_back(x.unpack());  // may recompute a region around this one
    Runtime& rt = runtime();
    Scoped<ModuleId> module(rt.module, f.module);
    SavedTensorHooksScope hooks(Ref<SavedTensorHooks>(new RecomputeHooks(f)));
    GradMode grad(true);
    Scoped<bool> recomputing(rt.recomputing, true);
    Taking taking(f.kept);
    Scoped<KernelPolicy*> policy(rt.kernel_policy, f.kept.kinds.empty() ? nullptr : &taking);
    try {
      AutocastReentry modes(f.autocast);
      f.region(inputs);
    } catch (const StopRecomputation&) {
    }
    f.recomputed = true;
  }
  return std::move(f.values[index]);
}

}  // namespace

Tensors checkpoint(Region region, const Tensors& inputs, const std::vector<KernelKind>& keep) {
  if (!runtime().grad_mode) return region(inputs);
  if (Observer* observer = runtime().observer) {
    if (!keep.empty()) throw Error("a probe checkpoints whole regions", "leave keep=KIND out");
    observer->begin_region(region);
    Tensors outputs = region(inputs);
    observer->end_region();
    return outputs;
  }
  auto* hooks = new ForwardHooks;
  Ref<SavedTensorHooks> scope_ref(hooks);
  hooks->frame->region = region;
  for (auto& x : inputs) hooks->frame->inputs.emplace_back(x, false);
  hooks->frame->kept.kinds = keep;
  const std::shared_ptr<Frame> frame = hooks->frame;
  Keeping keeping(frame->kept);
  Scoped<KernelPolicy*> policy(runtime().kernel_policy, keep.empty() ? nullptr : &keeping);
  SavedTensorHooksScope scope(scope_ref);
  return region(inputs);
}

Tensors checkpoint_reentrant(Region region, const Tensors& inputs) {
  if (runtime().observer) throw Error("a probe checkpoints without reentrance", "leave reentrant out of --checkpoint");
  if (!runtime().grad_mode || !any_requires_grad(inputs)) {
    if (runtime().grad_mode)
      runtime().diagnostics.add({Diagnostic::Severity::warning, "checkpoint-without-grad",
                                 "None of the inputs have requires_grad=True. Gradients will be None: what a reentrant checkpoint of the "
                                 "model's input computes is not trained",
                                 "", "leave ,reentrant out, or let the input require grad with --input-grad"});
    NoGrad guard;
    return region(inputs);
  }
  auto produced = std::make_shared<std::vector<bool>>();
  auto n = node("CheckpointFunctionBackward", std::span<const Tensor>(inputs), std::span<const Tensor>(inputs),
                [region, produced, autocast = AutocastModes()](Backward& w, const Tensors& saved) {
                  Tensors detached_inputs, outputs, roots, gradients;
                  for (std::size_t i = 0; i < w.grad.size(); ++i)  // an autograd.Function gets zeros where no gradient arrived
                    if (!w.grad[i] && (*produced)[i]) w.grad[i] = empty(w.output_sizes(int(i)), w.output_dtype(int(i)));
                  for (std::size_t i = 0; i < saved.size(); ++i) {
                    detached_inputs.push_back(saved[i] ? detached(saved[i]) : Tensor());
                    if (w.needs(int(i))) detached_inputs.back()->requires_grad = true;
                  }
                  {
                    GradMode grad(true);
                    AutocastReentry modes(autocast);
                    Scoped<bool> recomputing(runtime().recomputing, true);
                    outputs = region(detached_inputs);
                  }
                  for (std::size_t i = 0; i < outputs.size(); ++i) {
                    if (!outputs[i] || !outputs[i].requires_grad() || !w.grad[i]) continue;
                    roots.push_back(outputs[i]);
                    gradients.push_back(w.grad[i]);
                  }
                  if (!roots.empty()) backward(roots, gradients);
                  for (std::size_t i = 0; i < saved.size(); ++i)
                    if (w.needs(int(i))) w.out[i] = detached_inputs[i]->grad;
                  // CPython drops a tuple's items from its end
                  while (!detached_inputs.empty()) detached_inputs.pop_back();
                });
  Tensors outputs;
  {
    NoGrad guard;
    outputs = region(inputs);
  }
  for (auto& x : outputs) produced->push_back(bool(x));
  n.outputs(std::span<const Tensor>(outputs));
  return outputs;
}

}  // namespace memest
