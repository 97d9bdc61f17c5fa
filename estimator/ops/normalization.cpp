// Sources: derivatives.yaml; aten/src/ATen/native/Normalization.cpp, native/cudnn/BatchNorm.cpp,
// native/cuda/{Normalization.cu,layer_norm_kernel.cu,group_norm_kernel.cu}.
#include "ops/normalization.h"

#include "ops/copy.h"
#include "ops/iterator.h"
#include "ops/reductions.h"

namespace memest {
namespace {

/// _select_batch_norm_backend.
bool batch_norm_uses_cudnn(T input, T weight, T bias, T running_mean, bool training) {
  return input.dtype() != DType::bfloat16 && weight && bias && weight.dtype() != DType::bfloat16 &&
         (input.dtype() != DType::float16 || weight.dtype() == DType::float32) && ((running_mean && !training) || training) &&
         input.dim() >= 3 && (training ? input.sizes()[0] <= 880801 : input.sizes()[0] <= 65535) && input.numel() < (std::int64_t{1} << 31);
}

Tensor batch_norm(T input, T weight, T bias, T running_mean, T running_var, bool training, double, double, bool) {
  if (input.dim() < 2) throw Error("batch_norm: the input must have a channel dimension, found " + describe(input));
  const std::int64_t channels = input.sizes()[1];
  for (auto* x : {&weight, &bias, &running_mean, &running_var})
    if (*x && x->numel() != channels)
      throw Error("batch_norm: " + std::to_string(channels) + " channels do not meet a parameter or statistic of " +
                  std::to_string(x->numel()) + " elements: input " + describe(input));
  const DType statistics = weight ? op_math_type(weight.dtype()) : op_math_type(input.dtype());
  const bool cudnn = batch_norm_uses_cudnn(input, weight, bias, running_mean, training);
  auto fn = node(cudnn ? "CudnnBatchNormBackward0" : "NativeBatchNormBackward0", {input, weight, bias},
                 {input, weight, running_mean, running_var}, [](Backward& w, T x, T k, T, T, T, T) {
                   const bool one_needed = w.needs(0) || w.needs(1) || w.needs(2);
                   if (!one_needed) return;
                   Tensor grad =
                       is_contiguous(w.grad[0], suggest_memory_format(x)) ? w.grad[0] : ops::clone(w.grad[0], suggest_memory_format(x));
                   w.out[0] = empty(x.sizes(), x.dtype(), suggest_memory_format(x));
                   if (k) w.out[1] = empty_like(k), w.out[2] = empty_like(k);
                   for (int i = 0; i < 3; ++i)
                     if (!w.needs(i)) w.out[std::size_t(i)].reset();
                 });
  Tensor x = is_contiguous(input, suggest_memory_format(input)) ? input : ops::clone(input, suggest_memory_format(input));
  Tensor y = empty(input.sizes(), input.dtype(), suggest_memory_format(input));
  const std::int64_t saved = training ? channels : 0;
  Tensor mean = empty({saved}, statistics), inverse_std = empty({saved}, statistics);
  fn.outputs({y}, {mean, inverse_std});
  return y;
}

Dims normalized_rows(T input, const Dims& normalized_shape, bool keepdim) {
  const int inner = normalized_shape.size(), outer = input.dim() - inner;
  if (inner == 0 || outer < 0 || !(input.sizes().slice(outer, input.dim()) == normalized_shape))
    throw Error("given normalized_shape=" + to_string(normalized_shape) + ", expected an input with these last sizes, found " +
                describe(input));
  Dims rows = input.sizes().slice(0, outer);
  for (int i = 0; keepdim && i < inner; ++i) rows.push_back(1);
  return rows;
}

Tensor layer_norm(T input, const Dims& normalized_shape, T weight, T bias, double, bool) {
  const Dims rows = normalized_rows(input, normalized_shape, true);
  auto fn = node("NativeLayerNormBackward0", {input, weight, bias}, {bias, input, weight}, [](Backward& w, T b, T x, T k, T, T) {
    Tensor grad = is_contiguous(w.grad[0]) ? w.grad[0] : ops::clone(w.grad[0], MemoryFormat::contiguous);
    if (w.needs(0)) w.out[0] = empty(x.sizes(), x.dtype());
    if (w.needs(1)) w.out[1] = empty(k.sizes(), k.dtype());
    if (w.needs(2)) w.out[2] = empty(b.sizes(), b.dtype());
  });
  Tensor x = ops::contiguous_tensor(input);
  Tensor y = empty(input.sizes(), input.dtype());
  Tensor mean = empty(rows, op_math_type(input.dtype())), rstd = empty(rows, op_math_type(input.dtype()));
  fn.outputs({y}, {mean, rstd});
  return y;
}

Tensor group_norm(T input, std::int64_t num_groups, T weight, T bias, double, bool) {
  if (input.dim() < 2 || num_groups <= 0 || input.sizes()[1] % num_groups != 0)
    throw Error("group_norm: expected the number of channels to be divisible by num_groups = " + std::to_string(num_groups) + ", found " +
                describe(input));
  const Dims stats{input.sizes()[0], num_groups}, per_channel{input.sizes()[0], input.sizes()[1]};
  const DType acc = op_math_type(input.dtype());
  auto fn =
      node("NativeGroupNormBackward0", {input, weight, bias}, {input, weight}, [per_channel, stats, acc](Backward& w, T x, T k, T, T) {
        if (w.needs(0)) w.out[0] = empty(x.sizes(), x.dtype());
        if (w.needs(1)) w.out[1] = empty_like(k);
        if (w.needs(2)) w.out[2] = empty_like(k);
        Scratch ds(per_channel.numel() * item_size(acc)), db(per_channel.numel() * item_size(acc));
      });
  Tensor y = empty(input.sizes(), input.dtype(), suggest_memory_format(input));
  Tensor mean = empty(stats, input.dtype()), rstd = empty(stats, input.dtype());
  { Scratch a(per_channel.numel() * item_size(acc)), b(per_channel.numel() * item_size(acc)); }
  fn.outputs({y}, {mean, rstd});
  return y;
}

}  // namespace

namespace ops {
const Op<Tensor(T, T, T, T, T, bool, double, double, bool)> batch_norm{
    {"aten::batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, float "
     "momentum, float eps, bool "
     "cudnn_enabled) -> Tensor",
     Autocast::none, "input, weight, running_mean, running_var, save_mean, save_invstd",
     "native/Normalization.cpp; native/cudnn/BatchNorm.cpp"},
    memest::batch_norm};
const Op<Tensor(T, const Dims&, T, T, double, bool)> layer_norm{
    {"aten::layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-05, bool "
     "cudnn_enable=True) -> Tensor",
     Autocast::fp32, "bias, input, weight, mean, rstd", "derivatives.yaml native_layer_norm; native/cuda/layer_norm_kernel.cu"},
    memest::layer_norm};
const Op<Tensor(T, std::int64_t, T, T, double, bool)> group_norm{
    {"aten::group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1e-05, bool cudnn_enabled=True) -> "
     "Tensor",
     Autocast::fp32, "input, weight, mean, rstd", "derivatives.yaml native_group_norm; native/cuda/group_norm_kernel.cu"},
    memest::group_norm};
}  // namespace ops
}  // namespace memest
