// Sources: derivatives.yaml convolution; aten/src/ATen/native/Convolution.cpp, native/cudnn/ConvShared.cpp of 2.15. cuDNN's workspaces are
// not modelled.
#include "ops/convolution.h"

#include <fmt/format.h>

#include <array>

#include <algorithm>
#include <limits>

#include "fake/kernel.h"
#include "ops/copy.h"
#include "ops/iterator.h"
#include "ops/reductions.h"
#include "ops/views.h"

namespace memest {
namespace {
using I = std::int64_t;

/// cudnn_conv_suggest_memory_format: channels_last where the input or the weight is.
MemoryFormat conv_memory_format(T input, T weight) {
  if (input.dtype() == DType::float64 || weight.dtype() == DType::float64) return MemoryFormat::contiguous;
  const MemoryFormat a = suggest_memory_format(input), b = suggest_memory_format(weight);
  if (a == MemoryFormat::channels_last || b == MemoryFormat::channels_last) return MemoryFormat::channels_last;
  if (a == MemoryFormat::channels_last_3d || b == MemoryFormat::channels_last_3d) return MemoryFormat::channels_last_3d;
  return MemoryFormat::contiguous;
}

struct Geometry {
  Dims stride, padding, dilation, output_padding;
  bool transposed;
  I groups;
};

/// The channels that a gradient of the bias keeps: all dimensions but the second are summed.
std::vector<bool> all_but_channels(int dims) {
  std::vector<bool> mask(std::size_t(dims), true);
  mask[1] = false;
  return mask;
}

Dims output_sizes(T input, T weight, const Geometry& g) {
  const int spatial = input.dim() - 2;
  Dims sizes{input.sizes()[0], g.transposed ? checked_mul(weight.sizes()[1], g.groups) : weight.sizes()[0]};
  for (int i = 0; i < spatial; ++i) {
    const I n = input.sizes()[i + 2], k = weight.sizes()[i + 2], s = g.stride[i], p = g.padding[i], d = g.dilation[i];
    const I reach = checked_mul(d, k - 1);
    I out;
    if (g.transposed) {
      out = checked_add(checked_mul(n - 1, s) - 2 * p + reach, g.output_padding[i] + 1);
    } else {
      const I room = checked_add(n, checked_mul(2, p)) - reach - 1;
      if (room < 0)
        throw Error(fmt::format("convolution: the kernel of {} with dilation {} is larger than the padded input of {} in dimension {}", k,
                                d, n + 2 * p, i + 2));
      out = room / s + 1;
    }
    if (out < 0) throw Error("convolution: the output would have a negative size");
    sizes.push_back(out);
  }
  return sizes;
}

void check(T input, T weight, T bias, const Geometry& g) {
  const int spatial = input.dim() - 2;
  if (spatial < 1 || weight.dim() != input.dim())
    throw Error(fmt::format("convolution: a weight of shape {} takes a {}-D input, found {}", to_string(weight.sizes()), weight.dim(),
                            describe(input)));
  for (auto* list : {&g.stride, &g.padding, &g.dilation})
    if (list->size() != spatial)
      throw Error(fmt::format("convolution: stride, padding and dilation need {} values, found {}", spatial, to_string(*list)));
  if (g.groups <= 0) throw Error("convolution: groups must be positive");
  for (I s : g.stride)
    if (s <= 0) throw Error("convolution: non-positive stride is not supported");
  for (I d : g.dilation)
    if (d <= 0) throw Error("convolution: dilation should be greater than zero");
  for (I p : g.padding)
    if (p < 0) throw Error("convolution: negative padding is not supported");
  const I channels = g.transposed ? weight.sizes()[0] : checked_mul(weight.sizes()[1], g.groups);
  if (input.sizes()[1] != channels)
    throw Error(fmt::format("given groups={}, weight of size {}, expected input{} to have {} channels, but got {} channels instead",
                            g.groups, to_string(weight.sizes()), to_string(input.sizes()), channels, input.sizes()[1]));
  if (input.dtype() != weight.dtype())
    throw Error("convolution: input type (" + std::string(name_of(input.dtype())) + ") and weight type (" +
                std::string(name_of(weight.dtype())) + ") should be the same");
  (void)bias;
}

/// flop_counter.py conv_flop_count: each point of the output (of the input, where transposed) meets the whole filter.
I conv_flops(I batch, const Dims& points, const Dims& weight) {
  return flops_of({batch, points.slice(2, points.size()).numel(), weight.numel()});
}

Tensor in_format(T x, MemoryFormat format) { return is_contiguous(x, format) ? x : ops::clone(x, format); }

/// _convolution's `k == 3`: one spatial dimension becomes two (view4d).
Tensor as_2d(T x) {
  Dims sizes = x.sizes(), strides = x.strides();
  sizes.insert(2, 1);
  strides.insert(2, sizes[3] * strides[2]);
  return share(x, sizes, strides, x->offset);
}
Tensor back_to_1d(T x) {
  Dims sizes = x.sizes(), strides = x.strides();
  sizes.erase(2);
  strides.erase(2);
  return share(x, sizes, strides, x->offset);
}

// select_conv_backend for CUDA; what cuDNN refuses (empty inputs aside) does not occur with the types and sizes of models.
enum class Backend { empty, cudnn, cudnn_transposed, depthwise_2d, depthwise_3d };

bool is_depthwise(T input, T weight, const Geometry& g) {
  return !g.transposed && input.sizes()[1] == g.groups && g.groups > 1 && weight.sizes()[0] % input.sizes()[1] == 0;
}

/// check_cudnn_depthwise_workload_with_filter.
bool cudnn_depthwise_pays(T input, T weight, I stride) {
  const Dims &n = input.sizes(), &k = weight.sizes();
  if (n[2] == 1 && stride == 1) return true;
  const I filter = k[3], width = n[3], channels = n[1], batch = n[0];
  if (k[2] != filter || (filter != 1 && filter != 3 && filter != 5) || width < 7 || stride > 2) return false;
  if (stride == 1) return true;
  if (batch == 1) return filter != 1 || width <= 28;
  if (filter == 1) return batch <= 16 && channels >= 128 && width <= 7;
  return channels >= 512 || (channels >= 256 && width >= 28);
}

/// ConvParams::use_cudnn_depthwise.
bool depthwise_uses_cudnn(T input, T weight, const Geometry& g) {
  if (conv_memory_format(input, weight) != MemoryFormat::contiguous) return true;
  constexpr I most = std::numeric_limits<std::int32_t>::max();
  if (input.numel() > most || weight.numel() > most) return true;  // the native kernels index with 32 bits
  const bool dilated = std::any_of(g.dilation.begin(), g.dilation.end(), [](I d) { return d != 1; });
  return input.dtype() == DType::float16 && weight.dtype() == DType::float16 && input.dim() == 4 && !dilated &&
         (g.stride[0] == g.stride[1] || input.sizes()[2] == 1) && input.sizes()[1] >= 32 &&
         cudnn_depthwise_pays(input, weight, g.stride[1]);
}

Backend backend_of(T input, T weight, const Geometry& g) {
  if (input.numel() == 0) return Backend::empty;
  if (is_depthwise(input, weight, g) && !depthwise_uses_cudnn(input, weight, g))
    return input.dim() == 4 ? Backend::depthwise_2d : Backend::depthwise_3d;
  return g.transposed ? Backend::cudnn_transposed : Backend::cudnn;
}

struct ConvGradients {
  Tensor input, weight;
};

/// cudnn_convolution_backward, cudnn_convolution_transpose_backward (native/cudnn/ConvShared.cpp).
ConvGradients cudnn_backward(T given, T input, T weight, bool transposed, bool needs_input, bool needs_weight) {
  const MemoryFormat own = suggest_memory_format(input);
  // `.to(format)` leaves a gradient alone whose strides suggest the format, an expanded one too; the transposed form asks for contiguity.
  const bool kept = transposed ? is_contiguous(given, own) : suggest_memory_format(given) == own;
  const Tensor grad = kept ? given : ops::clone(given, own);
  ConvGradients out;
  auto input_gradient = [&] {
    const MemoryFormat format = conv_memory_format(grad, weight);
    out.input = empty(input.sizes(), grad.dtype(), format);
    const Tensor w = in_format(weight, format);
    const Tensor g = in_format(grad, format);
  };
  auto weight_gradient = [&] {
    const MemoryFormat format = conv_memory_format(input, grad);
    const Tensor g = in_format(grad, format);
    const Tensor x = in_format(input, format);
    out.weight = empty(weight.sizes(), grad.dtype(), format);
  };
  if (needs_input) input_gradient();
  if (needs_weight) weight_gradient();
  return out;
}

/// conv_depthwise2d_backward (native/cuda/DepthwiseConv2d.cu).
ConvGradients depthwise_2d_backward(T grad, T input, T weight, bool needs_input, bool needs_weight) {
  ConvGradients out;
  const Tensor g = ops::contiguous_tensor(grad);
  if (needs_weight) {
    const Tensor x = ops::contiguous_tensor(input);
    out.weight = empty(weight.sizes(), grad.dtype());
  }
  if (needs_input) {
    const Tensor w = ops::contiguous_tensor(weight);
    out.input = empty(input.sizes(), grad.dtype());
  }
  return out;
}

using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;

/// convolution_backward (native/Convolution.cpp): the gradients of input, weight and bias that are wanted.
ThreeTensors convolution_gradients(T given, T saved_input, T saved_weight, const Geometry& geometry, const std::array<bool, 3>& wanted) {
  Geometry g = geometry;
  Tensor input = saved_input, weight = saved_weight, grad = given;
  const bool one_spatial = input.dim() == 3;
  if (one_spatial) {
    input = as_2d(ops::contiguous_tensor(input));
    weight = as_2d(weight);
    grad = as_2d(grad);
    for (auto* list : {&g.stride, &g.dilation}) list->insert(0, 1);
  }
  const Backend backend = backend_of(input, weight, g);
  const MemoryFormat format =
      backend == Backend::cudnn || backend == Backend::cudnn_transposed ? conv_memory_format(input, weight) : MemoryFormat::contiguous;
  // flop_counter.py conv_backward_flop: both gradients cost what the forward costs, but the weight's does not know of groups.
  const Dims &x_sizes = input.sizes(), &grad_sizes = grad.sizes(), &met = g.transposed ? x_sizes : grad_sizes;
  if (wanted[0]) runtime().count_flops(conv_flops(x_sizes[0], met, weight.sizes()));
  if (wanted[1]) {
    const I filter = weight.sizes().slice(2, weight.dim()).numel(), points = met.slice(2, met.size()).numel();
    runtime().count_flops(flops_of({x_sizes[0], x_sizes[1], grad_sizes[1], filter, points}));
  }
  ConvGradients found;
  Tensor bias;
  auto bias_gradient = [&](T of) { bias = ops::sum_kernel(of, all_but_channels(of.dim()), false, of.dtype()); };
  switch (backend) {
    case Backend::empty:
      if (wanted[0]) found.input = empty_like(input);
      if (wanted[1]) found.weight = empty_like(weight);
      break;
    case Backend::cudnn:
    case Backend::cudnn_transposed: {
      const Tensor x = wanted[1] ? in_format(input, format) : input;
      found = cudnn_backward(grad, x, weight, g.transposed, wanted[0], wanted[1]);
      break;
    }
    case Backend::depthwise_2d: found = depthwise_2d_backward(grad, input, weight, wanted[0], wanted[1]); break;
    case Backend::depthwise_3d: {  // native/cuda/DepthwiseConv3d.cu also sums the bias
      if (wanted[0]) found.input = empty(input.sizes(), grad.dtype());
      if (wanted[1]) found.weight = empty(weight.sizes(), grad.dtype());
      const Tensor contiguous_grad = ops::contiguous_tensor(grad);
      const Tensor x = ops::contiguous_tensor(input);
      const Tensor k = ops::contiguous_tensor(weight);
      if (wanted[2]) bias_gradient(contiguous_grad);
      break;
    }
  }
  if (wanted[2] && !bias) bias_gradient(grad);
  if (one_spatial && wanted[0]) found.input = back_to_1d(found.input);
  if (one_spatial && wanted[1]) found.weight = back_to_1d(found.weight);
  return {std::move(found.input), std::move(found.weight), std::move(bias)};
}
void convolution_backward(Backward& w, T input, T weight, const Geometry& geometry) {
  auto [x, k, b] = convolution_gradients(w.grad[0], input, weight, geometry, {w.needs(0), w.needs(1), w.needs(2)});
  if (w.needs(0)) w.out[0] = std::move(x);
  if (w.needs(1)) w.out[1] = std::move(k);
  if (w.needs(2)) w.out[2] = std::move(b);
}

// What decomposed programs call.
ThreeTensors convolution_backward_op(T grad, T input, T weight, const std::optional<Dims>&, const Dims& stride, const Dims& padding,
                                     const Dims& dilation, bool transposed, const Dims& output_padding, I groups,
                                     const std::vector<bool>& mask) {
  if (mask.size() != 3) throw Error("convolution_backward: output_mask has three parts");
  return convolution_gradients(grad, input, weight, {stride, padding, dilation, output_padding, transposed, groups},
                               {mask[0], mask[1], mask[2]});
}
const Op convolution_backward_record{
    {"aten::convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride, SymInt[] padding, "
     "SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
     Autocast::none, "not differentiable here", "native/Convolution.cpp convolution_backward"},
    convolution_backward_op};

/// convolution's kernel: its result of these sizes.
Tensor forward_kernel(T input, T weight, Geometry g, const Dims& sizes) {
  const bool one_spatial = input.dim() == 3;
  Tensor x = input, k = weight;
  if (one_spatial) {  // avoids NHWC for permuted input
    x = as_2d(ops::contiguous_tensor(input));
    k = as_2d(weight);
    for (auto* list : {&g.stride, &g.dilation}) list->insert(0, 1);
  }
  const Backend backend = backend_of(x, k, g);
  const MemoryFormat format =
      backend == Backend::cudnn || backend == Backend::cudnn_transposed ? conv_memory_format(x, k) : MemoryFormat::contiguous;
  Dims out = sizes;
  if (one_spatial) out.insert(2, 1);
  const Tensor x_in = in_format(x, format);
  Tensor y;
  if (backend == Backend::depthwise_2d || backend == Backend::depthwise_3d) {
    const Tensor k_in = ops::contiguous_tensor(k);
    y = empty(out, x.dtype());
  } else {
    y = empty(out, x.dtype(), format);
    const Tensor k_in = in_format(k, format);
  }
  return one_spatial ? back_to_1d(y) : y;
}

Tensor convolution(T input, T weight, T bias, const Dims& stride, const Dims& padding, const Dims& dilation, bool transposed,
                   const Dims& output_padding, I groups) {
  const Geometry g{stride, padding, dilation, output_padding, transposed, groups};
  check(input, weight, bias, g);
  auto fn = node("ConvolutionBackward0", {input, weight, bias}, {input, weight},
                 [g](Backward& w, T x, T k) { convolution_backward(w, x, k, g); });
  const Dims sizes = output_sizes(input, weight, g);
  const Dims& points = transposed ? input.sizes() : sizes;
  Tensor y = run_kernel(KernelKind::convolution, conv_flops(input.sizes()[0], points, weight.sizes()),
                        [&] { return forward_kernel(input, weight, g, sizes); });
  fn.outputs({y});
  return y;
}

/// "2 * x" for one number, the list itself for as many as there are dimensions.
Dims expanded(const char* name, const Dims& list, int spatial) {
  if (list.size() == 1) return Dims::filled(spatial, list[0]);
  if (list.size() != spatial) throw Error(fmt::format("convolution: {} needs {} values, found {}", name, spatial, to_string(list)));
  return list;
}

/// An input without the batch dimension gets one.
template <class F>
Tensor batched(T input, int spatial, F convolve) {
  if (input.dim() == spatial + 2) return convolve(input);
  if (input.dim() != spatial + 1)
    throw Error(fmt::format("expected {}D (unbatched) or {}D (batched) input to conv{}d, but got input of size: {}", spatial + 1,
                            spatial + 2, spatial, to_string(input.sizes())));
  return ops::squeeze_dim(convolve(ops::unsqueeze(input, 0)), 0);
}

template <int Spatial>
Tensor conv_nd(T input, T weight, T bias, const Dims& stride, const Dims& padding, const Dims& dilation, I groups) {
  return batched(input, Spatial, [&](T x) {
    return ops::convolution(x, weight, bias, expanded("stride", stride, Spatial), expanded("padding", padding, Spatial),
                            expanded("dilation", dilation, Spatial), false, Dims::filled(Spatial, 0), groups);
  });
}
template <int Spatial>
Tensor conv_transpose_nd(T input, T weight, T bias, const Dims& stride, const Dims& padding, const Dims& output_padding, I groups,
                         const Dims& dilation) {
  return batched(input, Spatial, [&](T x) {
    return ops::convolution(x, weight, bias, expanded("stride", stride, Spatial), expanded("padding", padding, Spatial),
                            expanded("dilation", dilation, Spatial), true, expanded("output_padding", output_padding, Spatial), groups);
  });
}

/// Convolution.cpp conv_padding: "valid" or "same"; what both sides cannot share equally is padded first, on the right.
template <int Spatial>
Tensor conv_padded(T input, T weight, T bias, const Dims& stride_, const std::string& padding, const Dims& dilation_, I groups) {
  const Dims stride = expanded("stride", stride_, Spatial), dilation = expanded("dilation", dilation_, Spatial);
  if (padding != "valid" && padding != "same") throw Error("padding must be numbers, 'valid' or 'same', found '" + padding + "'");
  return batched(input, Spatial, [&](T x) {
    Dims left = Dims::filled(Spatial, 0);
    Values right;
    bool uneven = false;
    for (int i = Spatial - 1; padding == "same" && i >= 0; --i) {
      if (stride[i] != 1) throw Error("padding='same' is not supported for strided convolutions");
      const I total = checked_mul(dilation[i], weight.size(i + 2) - 1);
      left[i] = total / 2;
      right.insert(right.end(), {I{0}, total % 2});
      uneven |= total % 2 != 0;
    }
    const Tensor padded = uneven ? Unbox<Tensor>::from(call_op("aten::constant_pad_nd", {x, make_list(right)}, {})) : x;
    return ops::convolution(padded, weight, bias, stride, left, dilation, false, Dims::filled(Spatial, 0), groups);
  });
}

constexpr const char* kConv = "derivatives.yaml convolution; aten/src/ATen/native/Convolution.cpp, native/cudnn/ConvShared.cpp";
}  // namespace

namespace ops {
const Op<Tensor(T, T, T, const Dims&, const Dims&, const Dims&, bool, const Dims&, std::int64_t)> convolution{
    {"aten::convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, "
     "SymInt[] output_padding, "
     "SymInt groups) -> Tensor",
     Autocast::lower, "input, weight", kConv},
    memest::convolution};
/// What traced scripts call: convolution with the global settings of the time written out.
Tensor traced_convolution(T input, T weight, T bias, const Dims& stride, const Dims& padding, const Dims& dilation, bool transposed,
                          const Dims& output_padding, std::int64_t groups, bool, bool, bool, bool) {
  return ops::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
}
const Op<Tensor(T, T, T, const Dims&, const Dims&, const Dims&, bool, const Dims&, std::int64_t, bool, bool, bool, bool)> convolution_{
    {"aten::_convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, "
     "SymInt[] output_padding, SymInt groups, bool benchmark, bool deterministic, bool cudnn_enabled, bool allow_tf32) -> Tensor",
     Autocast::lower, "", kConv},
    traced_convolution};
#define MEMEST_CONV(N)                                                                                                                   \
  const Op<Tensor(T, T, T, const Dims&, const Dims&, const Dims&, std::int64_t)> conv##N##d{                                             \
      {"aten::conv" #N "d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[" #N "] stride=1, SymInt[" #N "] padding=0, SymInt[" #N \
       "] dilation=1, SymInt groups=1) -> Tensor",                                                                                       \
       Autocast::lower, "", kConv},                                                                                                      \
      conv_nd<N>};                                                                                                                       \
  const Op<Tensor(T, T, T, const Dims&, const std::string&, const Dims&, std::int64_t)> conv##N##d_padding{                              \
      {"aten::conv" #N "d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[" #N                                            \
       "] stride=1, str padding=\"valid\", SymInt[" #N "] dilation=1, SymInt groups=1) -> Tensor",                                       \
       Autocast::lower, "", kConv},                                                                                                      \
      conv_padded<N>};                                                                                                                   \
  const Op<Tensor(T, T, T, const Dims&, const Dims&, const Dims&, std::int64_t, const Dims&)> conv_transpose##N##d{                      \
      {"aten::conv_transpose" #N "d" MEMEST_OVERLOAD_##N "(Tensor input, Tensor weight, Tensor? bias=None, SymInt[" #N                   \
                                                         "] stride=1, SymInt[" #N "] padding=0, SymInt[" #N                              \
                                                         "] output_padding=0, SymInt groups=1, SymInt[" #N "] dilation=1) -> Tensor",    \
       Autocast::lower, "", kConv},                                                                                                      \
      conv_transpose_nd<N>};
#define MEMEST_OVERLOAD_1 ""
#define MEMEST_OVERLOAD_2 ".input"
#define MEMEST_OVERLOAD_3 ".input"
MEMEST_CONV(1)
MEMEST_CONV(2)
MEMEST_CONV(3)
#undef MEMEST_CONV
}  // namespace ops
}  // namespace memest
