// torch.nn normalisation layers (torch/nn/modules/{batchnorm,normalization}.py).
#include <fmt/format.h>

#include "nn/layer.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

class BatchNorm final : public UnaryModule {
 public:
  BatchNorm(const char* type, int least_dim, int most_dim, I features, double eps, std::optional<double> momentum, bool affine, bool track)
      : UnaryModule(type), least_(least_dim), most_(most_dim), eps_(eps), momentum_(momentum.value_or(0)), track_(track) {
    if (features < 1) throw Error(fmt::format("{}: num_features must be positive, found {}", type, features));
    new_parameter("weight", {features}, affine);
    new_parameter("bias", {features}, affine);
    const DType dtype = runtime().default_dtype;
    new_buffer("running_mean", {features}, dtype, track);
    new_buffer("running_var", {features}, dtype, track);
    new_buffer("num_batches_tracked", {}, DType::int64, track);
  }
  Tensor forward(T input) override {
    if (input.dim() < least_ || input.dim() > most_)
      throw Error(fmt::format("expected {}D input (got {}D input)",
                              least_ == most_ ? std::to_string(least_) : fmt::format("{}D or {}", least_, most_), input.dim()));
    // self.num_batches_tracked.add_(1) writes in place
    const bool batch_statistics = training || !track_;
    return ops::batch_norm(input, parameter(0), parameter(1), !training || track_ ? buffer(0) : Tensor(),
                           !training || track_ ? buffer(1) : Tensor(), batch_statistics, momentum_, eps_, true);
  }

 private:
  int least_, most_;
  double eps_, momentum_;
  bool track_;
};
#define MEMEST_BATCH_NORM(NAME, LEAST, MOST)                                                                                            \
  const Layer NAME##_layer{#NAME                                                                                                        \
                           "(int num_features, float eps=1e-05, float? momentum=0.1, bool affine=True, bool track_running_stats=True)", \
                           [](I features, double eps, std::optional<double> momentum, bool affine, bool track) -> ModulePtr {           \
                             return std::make_shared<BatchNorm>(#NAME, LEAST, MOST, features, eps, momentum, affine, track);            \
                           }};
MEMEST_BATCH_NORM(BatchNorm1d, 2, 3)
MEMEST_BATCH_NORM(BatchNorm2d, 4, 4)
MEMEST_BATCH_NORM(BatchNorm3d, 5, 5)
#undef MEMEST_BATCH_NORM

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

class GroupNorm final : public UnaryModule {
 public:
  GroupNorm(I groups, I channels, double eps, bool affine) : UnaryModule("GroupNorm"), groups_(groups), eps_(eps) {
    if (groups < 1 || channels % groups != 0)
      throw Error(fmt::format("GroupNorm: num_channels ({}) must be divisible by num_groups ({})", channels, groups));
    new_parameter("weight", {channels}, affine);
    new_parameter("bias", {channels}, affine);
  }
  Tensor forward(T input) override { return ops::group_norm(input, groups_, parameter(0), parameter(1), eps_, true); }

 private:
  I groups_;
  double eps_;
};
const Layer group_norm{
    "GroupNorm(int num_groups, int num_channels, float eps=1e-05, bool affine=True)",
    [](I groups, I channels, double eps, bool affine) -> ModulePtr { return std::make_shared<GroupNorm>(groups, channels, eps, affine); }};

}  // namespace
}  // namespace memest::nn
