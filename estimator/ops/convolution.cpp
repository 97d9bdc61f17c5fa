// Sources: derivatives.yaml convolution; aten/src/ATen/native/Convolution.cpp, native/cudnn/ConvShared.cpp of 2.15. cuDNN's workspaces are
// not modelled.
#include "ops/convolution.h"

#include <fmt/format.h>

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

Tensor in_format(T x, MemoryFormat format) { return is_contiguous(x, format) ? x : ops::clone(x, format); }

Tensor convolution(T input, T weight, T bias, const Dims& stride, const Dims& padding, const Dims& dilation, bool transposed,
                   const Dims& output_padding, I groups) {
  const Geometry g{stride, padding, dilation, output_padding, transposed, groups};
  check(input, weight, bias, g);
  auto fn = node("ConvolutionBackward0", {input, weight, bias}, {input, weight}, [](Backward& w, T x, T k) {
    const MemoryFormat format = conv_memory_format(x, k);
    Tensor grad = in_format(w.grad[0], format);
    Tensor x_in = w.needs(1) ? in_format(x, format) : Tensor();
    Tensor k_in = w.needs(0) ? in_format(k, format) : Tensor();
    if (w.needs(0)) w.out[0] = empty(x.sizes(), x.dtype(), format);
    if (w.needs(1)) w.out[1] = empty(k.sizes(), k.dtype(), format);
    if (w.needs(2)) w.out[2] = ops::sum_kernel(grad, all_but_channels(grad.dim()), false, grad.dtype());
  });
  const MemoryFormat format = conv_memory_format(input, weight);
  Tensor x = in_format(input, format), k = in_format(weight, format);
  Tensor y = empty(output_sizes(input, weight, g), input.dtype(), format);
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

constexpr const char* kConv = "derivatives.yaml convolution; aten/src/ATen/native/Convolution.cpp, native/cudnn/ConvShared.cpp";
}  // namespace

namespace ops {
const Op<Tensor(T, T, T, const Dims&, const Dims&, const Dims&, bool, const Dims&, std::int64_t)> convolution{
    {"aten::convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, "
     "SymInt[] output_padding, "
     "SymInt groups) -> Tensor",
     Autocast::lower, "input, weight", kConv},
    memest::convolution};
#define MEMEST_CONV(N)                                                                                                                   \
  const Op<Tensor(T, T, T, const Dims&, const Dims&, const Dims&, std::int64_t)> conv##N##d{                                             \
      {"aten::conv" #N "d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[" #N "] stride=1, SymInt[" #N "] padding=0, SymInt[" #N \
       "] dilation=1, SymInt groups=1) -> Tensor",                                                                                       \
       Autocast::lower, "", kConv},                                                                                                      \
      conv_nd<N>};                                                                                                                       \
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
