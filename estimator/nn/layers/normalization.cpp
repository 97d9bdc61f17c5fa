// torch.nn normalisation layers (torch/nn/modules/{batchnorm,instancenorm,normalization}.py, torch/nn/functional.py).
#include <fmt/format.h>

#include "nn/functional/normalization.h"
#include "nn/layer.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

struct Statistics {
  I features;
  double eps;
  std::optional<double> momentum;
  bool affine, track;
};

/// _NormBase: weight, bias, running_mean, running_var, num_batches_tracked.
class NormBase : public UnaryModule {
 public:
  NormBase(const char* type, const Statistics& s) : UnaryModule(type), s_(s) {
    if (s.features < 1) throw Error(fmt::format("{}: num_features must be positive, found {}", type, s.features));
    new_parameter("weight", {s.features}, s.affine);
    new_parameter("bias", {s.features}, s.affine);
    const DType dtype = runtime().default_dtype;
    new_buffer("running_mean", {s.features}, dtype, s.track);
    new_buffer("running_var", {s.features}, dtype, s.track);
    new_buffer("num_batches_tracked", {}, DType::int64, s.track);
  }

 protected:
  Statistics s_;
};

class BatchNorm final : public NormBase {
 public:
  BatchNorm(const char* type, int least_dim, int most_dim, const Statistics& s) : NormBase(type, s), least_(least_dim), most_(most_dim) {}
  Tensor forward(T input) override {
    if (input.dim() < least_ || input.dim() > most_) {
      const std::string wanted = least_ == most_ ? fmt::format("{}D", least_)
                                 : most_ > 5     ? fmt::format("at least {}D", least_)
                                                 : fmt::format("{}D or {}D", least_, most_);
      throw Error(fmt::format("expected {} input (got {}D input)", wanted, input.dim()));
    }
    // self.num_batches_tracked.add_(1) writes in place
    const bool batch_statistics = training || !s_.track;
    const bool uses_buffers = !training || s_.track;
    if (batch_statistics) verify_batch_size(input.sizes());
    return ops::batch_norm(input, parameter(0), parameter(1), uses_buffers ? buffer(0) : Tensor(), uses_buffers ? buffer(1) : Tensor(),
                           batch_statistics, s_.momentum.value_or(0), s_.eps, true);
  }

 private:
  int least_, most_;
};
#define MEMEST_BATCH_NORM(NAME, LEAST, MOST)                                                                                             \
  const Layer NAME##_layer{#NAME                                                                                                         \
                           "(int num_features, float eps=1e-05, float? momentum=0.1, bool affine=True, bool track_running_stats=True)",  \
                           [](I features, double eps, std::optional<double> momentum, bool affine, bool track) -> ModulePtr {            \
                             return std::make_shared<BatchNorm>(#NAME, LEAST, MOST, Statistics{features, eps, momentum, affine, track}); \
                           }};
MEMEST_BATCH_NORM(BatchNorm1d, 2, 3)
MEMEST_BATCH_NORM(BatchNorm2d, 4, 4)
MEMEST_BATCH_NORM(BatchNorm3d, 5, 5)
#undef MEMEST_BATCH_NORM
/// Without a process group its forward is F.batch_norm.
const Layer sync_batch_norm{
    "SyncBatchNorm(int num_features, float eps=1e-05, float? momentum=0.1, bool affine=True, bool track_running_stats=True, Any "
    "process_group=None)",
    [](I features, double eps, std::optional<double> momentum, bool affine, bool track, const Value&) -> ModulePtr {
      return std::make_shared<BatchNorm>("SyncBatchNorm", 2, 64, Statistics{features, eps, momentum, affine, track});
    }};

class InstanceNorm final : public NormBase {
 public:
  InstanceNorm(const char* type, int spatial, const Statistics& s) : NormBase(type, s), spatial_(spatial) {}
  Tensor forward(T input) override {
    if (input.dim() != spatial_ + 1 && input.dim() != spatial_ + 2)
      throw Error(fmt::format("expected {}D or {}D input (got {}D input)", spatial_ + 1, spatial_ + 2, input.dim()));
    const bool batched = input.dim() == spatial_ + 2;
    if (s_.affine && input.size(batched ? 1 : 0) != s_.features)
      throw Error(fmt::format("expected input's size at dim={} to match num_features ({}), but got: {}", batched ? 1 : 0, s_.features,
                              input.size(batched ? 1 : 0)));
    auto norm = [&](T x) {
      if (training || !s_.track) verify_spatial_size(x.sizes());
      return ops::instance_norm(x, parameter(0), parameter(1), buffer(0), buffer(1), training || !s_.track, s_.momentum.value_or(0), s_.eps,
                                true);
    };
    return batched ? norm(input) : ops::squeeze_dim(norm(ops::unsqueeze(input, 0)), 0);
  }

 private:
  int spatial_;
};
#define MEMEST_INSTANCE_NORM(N)                                                                                              \
  const Layer instance_norm##N##d{                                                                                           \
      "InstanceNorm" #N                                                                                                      \
      "d(int num_features, float eps=1e-05, float? momentum=0.1, bool affine=False, bool "                                   \
      "track_running_stats=False)",                                                                                          \
      [](I features, double eps, std::optional<double> momentum, bool affine, bool track) -> ModulePtr {                     \
        return std::make_shared<InstanceNorm>("InstanceNorm" #N "d", N, Statistics{features, eps, momentum, affine, track}); \
      }};
