// Sources: derivatives.yaml; aten/src/ATen/native/{Normalization,layer_norm,group_norm}.cpp, native/cudnn/BatchNorm.cpp,
// native/cuda/{Normalization.cu,Normalization.cuh,layer_norm_kernel.cu,group_norm_kernel.cu} of 2.15. cuDNN's workspace and reserve are not
// modelled.
#include "ops/normalization.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "fake/counted.h"
#include "ops/copy.h"
#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/views.h"

namespace memest {
namespace {
using I = std::int64_t;

Tensor in_format(T x, MemoryFormat format) { return is_contiguous(x, format) ? x : ops::clone(x, format); }
bool has_32bit_indices(T x) { return x.numel() <= std::numeric_limits<std::int32_t>::max(); }

// ---- batch norm --------------------------------------------------------------------------------------------------------

/// The type of the statistics that are kept: on the CPU the input's, unless the weight is wider (native/cpu/mixed_data_type.h).
DType statistics_type(T input, T weight) {
  return counts_cpu() && !(weight && weight.dtype() == DType::float32) ? input.dtype() : op_math_type(input.dtype());
}

/// _select_batch_norm_backend.
bool batch_norm_uses_cudnn(T input, T weight, T bias, T running_mean, bool training) {
  if (counts_cpu()) return false;
  return input.dtype() != DType::bfloat16 && weight && bias && weight.dtype() != DType::bfloat16 &&
         (input.dtype() != DType::float16 || weight.dtype() == DType::float32) && ((running_mean && !training) || training) &&
         input.dim() >= 3 && (training ? input.sizes()[0] <= 880801 : input.sizes()[0] <= 65535) && input.numel() < (I{1} << 31);
}

// The native kernels of native/cuda/Normalization.cu.
enum class Layout { contiguous, channels_last, general };

bool takes_channels_last_kernels(T x) {
  return is_contiguous(x, MemoryFormat::channels_last) || is_contiguous(x, MemoryFormat::channels_last_3d) ||
         (is_contiguous(x) && x.strides()[1] == 1);
}
/// batch_norm_choose_impl.
Layout layout_of(T x) {
  if (!has_32bit_indices(x)) return Layout::general;
  if (takes_channels_last_kernels(x)) return Layout::channels_last;
  return is_contiguous(x) ? Layout::contiguous : Layout::general;
}

/// The staging of a reduction by the channels_last kernels (flexible_launch_configs): `values` accumulators a channel and block row.
class ChannelsLastStaging {
 public:
  ChannelsLastStaging(T input, I values) : staging_(0), semaphores_(0) {
    constexpr I kElementsPerThread = 16, kTileWidth = 32, kMostThreads = 512, kMostRows = 128;
    const I channels = input.sizes()[1];
    if (channels == 0) return;
    const I rows = input.numel() / channels;
    auto last_power = [](I n) { return n < 1 ? I{1} : I(std::bit_floor(std::uint64_t(n))); };
    I x = std::min(last_power(channels), kTileWidth);
    const I y = std::min(last_power(ceil_div(rows, kElementsPerThread)), kMostThreads / x);
    if (x * y != kMostThreads) x = std::min(last_power(channels), kMostThreads / y);
    const I grid_y = std::min(ceil_div(rows, y * kElementsPerThread), kMostRows);
    if (grid_y < 8) return;  // one row of blocks: nothing to combine
    staging_ = Scratch(values * channels * grid_y * item_size(op_math_type(input.dtype())));
    semaphores_ = Scratch(4 * ceil_div(channels, x));
  }

