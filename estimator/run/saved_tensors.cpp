#include "run/saved_tensors.h"

#include <algorithm>

#include "fake/kept.h"
#include "optim/tensors.h"

namespace memest::run {
namespace {

/// torch.autograd.graph.save_on_cpu(pin_memory=True) (torch/autograd/graph.py): a contiguous copy on the host, moved back when it is used.
/// Weights are saved tensors like others.
struct OnHost final : Packed {
  OnHost(T x, HostBytes& host) : sizes(x.sizes()), dtype(x.dtype()), on_host(x.on_host()), counted(host) {
    counted.now += bytes();
    counted.peak = std::max(counted.peak, counted.now);
  }
  ~OnHost() override { counted.now -= bytes(); }
  Tensor unpack() override {
    if (on_host) return host_tensor(sizes, dtype);
    CategoryScope category(Category::activation);
    return empty(sizes, dtype);
  }
  Bytes bytes() const { return checked_mul(sizes.numel(), item_size(dtype)); }
  Dims sizes;
  DType dtype;
  bool on_host;
  HostBytes& counted;
};
struct SaveOnCpu final : SavedTensorHooks {
  explicit SaveOnCpu(HostBytes& h) : host(h) {}
  std::unique_ptr<Packed> pack(T x) override { return std::make_unique<OnHost>(x, host); }
  HostBytes& host;
};

/// Hooks as people write them, one scale for each tensor:
///     pack:    scale = x.abs().amax() / largest; return (x / scale).to(type), scale      (int8: .round_() before)
///     unpack:  return q.to(x.dtype) * scale
/// Leaves that require grad (weights) and what has no floating type stay as they are.
struct Compressed final : Packed {
  Compressed(T x, DType type) : dtype(x.dtype()) {
    NoGrad guard;
    CategoryScope category(Category::temporary);
    Tensor absolute = optim::fresh("aten::abs", x);
    Tensor largest = optim::max_of(std::move(absolute));
    scale = optim::fresh("aten::div", std::move(largest));
    quantised = optim::fresh_as("aten::_to_copy", type, optim::fresh("aten::div", x, scale));
    scale->storage->categorize(Category::activation);
    quantised->storage->categorize(Category::activation);
  }
  Tensor unpack() override {
    NoGrad guard;
    Tensor wide = optim::fresh_as("aten::_to_copy", dtype, quantised);
    return optim::fresh("aten::mul", std::move(wide), scale);
  }
  DType dtype;
  Tensor quantised, scale;
};
struct Compress final : SavedTensorHooks {
  explicit Compress(DType t) : type(t) {}
  std::unique_ptr<Packed> pack(T x) override {
    const bool weight = x->requires_grad && !x->grad_fn;
    if (weight || !is_floating(x.dtype()) || x.on_host() || x.numel() == 0) return std::make_unique<Kept>(x);
    return std::make_unique<Compressed>(x, type);
  }
  DType type;
};

}  // namespace

Ref<SavedTensorHooks> saved_tensor_hooks(SavedTensors where, HostBytes& host) {
  switch (where) {
    case SavedTensors::kept: return {};
    case SavedTensors::cpu: return Ref<SavedTensorHooks>(new SaveOnCpu(host));
    case SavedTensors::int8: return Ref<SavedTensorHooks>(new Compress(DType::int8));
    case SavedTensors::fp8: return Ref<SavedTensorHooks>(new Compress(DType::float8_e4m3fn));
  }
  return {};
}

}  // namespace memest::run
