// A TorchScript file trained or run for real by LibTorch's interpreter, autograd and optimizers, on the CPU or the meta device, with every
// allocation of the device counted. What a CUDA probe would add is another allocator.
#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/version.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "torch/plugin.h"
#include "torch/script_file.h"

namespace memest::plugin {
namespace {

/// What lives on the device. Backward may run on threads of its own. Never destroyed: tensors outlive everything.
class Ledger {
 public:
  void add(void* context, std::size_t bytes) {
    std::lock_guard guard(lock_);
    live_[context] = std::int64_t(bytes);
    now_ += std::int64_t(bytes);
    peak_ = std::max(peak_, now_);
    ++allocations_;
  }
  void drop(void* context) {
    std::lock_guard guard(lock_);
    auto it = live_.find(context);
    if (it == live_.end()) return;  // of before the counting
    now_ -= it->second;
    live_.erase(it);
  }
  std::int64_t now() const { return now_; }
  std::int64_t allocations() const { return allocations_; }
  /// The peak since the last call.
  std::int64_t take_peak() {
    std::lock_guard guard(lock_);
    return std::exchange(peak_, now_);
  }

 private:
  std::mutex lock_;
  std::unordered_map<void*, std::int64_t> live_;
  std::int64_t now_ = 0, peak_ = 0, allocations_ = 0;
};
Ledger& ledger() {
  static auto* one = new Ledger;
  return *one;
}

/// No data, but a context whose deleter tells of the end.
class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* context = std::malloc(1);
    ledger().add(context, bytes);
    return {nullptr, context, &end, c10::Device(c10::kMeta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &end; }
  void copy_data(void*, const void*, std::size_t) const override {}

 private:
  static void end(void* context) {
    ledger().drop(context);
    std::free(context);
  }
};

class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr data = inner()->allocate(bytes);
    void* p = data.release_context();
    if (p) ledger().add(p, bytes);
    return {p, p, &end, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &end; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { inner()->copy_data(to, from, bytes); }
  static c10::Allocator*& inner() {
    static c10::Allocator* one = nullptr;
    return one;
  }

 private:
  static void end(void* p) {
    if (!p) return;
    ledger().drop(p);
    inner()->raw_deleter()(p);
  }
};

void count_on(c10::Device device) {
  if (device.is_meta()) return c10::SetAllocator(c10::kMeta, new MetaAllocator, 1);
  CpuAllocator::inner() = c10::GetCPUAllocator();
  c10::SetCPUAllocator(new CpuAllocator, 1);
}

/// Bytes of the storages of tensors, each storage once.
class Storages {
 public:
  std::int64_t bytes(const std::vector<at::Tensor>& tensors) {
    std::int64_t sum = 0;
    for (const at::Tensor& x : tensors)
      if (x.defined() && x.has_storage() && seen_.insert(x.storage().unsafeGetStorageImpl()).second)
        sum += std::int64_t(x.storage().nbytes());
    return sum;
  }

 private:
  std::unordered_set<const void*> seen_;
};

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

/// {"name": "adamw", "lr": 0.1, "momentum": 0.9, "nesterov": true}
std::unique_ptr<torch::optim::Optimizer> optimizer_of(const Json& j, const std::vector<at::Tensor>& parameters) {
  const std::string name = j.at("name");
  if (name == "none") return nullptr;
  std::set<std::string> used{"name", "foreach"};
  auto number = [&](const char* key, double otherwise) {
    used.insert(key);
    return j.value(key, otherwise);
  };
  auto flag = [&](const char* key) {
    used.insert(key);
    return j.value(key, false);
  };
  std::unique_ptr<torch::optim::Optimizer> made;
  using namespace torch::optim;
  if (name == "sgd")
    made = std::make_unique<SGD>(parameters, SGDOptions(number("lr", 1e-3))
                                                 .momentum(number("momentum", 0))
                                                 .dampening(number("dampening", 0))
                                                 .weight_decay(number("weight_decay", 0))
                                                 .nesterov(flag("nesterov")));
  if (name == "adam")
    made = std::make_unique<Adam>(parameters,
                                  AdamOptions(number("lr", 1e-3)).weight_decay(number("weight_decay", 0)).amsgrad(flag("amsgrad")));
  if (name == "adamw")
    made = std::make_unique<AdamW>(parameters,
                                   AdamWOptions(number("lr", 1e-3)).weight_decay(number("weight_decay", 1e-2)).amsgrad(flag("amsgrad")));
  if (name == "rmsprop")
    made = std::make_unique<RMSprop>(parameters, RMSpropOptions(number("lr", 1e-2))
                                                     .momentum(number("momentum", 0))
                                                     .weight_decay(number("weight_decay", 0))
                                                     .centered(flag("centered")));
  if (name == "adagrad")
    made = std::make_unique<Adagrad>(parameters, AdagradOptions(number("lr", 1e-2)).weight_decay(number("weight_decay", 0)));
  if (!made)
    throw BadRequest{"LibTorch's C++ library has no optimizer '" + name + "'", "a probe takes sgd, adam, adamw, rmsprop, adagrad or none"};
  for (auto& [key, value] : j.items())
    if (!used.contains(key)) throw BadRequest{"LibTorch's " + name + " has no option '" + key + "'", ""};
  return made;
}

/// Tensors that an optimizer keeps for its parameters.
std::vector<at::Tensor> state_of(torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> tensors;
  for (auto& [key, state] : optimizer.state()) {
    using namespace torch::optim;
    if (auto* sgd = dynamic_cast<SGDParamState*>(state.get())) tensors.push_back(sgd->momentum_buffer());
    if (auto* adam = dynamic_cast<AdamParamState*>(state.get()))
      for (const at::Tensor& x : {adam->exp_avg(), adam->exp_avg_sq(), adam->max_exp_avg_sq()}) tensors.push_back(x);
    if (auto* adamw = dynamic_cast<AdamWParamState*>(state.get()))
      for (const at::Tensor& x : {adamw->exp_avg(), adamw->exp_avg_sq(), adamw->max_exp_avg_sq()}) tensors.push_back(x);
    if (auto* rms = dynamic_cast<RMSpropParamState*>(state.get()))
      for (const at::Tensor& x : {rms->square_avg(), rms->momentum_buffer(), rms->grad_avg()}) tensors.push_back(x);
    if (auto* ada = dynamic_cast<AdagradParamState*>(state.get())) tensors.push_back(ada->sum());
  }
  return tensors;
}

class Probe {
 public:
  Probe(const Json& request, c10::Device device) : request_(request), device_(device), training_(request.value("training", true)) {}