 private:
  Scratch staging_, semaphores_;
};

/// A kernel that merges the spatial dimensions reads the gradient through a view, or else through a copy.
Tensor merged_spatially(T grad) {
  const Dims& n = grad.sizes();
  const Dims merged{n[0], n[1], n.slice(2, n.size()).numel()};
  return view_strides(n, grad.strides(), merged) ? grad : ops::clone(grad, MemoryFormat::contiguous);
}

struct NormGradients {
  Tensor input, weight, bias;
};

/// native_batch_norm_backward: batch_norm_backward_cuda.
NormGradients native_batch_norm_backward(T grad, T input, T weight, T running_mean, T save_mean, bool training,
                                         const std::array<bool, 3>& wanted) {
  const DType acc = op_math_type(input.dtype());
  const Dims channels{input.sizes()[1]};
  const bool reduces = training || wanted[1] || wanted[2];
  NormGradients out;
  if (reduces && wanted[0] && !takes_channels_last_kernels(input) && has_32bit_indices(input)) {  // one fused kernel
    const Tensor merged_input = merged_spatially(input);
    const Tensor merged = merged_spatially(grad);
    out.input = empty(input.sizes(), input.dtype());
    if (wanted[1]) out.weight = empty(weight.sizes(), weight.dtype());
    if (wanted[2]) out.bias = empty(weight.sizes(), weight.dtype());
    return out;
  }
  Tensor mean, invstd;
  if (!save_mean || save_mean.numel() == 0) {
    if (reduces && running_mean.dtype() != acc) mean = empty(channels, acc);
    invstd = empty(channels, acc);
  }
  Tensor sum_dy, sum_dy_xmu;
  if (reduces) {  // batch_norm_backward_reduce_cuda
    if (has_32bit_indices(grad) && takes_channels_last_kernels(grad) && takes_channels_last_kernels(input)) {
      sum_dy = empty(channels, acc);
      sum_dy_xmu = empty(channels, acc);
      if (weight) out.weight = empty(channels, weight.dtype()), out.bias = empty(channels, weight.dtype());
      ChannelsLastStaging staging(input, 2);
    } else {
      const Tensor merged_input = merged_spatially(input);
      const Tensor merged = merged_spatially(grad);
      if (wanted[0]) sum_dy = empty(channels, acc), sum_dy_xmu = empty(channels, acc);
      if (wanted[1]) out.weight = empty(channels, weight.dtype());
      if (wanted[2]) out.bias = empty(channels, weight.dtype());
    }
  }
  if (wanted[0]) {
    Tensor one;
    const Layout a = layout_of(input), b = layout_of(grad);
    if (training && (a != b || a == Layout::general) && !weight) one = empty({}, acc);  // a missing weight is a scalar of one
    out.input = empty(input.sizes(), input.dtype(), suggest_memory_format(input));
  }
  return out;
}

void keep_needed(Backward& w, NormGradients&& found) {
  if (w.needs(0)) w.out[0] = std::move(found.input);
  if (w.needs(1)) w.out[1] = std::move(found.weight);
  if (w.needs(2)) w.out[2] = std::move(found.bias);
}

using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;

ThreeTensors cudnn_batch_norm(T input, T weight, T bias, T running_mean, T running_var, bool training, double, double) {
  auto fn =
      node("CudnnBatchNormBackward0", {input, weight, bias}, {input, running_mean, running_var, weight},
           [training](Backward& w, T x, T mean, T, T k, T save_mean, T) {
             if (!training) {
               keep_needed(w, native_batch_norm_backward(w.grad[0], x, k, mean, save_mean, false, {w.needs(0), w.needs(1), w.needs(2)}));
               return;
             }
             const Tensor grad = in_format(w.grad[0], suggest_memory_format(x));
             NormGradients found;  // cuDNN computes all three
             found.input = empty(x.sizes(), x.dtype(), suggest_memory_format(x));
             found.weight = empty_like(k);
             found.bias = empty_like(k);
             keep_needed(w, std::move(found));
           });
  Tensor y = empty(input.sizes(), input.dtype(), suggest_memory_format(input));
  const I saved = training ? input.sizes()[1] : 0;
  Tensor mean = empty({saved}, weight.dtype());
  Tensor variance = empty({saved}, weight.dtype());
  fn.outputs({y}, {mean, variance});
  return {y, mean, variance};
}

ThreeTensors native_batch_norm(T input, T weight, T bias, T running_mean, T running_var, bool training, double, double) {
  auto fn =
      node("NativeBatchNormBackward0", {input, weight, bias}, {input, running_mean, running_var, weight},
           [training](Backward& w, T x, T mean, T, T k, T save_mean, T) {
             keep_needed(w, native_batch_norm_backward(w.grad[0], x, k, mean, save_mean, training, {w.needs(0), w.needs(1), w.needs(2)}));
           });
  const DType acc = statistics_type(input, weight);
  const I channels = counts_cpu() && !training ? 0 : input.sizes()[1];  // native/Normalization.cpp batch_norm_cpu
  Tensor y = empty_like(input);
  Tensor mean = empty({channels}, acc);
  Tensor invstd = empty({channels}, acc);
  const Layout layout = layout_of(input);
  if (training && layout == Layout::channels_last) ChannelsLastStaging staging(input, 4);
  if (training && layout == Layout::general) {  // var_mean: Welford's mean, sum of squares and two counts
    std::vector<bool> mask(std::size_t(input.dim()), true);
    mask[1] = false;
    reduce_scratch(input, mask,
                   {.accumulator_size = 4 * item_size(acc), .input_size = item_size(input.dtype()), .output_size = item_size(acc)});
  }
  if (layout == Layout::general) {
    Tensor one = weight ? Tensor() : empty({}, acc);
    Tensor zero = bias ? Tensor() : empty({}, acc);
  }
  fn.outputs({y}, {mean, invstd});
  return {y, mean, invstd};
}

constexpr const char* kBatchNorm =
    "derivatives.yaml; native/Normalization.cpp _batch_norm_impl_index, native/cudnn/BatchNorm.cpp, native/cuda/Normalization.cu";
const Op<ThreeTensors(T, T, T, T, T, bool, double, double)> cudnn_batch_norm_op{
    {"aten::cudnn_batch_norm(Tensor input, Tensor weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, float "
     "exponential_average_factor, float "
     "epsilon) -> (Tensor, Tensor, Tensor, Tensor)",
     Autocast::none, "input, weight, running_mean, running_var, save_mean, save_var", kBatchNorm},
    cudnn_batch_norm};
const Op<ThreeTensors(T, T, T, T, T, bool, double, double)> native_batch_norm_op{
    {"aten::native_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, float "
     "momentum, float eps) -> (Tensor, "
     "Tensor, Tensor)",
     Autocast::none, "input, weight, running_mean, running_var, save_mean, save_invstd", kBatchNorm},
    native_batch_norm};

// What decomposed programs call: the functional form gives new running statistics beside the result.
using FiveTensors = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
FiveTensors batch_norm_functional(T input, T weight, T bias, T running_mean, T running_var, bool training, double momentum, double eps) {
  Tensor mean = ops::clone(running_mean, MemoryFormat::preserve), variance = ops::clone(running_var, MemoryFormat::preserve);
  auto [y, save_mean, save_invstd] = native_batch_norm_op(input, weight, bias, mean, variance, training, momentum, eps);
  return {y, save_mean, save_invstd, mean, variance};
}
ThreeTensors batch_norm_no_training(T input, T weight, T bias, T running_mean, T running_var, double momentum, double eps) {
  return native_batch_norm_op(input, weight, bias, running_mean, running_var, false, momentum, eps);
}
const Op batch_norm_functional_record{
    {"aten::_native_batch_norm_legit_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, bool "
     "training, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
     Autocast::none, "as native_batch_norm", "native_functions.yaml; native/cuda/Normalization.cu"},
    batch_norm_functional};
const Op batch_norm_no_training_record{
    {"aten::_native_batch_norm_legit_no_training(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, "
     "float momentum, float eps) -> (Tensor, Tensor, Tensor)",
     Autocast::none, "as native_batch_norm", "native/Normalization.cpp _batch_norm_legit_no_training"},
    batch_norm_no_training};

Tensor batch_norm(T input, T weight, T bias, T running_mean, T running_var, bool training, double momentum, double eps,
                  bool cudnn_enabled) {
  if (input.dim() < 2) throw Error("batch_norm: the input must have a channel dimension, found " + describe(input));
  const I channels = input.sizes()[1];
  for (auto* x : {&weight, &bias, &running_mean, &running_var})
    if (*x && x->numel() != channels)
      throw Error("batch_norm: " + std::to_string(channels) + " channels do not meet a parameter or statistic of " +
                  std::to_string(x->numel()) + " elements: input " + describe(input));
  if (!training && !(running_mean && running_var))
    throw Error("batch_norm: expected running_mean and running_var to be defined when training=False");
  if (cudnn_enabled && batch_norm_uses_cudnn(input, weight, bias, running_mean, training)) {
    const Tensor x = ops::contiguous(input, suggest_memory_format(input));
    return std::get<0>(cudnn_batch_norm_op(x, weight, bias, running_mean, running_var, training, momentum, eps));
  }
  return std::get<0>(native_batch_norm_op(input, weight, bias, running_mean, running_var, training, momentum, eps));
}

// ---- instance norm: a batch norm of batch * channels channels ----------------------------------------------------------

Tensor repeated(T x, I times) { return x ? Unbox<Tensor>::from(call_op("aten::repeat", {x, list_of(Dims{times})}, {})) : Tensor(); }

Tensor instance_norm(T input, T weight, T bias, T running_mean, T running_var, bool use_input_stats, double momentum, double eps,
                     bool cudnn_enabled) {
  if (input.dim() < 3) throw Error("instance_norm: the input must have batch, channel and spatial dimensions, found " + describe(input));
  if (!use_input_stats && !(running_mean && running_var))
    throw Error("instance_norm: expected running_mean and running_var to be defined when use_input_stats is false");
  const I batch = input.sizes()[0], channels = input.sizes()[1];
  for (auto* x : {&weight, &bias, &running_mean, &running_var})
    if (*x && x->numel() != channels)
      throw Error("instance_norm: " + std::to_string(channels) + " channels do not meet a parameter or statistic of " +
                  std::to_string(x->numel()) + " elements");
  Dims merged = input.sizes();
  merged[0] = 1;
  merged[1] = checked_mul(batch, channels);
  const Tensor k = repeated(weight, batch);
  const Tensor b = repeated(bias, batch);
  const Tensor mean = repeated(running_mean, batch);
  const Tensor variance = repeated(running_var, batch);
  const Tensor x = ops::view(ops::contiguous_tensor(input), merged);
  Tensor y = ops::batch_norm(x, k, b, mean, variance, use_input_stats, momentum, eps, cudnn_enabled);
  auto update = [&](T statistic, T wide) {
    if (!statistic || !use_input_stats) return;
    const Tensor average = ops::mean_dim(ops::view(wide, {batch, channels}), Dims{0}, false, std::nullopt);
    ops::copy_(statistic, average, false);
  };
  update(running_mean, mean);
  update(running_var, variance);
  return ops::view(y, input.sizes());
}

// ---- layer norm and RMS norm -------------------------------------------------------------------------------------------

/// The sizes before the normalised ones, with ones in their place where `keepdim`.
Dims normalized_rows(T input, const Dims& normalized_shape, bool keepdim) {
  const int inner = normalized_shape.size(), outer = input.dim() - inner;
  if (inner == 0 || outer < 0 || !(input.sizes().slice(outer, input.dim()) == normalized_shape))
    throw Error("given normalized_shape=" + to_string(normalized_shape) + ", expected an input with these last sizes, found " +
                describe(input));
  Dims rows = input.sizes().slice(0, outer);
  for (int i = 0; keepdim && i < inner; ++i) rows.push_back(1);
  return rows;
}

/// GammaBetaBackward with more than 65,536 rows: partial sums of each gradient, then their sum in a new tensor (PR #150773).
void sum_partials(I rows, I columns, Tensor& weight, Tensor& bias) {
  constexpr I kManyRows = 65536, kBlock = 32, kMostBlocks = 32768;
  const RunSettings& settings = runtime().settings;
  if (!settings.kernel_scratch() || !settings.torch.norm_backward_partials() || rows <= kManyRows ||
      columns / kBlock >= settings.device.multiprocessors / 2)
    return;
  const I pieces = std::min(ceil_div(rows, kBlock), kMostBlocks / ceil_div(columns, kBlock));
  auto partials = [&](T of) {
    CategoryScope category(Category::workspace);
    return of ? empty({pieces, columns}, of.dtype()) : Tensor();
  };
  const Tensor of_weight = partials(weight);
  const Tensor of_bias = partials(bias);
  auto summed = [&](Tensor& gradient, T from) {
    if (!gradient) return;
    const Dims sizes = gradient.sizes();
    Tensor sum = ops::sum_kernel(from, {true, false}, false, from.dtype());
    gradient = sizes.size() == 1 ? std::move(sum) : share(sum, sizes, contiguous_strides(sizes), 0);
  };
  summed(weight, of_weight);
  summed(bias, of_bias);
}

using ThreeResults = std::tuple<Tensor, Tensor, Tensor>;
ThreeResults native_layer_norm(T input, const Dims& normalized_shape, T weight, T bias, double) {
  const Dims rows = normalized_rows(input, normalized_shape, true);
  const I columns = normalized_shape.numel();
  auto fn =
      node("NativeLayerNormBackward0", {input, weight, bias}, {bias, input, weight}, [columns](Backward& w, T b, T x, T k, T mean, T) {
        const Tensor x_in = ops::contiguous_tensor(x);
        if (w.needs(0)) w.out[0] = empty(x.sizes(), x.dtype());
        if (w.needs(1)) w.out[1] = empty(k.sizes(), k.dtype());
        if (w.needs(2)) w.out[2] = empty(b.sizes(), b.dtype());
        const Tensor grad = ops::contiguous_tensor(w.grad[0]);
        sum_partials(mean.numel(), columns, w.out[1], w.out[2]);
      });
  const DType acc = statistics_type(input, weight);
  const Tensor x = ops::contiguous_tensor(detached(input));
  Tensor y = empty(input.sizes(), input.dtype());
  Tensor mean = empty(rows, acc);
  Tensor rstd = empty(rows, acc);
  fn.outputs({y}, {mean, rstd});
  return {y, mean, rstd};
}
const Op<ThreeResults(T, const Dims&, T, T, double)> native_layer_norm_op{
    {"aten::native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, "
     "Tensor)",
     Autocast::fp32, "bias, input, weight, mean, rstd", "derivatives.yaml native_layer_norm; native/cuda/layer_norm_kernel.cu"},
    native_layer_norm};

Tensor layer_norm(T input, const Dims& normalized_shape, T weight, T bias, double eps, bool) {
  return std::get<0>(native_layer_norm_op(input, normalized_shape, weight, bias, eps));
}

using TwoTensors = std::tuple<Tensor, Tensor>;
TwoTensors fused_rms_norm(T input, const Dims& normalized_shape, T weight, std::optional<double>) {
  const Dims rows = normalized_rows(input, normalized_shape, true);
  const I columns = normalized_shape.numel();
  auto fn = node("FusedRmsNormBackward0", {input, weight}, {input, weight}, [columns](Backward& w, T x, T k, T rstd) {
    const Tensor x_in = ops::contiguous_tensor(x);
    if (w.needs(0)) w.out[0] = empty(x.sizes(), x.dtype());
    if (w.needs(1)) w.out[1] = empty(k.sizes(), k.dtype());
    const Tensor grad = ops::contiguous_tensor(w.grad[0]);
    Tensor none;
    sum_partials(rstd.numel(), columns, w.out[1], none);
  });
  const Tensor x = ops::contiguous_tensor(detached(input));
  Tensor y = empty(input.sizes(), input.dtype());
  Tensor rstd = empty(rows, op_math_type(input.dtype()));
  fn.outputs({y}, {rstd});
  return {y, rstd};
}
const Op<TwoTensors(T, const Dims&, T, std::optional<double>)> fused_rms_norm_op{
    {"aten::_fused_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> (Tensor, Tensor)", Autocast::none,
     "input, weight, rstd", "derivatives.yaml _fused_rms_norm; native/cuda/layer_norm_kernel.cu"},
    fused_rms_norm};

/// native/layer_norm.cpp rms_norm_composite; what is computed in which type changed with the releases.
Tensor rms_norm_composite(T input, const Dims& normalized_shape, T weight) {
  const TorchVersion& torch = runtime().settings.torch;
  const bool upcast = torch.rms_norm() != TorchVersion::RmsNorm::composite,
             late = torch.rms_norm() != TorchVersion::RmsNorm::composite_fp32_input;
  Dims dims;
  for (int i = 1; i <= normalized_shape.size(); ++i) dims.push_back(-i);
  const Tensor x = upcast ? ops::to(input, op_math_type(input.dtype())) : input;
  const Tensor mean = ops::mean_dim(ops::pow_scalar(x, 2), dims, true, std::nullopt);
  ops::add_(mean, wrapped_number(DType::float32), 1);
  Tensor result;
  {
    const Tensor rstd = ops::rsqrt(mean);
    result = ops::mul(x, rstd);
    if (!late) result = ops::to(result, input.dtype());
  }
  if (weight) result = ops::mul(result, weight);
  return ops::to(result, input.dtype());
}

Tensor rms_norm(T input, const Dims& normalized_shape, T weight, std::optional<double> eps) {
  Runtime& rt = runtime();
  if (rt.autocast.enabled && rt.settings.torch.rms_norm_autocasts_to_fp32()) {
    const Tensor k = cached_cast(weight, DType::float32), x = cached_cast(input, DType::float32);
    Scoped<bool> off(rt.autocast.enabled, false);
    return rms_norm(x, normalized_shape, k, eps);
  }
  normalized_rows(input, normalized_shape, false);
  if (weight && !(weight.sizes() == normalized_shape))
    throw Error("rms_norm: a weight of sizes " + to_string(weight.sizes()) + " for normalized_shape " + to_string(normalized_shape));
  const bool fused = runtime().settings.torch.rms_norm() == TorchVersion::RmsNorm::fused && (!weight || weight.dtype() == input.dtype()) &&
                     suggest_memory_format(input) == MemoryFormat::contiguous;
  if (fused) return std::get<0>(fused_rms_norm_op(input, normalized_shape, weight, eps));
  return rms_norm_composite(input, normalized_shape, weight);
}

// ---- group norm --------------------------------------------------------------------------------------------------------

struct Groups {
  I batch, channels, inner, groups;
};

void group_norm_backward(Backward& w, T x, T k, const Groups& g) {
  const DType acc = op_math_type(x.dtype());
  const MemoryFormat format = suggest_memory_format(x);
  const Tensor own = in_format(detached(x), format), grad = in_format(w.grad[0], format);
  const Dims per_channel{g.batch, g.channels}, per_group{g.batch, g.groups};
  if (w.needs(0)) w.out[0] = empty(x.sizes(), x.dtype(), format);
  if (w.needs(1)) w.out[1] = empty(k.sizes(), k.dtype());
  if (w.needs(2)) w.out[2] = empty(k.sizes(), k.dtype());
  const auto bytes = [acc](const Dims& d) { return checked_mul(d.numel(), item_size(acc)); };
  const bool merged = g.inner > 1;  // one element for each channel goes another way
  Scratch ds(merged ? bytes(per_channel) : 0), db(merged ? bytes(per_channel) : 0);
  if (!w.needs(0)) return;
  std::optional<Scratch> c1;  // made after c2 and c3, freed after them
  Scratch c2(bytes(per_group)), c3(bytes(per_group));
  c1.emplace(merged && k && format == MemoryFormat::contiguous ? bytes(per_channel) : 0);
}

ThreeTensors native_group_norm(T input, T weight, T bias, I N, I C, I HxW, I group, double) {
  const Groups g{N, C, HxW, group};
  auto fn = node("NativeGroupNormBackward0", {input, weight, bias}, {input, weight},
                 [g](Backward& w, T x, T k, T, T) { group_norm_backward(w, x, k, g); });
  const DType acc = op_math_type(input.dtype()), stats = weight ? weight.dtype() : input.dtype();
  const MemoryFormat format = suggest_memory_format(input);
  Tensor y = empty(input.sizes(), input.dtype(), format);
  Tensor mean = empty({N, group}, stats);
  Tensor rstd = empty({N, group}, stats);
  {
    const Tensor x = in_format(detached(input), format);
    const bool exact = acc != input.dtype() && runtime().settings.torch.group_norm_fp32_stats();
    const Bytes of_group = checked_mul(checked_mul(N, group), item_size(acc)), of_channel = checked_mul(checked_mul(N, C), item_size(acc));
    Scratch mean_acc(exact ? of_group : 0), rstd_acc(exact ? of_group : 0);
    const bool fused = format != MemoryFormat::contiguous || (HxW > 1 && (weight || bias));
    Scratch a(fused ? of_channel : 0), b(fused ? of_channel : 0);
  }
  fn.outputs({y}, {mean, rstd});
  return {y, mean, rstd};
}
const Op<ThreeTensors(T, T, T, I, I, I, I, double)> native_group_norm_op{
    {"aten::native_group_norm(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group, float eps) -> "
     "(Tensor, Tensor, Tensor)",
     Autocast::none, "input, weight, mean, rstd", "derivatives.yaml native_group_norm; native/cuda/group_norm_kernel.cu"},
    native_group_norm};

Tensor group_norm(T input, I num_groups, T weight, T bias, double eps, bool) {
  if (input.dim() < 2 || num_groups <= 0 || input.sizes()[1] % num_groups != 0)
    throw Error("group_norm: expected the number of channels to be divisible by num_groups = " + std::to_string(num_groups) + ", found " +
                describe(input));
  const I channels = input.sizes()[1];
  for (auto* x : {&weight, &bias})
    if (*x && x->numel() != channels)
      throw Error("group_norm: " + std::to_string(channels) + " channels do not meet a parameter of " + std::to_string(x->numel()) +
                  " elements");
  const Tensor x = runtime().settings.torch.group_norm_channels_last() ? input : ops::contiguous(input, MemoryFormat::contiguous);
  return std::get<0>(native_group_norm_op(x, weight, bias, x.sizes()[0], channels, x.sizes().slice(2, x.dim()).numel(), num_groups, eps));
}

}  // namespace

namespace ops {
const Op<Tensor(T, T, T, T, T, bool, double, double, bool)> batch_norm{
    {"aten::batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, float "
     "momentum, float eps, bool "
     "cudnn_enabled) -> Tensor",
     Autocast::none, "", kBatchNorm},
    memest::batch_norm};
const Op<Tensor(T, T, T, T, T, bool, double, double, bool)> instance_norm{
    {"aten::instance_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool use_input_stats, "
     "float momentum, float eps, bool "
     "cudnn_enabled) -> Tensor",
     Autocast::none, "", "native/Normalization.cpp instance_norm"},
    memest::instance_norm};
const Op<Tensor(T, const Dims&, T, T, double, bool)> layer_norm{
    {"aten::layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-05, bool "
     "cudnn_enable=True) -> Tensor",
     Autocast::fp32, "", "native/layer_norm.cpp layer_norm"},
    memest::layer_norm};
const Op<Tensor(T, const Dims&, T, std::optional<double>)> rms_norm{
    {"aten::rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor", Autocast::none, "",
     "native/layer_norm.cpp rms_norm_symint"},
    memest::rms_norm};
const Op<Tensor(T, std::int64_t, T, T, double, bool)> group_norm{{"aten::group_norm(Tensor input, int num_groups, Tensor? weight=None, "
                                                                  "Tensor? bias=None, float eps=1e-05, bool cudnn_enabled=True) -> Tensor",
                                                                  Autocast::fp32, "", "native/group_norm.cpp group_norm"},
                                                                 memest::group_norm};
}  // namespace ops
}  // namespace memest
