#include "torch/phases.h"

#include <ATen/Context.h>
#include <torch/version.h>

#include <algorithm>
#include <iterator>
#include <unordered_set>

namespace memest::plugin {
namespace {

/// Counts each storage once, over all calls.
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

}  // namespace

std::int64_t storage_bytes(const std::vector<at::Tensor>& tensors) { return Storages().bytes(tensors); }

void run_lstm_by_steps(c10::Device device) {
  if (device.is_cpu()) at::globalContext().setUserEnabledMkldnn(false);
}

void Phases::zero_grad() {
  for (at::Tensor& p : parameters) p.mutable_grad().reset();
}

std::vector<at::Tensor> Phases::trainable() const {
  std::vector<at::Tensor> list;
  std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(list), [](const at::Tensor& p) { return p.requires_grad(); });
  if (list.empty()) throw BadRequest{"no parameter requires grad", "--mode infer"};
  return list;
}

void Phases::end(int step, const std::string& phase) {
  Storages storages;
  std::vector<at::Tensor> gradients, state;
  for (const at::Tensor& p : parameters) gradients.push_back(p.grad());
  if (optimizer) state = optimizer->state();
  const std::int64_t now = memory_.now() - constants;
  std::int64_t rest = now;
  auto part = [&](const std::vector<at::Tensor>& tensors) {
    const std::int64_t bytes = storages.bytes(tensors);
    rest -= bytes;
    return bytes;
  };
  Json kinds{{"parameter", part(parameters)}};
  kinds["buffer"] = part(buffers);
  kinds["input"] = part(inputs);
  kinds["gradient"] = part(gradients);
  kinds["optimizer_state"] = part(state);
  kinds["activation"] = rest;
  phases_.push_back({{"step", step},
                     {"phase", phase},
                     {"peak_bytes", memory_.take_peak() - constants},
                     {"end_bytes", now},
                     {"categories", std::move(kinds)}});
}

Json Phases::reply() {
  return {{"torch", TORCH_VERSION}, {"phases", std::move(phases_)}, {"allocations", memory_.allocations()}, {"constants_bytes", constants}};
}

}  // namespace memest::plugin