  Json run() {
    file_ = load_script(request_, device_);
    if (!file_.packed.empty()) throw BadRequest{"the file holds quantised modules, which a probe does not run", ""};
    std::unordered_set<const void*> seen;  // a tied parameter is listed once for each name
    for (const at::Tensor& p : file_.module.parameters())
      if (seen.insert(p.unsafeGetTensorImpl()).second) parameters_.push_back(p);
    for (const at::Tensor& b : file_.module.buffers()) buffers_.push_back(b);
    if (training_) {
      std::vector<at::Tensor> trainable;
      std::copy_if(parameters_.begin(), parameters_.end(), std::back_inserter(trainable),
                   [](const at::Tensor& p) { return p.requires_grad(); });
      if (trainable.empty()) throw BadRequest{"the file has no parameter that requires grad", "--mode infer"};
      optimizer_ = optimizer_of(request_.at("optimizer"), trainable);
    }
    Storages storages;
    constants_ = ledger().now() - storages.bytes(parameters_) - storages.bytes(buffers_);
    reply_["torch"] = TORCH_VERSION;
    reply_["constants_bytes"] = constants_;
    for (const torch::jit::Module& m : file_.module.modules()) {
      const auto type = m.type()->name();
      const std::string name = type ? type->name() : "";
      if (name == "LSTM" || name == "GRU" || name == "RNN") reply_["recurrent"] = name;
    }
    reply_["phases"] = Json::array();
    at::AutoGradMode grad(training_);
    const int steps = request_.value("steps", 3);
    for (int step = 1; step <= steps; ++step) one_step(step);
    reply_["allocations"] = ledger().allocations();
    return std::move(reply_);
  }

 private:
  void one_step(int step) {
    ledger().take_peak();
    {  // x = x_host.to(device): the old batch lives until the new one is there
      std::vector<c10::IValue> fresh = make_arguments(file_, request_.at("inputs"), device_);
      arguments_ = std::move(fresh);
      inputs_.clear();
      for (Input& input : file_.inputs) inputs_.push_back(input.tensor);
      file_.inputs.clear();
    }
    end(step, "inputs");
    if (training_) {
      if (optimizer_)
        optimizer_->zero_grad(/*set_to_none=*/true);
      else
        for (at::Tensor& p : parameters_) p.mutable_grad().reset();
      end(step, "zero_grad");
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
    end(step, "forward");
    if (!training_) return;
    loss_.backward();
    end(step, "backward");
    if (optimizer_) optimizer_->step();
    end(step, "optimizer");
  }

  void end(int step, const char* phase) {
    Storages storages;
    std::vector<at::Tensor> gradients, state, outputs;
    for (const at::Tensor& p : parameters_) gradients.push_back(p.grad());
    if (optimizer_) state = state_of(*optimizer_);
    const std::int64_t parameters = storages.bytes(parameters_), buffers = storages.bytes(buffers_), inputs = storages.bytes(inputs_),
                       gradient = storages.bytes(gradients), optimizer = storages.bytes(state);
    const std::int64_t now = ledger().now() - constants_;
    reply_["phases"].push_back({{"step", step},
                                {"phase", phase},
                                {"peak_bytes", ledger().take_peak() - constants_},
                                {"end_bytes", now},
                                {"categories",
                                 {{"parameter", parameters},
                                  {"buffer", buffers},
                                  {"input", inputs},
                                  {"gradient", gradient},
                                  {"optimizer_state", optimizer},
                                  {"activation", now - parameters - buffers - inputs - gradient - optimizer}}}});
  }

  const Json& request_;
  c10::Device device_;
  bool training_;
  ScriptFile file_;
  std::vector<at::Tensor> parameters_, buffers_, inputs_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<c10::IValue> arguments_;
  c10::IValue out_;
  at::Tensor loss_;
  std::int64_t constants_ = 0;
  Json reply_;
};

}  // namespace

Json probe(const Json& request) {
  const std::string name = request.at("device");
  if (name != "cpu" && name != "meta")
    throw BadRequest{"this build of the plugin cannot probe the device '" + name + "'", "--device cpu or meta"};
  const c10::Device device(name == "cpu" ? c10::kCPU : c10::kMeta);
  count_on(device);
  try {
    return Probe(request, device).run();
  } catch (const BadRequest&) {
    throw;
  } catch (const std::exception& e) {
    throw BadRequest{"the run failed: " + message_of(e), ""};
  }
}

}  // namespace memest::plugin
