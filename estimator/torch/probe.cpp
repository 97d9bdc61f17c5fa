// A training or inference loop run for real by LibTorch, its autograd and its optimizers, with every allocation of the device counted: of a
// TorchScript file by the interpreter, of another model as the program that memest recorded.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/jit/api/module.h>

#include <unordered_set>

#include "torch/phases.h"
#include "torch/plugin.h"
#include "torch/script_file.h"
#include "torch/training.h"

namespace memest::plugin {
namespace {

void collect(const c10::IValue& v, std::vector<at::Tensor>& into) {
  if (v.isTensor())
    into.push_back(v.toTensor());
  else if (v.isList())
    for (const c10::IValue& item : v.toList().vec()) collect(item, into);
  else if (v.isTuple())
    for (const c10::IValue& item : v.toTupleRef().elements()) collect(item, into);
  else if (v.isGenericDict())
    for (const auto& entry : v.toGenericDict()) collect(entry.value(), into);
}

class ScriptProbe {
 public:
  ScriptProbe(const Json& request, c10::Device device, Memory& memory)
      : request_(request), device_(device), training_(request.value("training", true)), phases_(memory), memory_(memory) {}

  Json run() {
    file_ = load_script(request_, device_);
    if (!file_.packed.empty()) throw BadRequest{"the file holds quantised modules, which a probe does not run", ""};
    std::unordered_set<const void*> seen;  // a tied parameter is listed once for each name
    for (const at::Tensor& p : file_.module.parameters())
      if (seen.insert(p.unsafeGetTensorImpl()).second) phases_.parameters.push_back(p);
    for (const at::Tensor& b : file_.module.buffers()) phases_.buffers.push_back(b);
    if (training_) phases_.optimizer = torch_optimizer(request_.at("optimizer"), phases_.trainable());
    std::vector<at::Tensor> states = phases_.parameters;
    states.insert(states.end(), phases_.buffers.begin(), phases_.buffers.end());
    phases_.constants = memory_.now() - storage_bytes(states);
    for (const torch::jit::Module& m : file_.module.modules())
      if (const auto type = m.type()->name(); type && type->name() == "LSTM") run_lstm_by_steps(device_);
    at::AutoGradMode grad(training_);
    const int steps = request_.value("steps", 3);
    for (int step = 1; step <= steps; ++step) one_step(step);
    return phases_.reply();
  }

 private:
  void one_step(int step) {
    memory_.take_peak();
    {  // x = x_host.to(device): the old batch lives until the new one is there
      std::vector<c10::IValue> fresh = make_arguments(file_, request_.at("inputs"), device_);
      arguments_ = std::move(fresh);
      phases_.inputs.clear();
      for (Input& input : file_.inputs) phases_.inputs.push_back(input.tensor);
      file_.inputs.clear();
    }
    phases_.end(step, "inputs");
    if (training_) {
      phases_.zero_grad();
      phases_.end(step, "zero_grad");
    }
    {
      c10::IValue out = file_.module.get_method(file_.method)(arguments_);
      at::Tensor loss;
      if (training_) {
        std::vector<at::Tensor> tensors;
        collect(out, tensors);
        if (tensors.empty()) throw BadRequest{"the method's output holds no tensor", ""};
        const std::string name = request_.value("loss", "sum");
        if (name != "sum" && name != "mean") throw BadRequest{"a probe takes no loss '" + name + "'", "--loss sum or mean of the output"};
        loss = name == "sum" ? tensors[0].sum() : tensors[0].mean();
      }
      out_ = std::move(out);
      loss_ = std::move(loss);
    }
    phases_.end(step, "forward");
    if (!training_) return;
    loss_.backward();
    phases_.end(step, "backward");
    if (phases_.optimizer) phases_.optimizer->step();
    phases_.end(step, "optimizer");
  }

  const Json& request_;
  c10::Device device_;
  bool training_;
  Phases phases_;
  Memory& memory_;
  ScriptFile file_;
  std::vector<c10::IValue> arguments_;
  c10::IValue out_;
  at::Tensor loss_;
};

/// The CPU or the meta device, with the optimizers of LibTorch's C++ library.
class CountedBackend final : public Backend {
 public:
  CountedBackend(c10::Device device, Memory& memory) : device_(device), memory_(memory) {}
  c10::Device device() const override { return device_; }
  Memory& memory() override { return memory_; }
  std::unique_ptr<Optimizer> optimizer(const Json& request, const std::vector<at::Tensor>& parameters) override {
    return torch_optimizer(request, parameters);
  }

 private:
  c10::Device device_;
  Memory& memory_;
};

}  // namespace

Json probe(const Json& request) {
  const std::string name = request.at("device");
  if (name != "cpu" && name != "meta")
    throw BadRequest{"this build of the plugin cannot probe the device '" + name + "'", "--device cpu or meta"};
  const c10::Device device(name == "cpu" ? c10::kCPU : c10::kMeta);
  Memory& memory = counted_memory(device);
  try {
    if (!request.contains("program")) return ScriptProbe(request, device, memory).run();
    CountedBackend backend(device, memory);
    return run_program(request, backend);
  } catch (const BadRequest&) {
    throw;
  } catch (const std::exception& e) {
    throw BadRequest{"the run failed: " + message_of(e), ""};
  }
}

}  // namespace memest::plugin