MEMEST_INSTANCE_NORM(1)
MEMEST_INSTANCE_NORM(2)
MEMEST_INSTANCE_NORM(3)
#undef MEMEST_INSTANCE_NORM

class LayerNorm final : public UnaryModule {
 public:
  LayerNorm(const Dims& shape, double eps, bool affine, bool bias) : UnaryModule("LayerNorm"), shape_(shape), eps_(eps) {
    new_parameter("weight", shape, affine);
    new_parameter("bias", shape, affine && bias);
  }
  Tensor forward(T input) override { return ops::layer_norm(input, shape_, parameter(0), parameter(1), eps_, true); }

 private:
  Dims shape_;
  double eps_;
};
const Layer layer_norm{"LayerNorm(int[1] normalized_shape, float eps=1e-05, bool elementwise_affine=True, bool bias=True)",
                       [](const Dims& shape, double eps, bool affine, bool bias) -> ModulePtr {
                         return std::make_shared<LayerNorm>(shape, eps, affine, bias);
                       }};

class RMSNorm final : public UnaryModule {
 public:
  RMSNorm(const Dims& shape, std::optional<double> eps, bool affine) : UnaryModule("RMSNorm"), shape_(shape), eps_(eps) {
    new_parameter("weight", shape, affine);
  }
  Tensor forward(T input) override { return ops::rms_norm(input, shape_, parameter(0), eps_); }

 private:
  Dims shape_;
  std::optional<double> eps_;
};
const Layer rms_norm{
    "RMSNorm(int[1] normalized_shape, float? eps=None, bool elementwise_affine=True)",
    [](const Dims& shape, std::optional<double> eps, bool affine) -> ModulePtr { return std::make_shared<RMSNorm>(shape, eps, affine); }};

class GroupNorm final : public UnaryModule {
 public:
  GroupNorm(I groups, I channels, double eps, bool affine) : UnaryModule("GroupNorm"), groups_(groups), eps_(eps) {
    if (groups < 1 || channels % groups != 0)
      throw Error(fmt::format("GroupNorm: num_channels ({}) must be divisible by num_groups ({})", channels, groups));
    new_parameter("weight", {channels}, affine);
    new_parameter("bias", {channels}, affine);
  }
  Tensor forward(T input) override {
    if (input.dim() >= 2) {
      Dims sizes{input.size(0) * input.size(1) / groups_, groups_};
      verify_batch_size(sizes + input.sizes().slice(2, input.dim()));
    }
    return ops::group_norm(input, groups_, parameter(0), parameter(1), eps_, true);
  }

 private:
  I groups_;
  double eps_;
};
const Layer group_norm{
    "GroupNorm(int num_groups, int num_channels, float eps=1e-05, bool affine=True)",
    [](I groups, I channels, double eps, bool affine) -> ModulePtr { return std::make_shared<GroupNorm>(groups, channels, eps, affine); }};

class LocalResponseNorm final : public UnaryModule {
 public:
  LocalResponseNorm(I size, double alpha, double beta, double k)
      : UnaryModule("LocalResponseNorm"), size_(size), alpha_(alpha), beta_(beta), k_(k) {}
  Tensor forward(T input) override {
    return Unbox<Tensor>::from(call_function("local_response_norm", {input, size_, alpha_, beta_, k_}, {}));
  }

 private:
  I size_;
  double alpha_, beta_, k_;
};
const Layer local_response_norm{
    "LocalResponseNorm(int size, float alpha=0.0001, float beta=0.75, float k=1.0)",
    [](I size, double alpha, double beta, double k) -> ModulePtr { return std::make_shared<LocalResponseNorm>(size, alpha, beta, k); }};

/// torch/nn/modules/_functions.py CrossMapLRN2d: an autograd function whose context keeps the scale.
class CrossMapLRN2d final : public UnaryModule {
 public:
  explicit CrossMapLRN2d(I size) : UnaryModule("CrossMapLRN2d"), size_(size) {}
  Tensor forward(T input) override {
    if (input.dim() != 4) throw Error("CrossMapLRN2d: Expected input to be 4D, got " + std::to_string(input.dim()) + "D instead.");
    auto scale = std::make_shared<Tensor>();
    auto fn = node("CrossMapLRN2dBackward", {input}, {input}, [scale, size = size_](Backward& w, T x, T) {
      const Dims& n = x.sizes();
      const Tensor padded_ratio = empty({n[1] + size - 1, n[2], n[3]}, x.dtype());
      const Tensor accumulated_ratio = empty({n[2], n[3]}, x.dtype());
      w.out[0] = empty(n, x.dtype());
    });
    Tensor y = empty(input.sizes(), input.dtype());
    *scale = empty(input.sizes(), input.dtype());
    fn.outputs({y}, {y});
    return y;
  }

 private:
  I size_;
};
const Layer cross_map_lrn2d{"CrossMapLRN2d(int size, float alpha=0.0001, float beta=0.75, float k=1)",
                            [](I size, double, double, double) -> ModulePtr { return std::make_shared<CrossMapLRN2d>(size); }};

}  // namespace
}  // namespace memest::nn
