// Sources: derivatives.yaml; aten/src/ATen/native/{Pooling,AdaptiveAveragePooling,AdaptiveAveragePooling3d}.cpp,
// native/cuda/{DilatedMaxPool2d,DilatedMaxPool3d,
// AveragePool2d,AveragePool3d,AdaptiveAveragePooling,AdaptiveMaxPooling2d,FractionalMaxPool2d,MaxUnpooling,...}.cu, native/Pool.h of 2.15.
#include "ops/pooling.h"

#include <fmt/format.h>

#include "ops/copy.h"
#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/reductions.h"
#include "ops/views.h"

namespace memest {
namespace {
using I = std::int64_t;
using TwoTensors = std::tuple<Tensor, Tensor>;

/// pooling_output_shape (native/Pool.h).
I pooled(I n, I kernel, I stride, I padding, I dilation, bool ceil_mode) {
  if (kernel <= 0 || stride <= 0 || dilation <= 0) throw Error("pooling: kernel size, stride and dilation must be positive");
  if (padding < 0 || padding > (checked_mul(kernel - 1, dilation) + 1) / 2)
    throw Error(
        fmt::format("pooling: pad should be at most half of effective kernel size, but got pad={}, kernel_size={}", padding, kernel));
  const I room = checked_add(n, 2 * padding) - checked_mul(dilation, kernel - 1) - 1 + (ceil_mode ? stride - 1 : 0);
  I out = (room < 0 ? -((-room + stride - 1) / stride) : room / stride) + 1;
  if (ceil_mode && (out - 1) * stride >= n + padding) --out;
  if (out <= 0) throw Error(fmt::format("pooling: the output size is too small: an input of {} with a kernel of {}", n, kernel));
  return out;
}

/// One number stands for `count` equal ones, none for those of `otherwise`.
Dims expanded(const char* name, const Dims& list, int count, const Dims& otherwise = {}) {
  if (list.empty() && !otherwise.empty()) return expanded(name, otherwise, count);
  if (list.size() == 1) return Dims::filled(count, list[0]);
  if (list.size() != count) throw Error(fmt::format("pooling: {} must be one number or {}, found {}", name, count, to_string(list)));
  return list;
}

void check_input(const char* op, T self, int spatial) {
  if (self.dim() != spatial + 1 && self.dim() != spatial + 2)
    throw Error(fmt::format("{}: expected a {}D or {}D input, found {}", op, spatial + 1, spatial + 2, describe(self)));
}

/// The window's sizes and what the last dimensions of an input become.
struct Window {
  Dims kernel, stride, padding, dilation;
  Window(int spatial, const Dims& kernel_size, const Dims& given_stride, const Dims& given_padding, const Dims& given_dilation = {1})
      : kernel(expanded("kernel_size", kernel_size, spatial)),
        stride(expanded("stride", given_stride, spatial, kernel)),
        padding(expanded("padding", given_padding, spatial)),
        dilation(expanded("dilation", given_dilation, spatial)) {}
  Dims output(const Dims& input, bool ceil_mode) const {
    Dims sizes = input;
    const int spatial = kernel.size();
    for (int i = 0; i < spatial; ++i)
      sizes[i - spatial] = pooled(sizes[i - spatial], kernel[i], stride[i], padding[i], dilation[i], ceil_mode);
    return sizes;
  }
};

/// The input's sizes with other spatial ones.
Dims with_spatial(const char* op, T self, const Dims& output_size, int spatial) {
  const Dims out = expanded("output_size", output_size, spatial);
  Dims sizes = self.sizes();
  for (int i = 0; i < spatial; ++i) {
    if (out[i] < 0) throw Error(fmt::format("{}: the output size must be non-negative, found {}", op, to_string(out)));
    sizes[i - spatial] = out[i];
  }
  return sizes;
}

Tensor in_format(T x, MemoryFormat format) { return is_contiguous(x, format) ? x : ops::clone(x, format); }
Tensor plain(T x) { return in_format(x, MemoryFormat::contiguous); }

/// A structured backward: the gradient of the input in its suggested format, then a contiguous copy of the output's gradient where it needs
/// one.
void pool_backward(Backward& w, T x, MemoryFormat format) {
  w.out[0] = empty(x.sizes(), x.dtype(), format);
  const Tensor grad = in_format(w.grad[0], format);
}

/// What decomposed programs call.
Tensor max_pool2d_backward(T grad_output, T self, const Dims&, const Dims&, const Dims&, const Dims&, bool, T) {
  const MemoryFormat format = self.dim() == 4 ? suggest_memory_format(self) : MemoryFormat::contiguous;
  Tensor out = empty(self.sizes(), self.dtype(), format);
  const Tensor grad = in_format(grad_output, format);
  return out;
}
const Op max_pool2d_backward_record{
    {"aten::max_pool2d_with_indices_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding, int[2] "
     "dilation, bool ceil_mode, Tensor indices) -> Tensor",
     Autocast::none, "not differentiable here", "native/cuda/DilatedMaxPool2d.cu"},
    max_pool2d_backward};

// ---- max pools ---------------------------------------------------------------------------------------------------------

template <int Spatial>
TwoTensors max_pool_with_indices(T self, const Dims& kernel_size, const Dims& stride, const Dims& padding, const Dims& dilation,
                                 bool ceil_mode) {
  constexpr const char* name = Spatial == 2 ? "max_pool2d" : "max_pool3d";
  check_input(name, self, Spatial);
  const Dims sizes = Window(Spatial, kernel_size, stride, padding, dilation).output(self.sizes(), ceil_mode);
  const MemoryFormat format = self.dim() == Spatial + 2 ? suggest_memory_format(self) : MemoryFormat::contiguous;
  auto fn = node(Spatial == 2 ? "MaxPool2DWithIndicesBackward0" : "MaxPool3DWithIndicesBackward0", {self}, {self},
                 [format](Backward& w, T x, T) { pool_backward(w, x, format); });
  Tensor y = empty(sizes, self.dtype(), format);
  Tensor indices = empty(sizes, DType::int64, format);
  const Tensor x = in_format(detached(self), format);
  fn.outputs({y}, {indices});
  return {y, indices};
}

/// max_pool1d: the 2-D kernel on one row.
TwoTensors max_pool1d_with_indices(T self, const Dims& kernel_size, const Dims& stride, const Dims& padding, const Dims& dilation,
                                   bool ceil_mode);
const Op<TwoTensors(T, const Dims&, const Dims&, const Dims&, const Dims&, bool)> max_pool1d_with_indices_op{
    {"aten::max_pool1d_with_indices(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=0, int[1] dilation=1, bool "
     "ceil_mode=False) -> (Tensor, Tensor)",
     Autocast::none, "", "native/Pooling.cpp max_pool1d_with_indices"},
    max_pool1d_with_indices};
#define MEMEST_MAX_POOL(N)                                                                                                              \
  const Op<TwoTensors(T, const Dims&, const Dims&, const Dims&, const Dims&, bool)> max_pool##N##d_with_indices_op{                     \
      {"aten::max_pool" #N "d_with_indices(Tensor self, int[" #N "] kernel_size, int[" #N "] stride=[], int[" #N "] padding=0, int[" #N \
       "] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)",                                                                       \
       Autocast::none, "self, indices", "derivatives.yaml max_pool" #N "d_with_indices; native/cuda/DilatedMaxPool" #N "d.cu"},         \
      max_pool_with_indices<N>};
MEMEST_MAX_POOL(2)
MEMEST_MAX_POOL(3)
#undef MEMEST_MAX_POOL

TwoTensors max_pool1d_with_indices(T self, const Dims& kernel_size, const Dims& stride, const Dims& padding, const Dims& dilation,
                                   bool ceil_mode) {
  check_input("max_pool1d", self, 1);
  const Window window(1, kernel_size, stride, padding, dilation);
  auto row = [](const Dims& list, I first) { return Dims{first, list[0]}; };
  auto [y, indices] = max_pool2d_with_indices_op(ops::unsqueeze(self, -2), row(window.kernel, 1), row(window.stride, 1),
                                                 row(window.padding, 0), row(window.dilation, 1), ceil_mode);
  y = ops::squeeze_dim(std::move(y), -2);
  indices = ops::squeeze_dim(std::move(indices), -2);
  return {y, indices};
}

Tensor max_pool1d(T self, const Dims& kernel_size, const Dims& stride, const Dims& padding, const Dims& dilation, bool ceil_mode) {
  return std::get<0>(max_pool1d_with_indices_op(self, kernel_size, stride, padding, dilation, ceil_mode));
}
Tensor max_pool2d(T self, const Dims& kernel_size, const Dims& stride, const Dims& padding, const Dims& dilation, bool ceil_mode) {
  return std::get<0>(max_pool2d_with_indices_op(self, kernel_size, stride, padding, dilation, ceil_mode));
}
Tensor max_pool3d(T self, const Dims& kernel_size, const Dims& stride, const Dims& padding, const Dims& dilation, bool ceil_mode) {
  return std::get<0>(max_pool3d_with_indices_op(self, kernel_size, stride, padding, dilation, ceil_mode));
}
const Op max_pool1d_op{{"aten::max_pool1d(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=0, int[1] dilation=1, bool "
                        "ceil_mode=False) -> Tensor",
                        Autocast::none, "", "native/MaxPooling.cpp max_pool1d"},
                       max_pool1d};
const Op max_pool3d_op{{"aten::max_pool3d(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, int[3] dilation=1, bool "
                        "ceil_mode=False) -> Tensor",
                        Autocast::none, "", "native/Pooling.cpp max_pool3d"},
                       max_pool3d};

/// adaptive_max_pool2d, 3d: the 2-D kernels write contiguous tensors, which are copied into channels_last ones.
template <int Spatial>
TwoTensors adaptive_max_pool_nd(T self, const Dims& output_size) {
  constexpr const char* name = Spatial == 2 ? "adaptive_max_pool2d" : "adaptive_max_pool3d";
  check_input(name, self, Spatial);
  const Dims sizes = with_spatial(name, self, output_size, Spatial);
  const MemoryFormat format = Spatial == 2 ? suggest_memory_format(self) : MemoryFormat::contiguous;
  auto fn = node(Spatial == 2 ? "AdaptiveMaxPool2DBackward0" : "AdaptiveMaxPool3DBackward0", {self}, {self},
                 [format](Backward& w, T x, T indices) {
                   w.out[0] = empty(x.sizes(), x.dtype(), format);
                   const Tensor grad = plain(w.grad[0]);
                   const Tensor plain_indices = plain(indices);
                   const Tensor written = is_contiguous(w.out[0]) ? Tensor() : empty(x.sizes(), x.dtype());
                 });
  Tensor y = empty(sizes, self.dtype(), format);
  Tensor indices = empty(sizes, DType::int64, format);
  {
    const Tensor written = is_contiguous(y) ? Tensor() : empty(sizes, self.dtype());
    const Tensor written_indices = is_contiguous(indices) ? Tensor() : empty(sizes, DType::int64);
    const Tensor x = plain(detached(self));
  }
  fn.outputs({y}, {indices});
  return {y, indices};
}
const Op adaptive_max_pool2d_op{{"aten::adaptive_max_pool2d(Tensor self, int[2] output_size) -> (Tensor, Tensor)", Autocast::none,
                                 "self, indices", "derivatives.yaml adaptive_max_pool2d; native/cuda/AdaptiveMaxPooling2d.cu"},
                                adaptive_max_pool_nd<2>};
const Op adaptive_max_pool3d_op{{"aten::adaptive_max_pool3d(Tensor self, int[3] output_size) -> (Tensor, Tensor)", Autocast::none,
                                 "self, indices", "derivatives.yaml adaptive_max_pool3d; native/cuda/AdaptiveMaxPooling3d.cu"},
                                adaptive_max_pool_nd<3>};
TwoTensors adaptive_max_pool1d(T self, const Dims& output_size) {
  check_input("adaptive_max_pool1d", self, 1);
  auto [y, indices] = adaptive_max_pool2d_op(ops::unsqueeze(self, -2), Dims{1, expanded("output_size", output_size, 1)[0]});
  y = ops::squeeze_dim(std::move(y), -2);
  indices = ops::squeeze_dim(std::move(indices), -2);
  return {y, indices};
}
const Op adaptive_max_pool1d_op{{"aten::adaptive_max_pool1d(Tensor self, int[1] output_size) -> (Tensor, Tensor)", Autocast::none, "",
                                 "native/Pooling.cpp adaptive_max_pool1d"},
                                adaptive_max_pool1d};

template <int Spatial>
TwoTensors fractional_max_pool_nd(T self, const Dims& kernel_size, const Dims& output_size, T) {
  constexpr const char* name = Spatial == 2 ? "fractional_max_pool2d" : "fractional_max_pool3d";
  check_input(name, self, Spatial);
  const Dims kernel = expanded("kernel_size", kernel_size, Spatial), sizes = with_spatial(name, self, output_size, Spatial);
  for (int i = 0; i < Spatial; ++i)
    if (kernel[i] < 1 || checked_add(sizes[i - Spatial], kernel[i]) - 1 > self.size(i - Spatial))
      throw Error(fmt::format("{}: an output of {} and a kernel of {} are too large for an input of {}", name, sizes[i - Spatial],
                              kernel[i], self.size(i - Spatial)));
  auto fn = node(Spatial == 2 ? "FractionalMaxPool2DBackward0" : "FractionalMaxPool3DBackward0", {self}, {self}, [](Backward& w, T x, T) {
    const Tensor grad = Spatial == 2 ? plain(w.grad[0]) : Tensor();  // the 3-D kernel reads it through its strides
    w.out[0] = empty(x.sizes(), x.dtype());
  });
  Tensor y = empty(sizes, self.dtype());
  Tensor indices = empty(sizes, DType::int64);
  fn.outputs({y}, {indices});
  return {y, indices};
}
#define MEMEST_FRACTIONAL(N)                                                                                                     \
  const Op fractional_max_pool##N##d_op{                                                                                         \
      {"aten::fractional_max_pool" #N "d(Tensor self, int[" #N "] kernel_size, int[" #N                                          \
       "] output_size, Tensor random_samples) -> (Tensor, Tensor)",                                                              \
       Autocast::none, "self, indices", "derivatives.yaml fractional_max_pool" #N "d; native/cuda/FractionalMaxPool" #N "d.cu"}, \
      fractional_max_pool_nd<N>};
MEMEST_FRACTIONAL(2)
MEMEST_FRACTIONAL(3)
#undef MEMEST_FRACTIONAL

/// native/cuda/MaxUnpooling.cu; FunctionsManual.cpp max_pool_double_backward.
Tensor unpooled(T self, T indices, const Dims& sizes, int spatial) {
  if (indices.dtype() != DType::int64) throw Error("max_unpool: elements in indices should be type int64, found " + describe(indices));
  if (!(self.sizes() == indices.sizes()))
    throw Error("max_unpool: expected shape of indices to be that of the input, found " + describe(self) + " and " + describe(indices));
  auto fn = node(spatial == 2 ? "MaxUnpool2DBackward0" : "MaxUnpool3DBackward0", {self}, {indices}, [spatial](Backward& w, T at) {
    const Dims merged = at.sizes().slice(0, at.dim() - spatial) + Dims{-1};
    const Tensor index = ops::reshape(at, merged);
    const Tensor grad = ops::reshape(w.grad[0], merged);
    w.out[0] = ops::view(empty(index.sizes(), grad.dtype()), at.sizes());
  });
  const Tensor x = plain(detached(self));
  const Tensor at = plain(indices);
  if (runtime().settings.torch.max_unpool_temporary()) Scratch temporary(checked_mul(sizes.numel(), item_size(self.dtype())));
  Tensor y = empty(sizes, self.dtype());
  fn.outputs({y});
  return y;
}
Tensor max_unpool2d(T self, T indices, const Dims& output_size) {
  check_input("max_unpool2d", self, 2);
  return unpooled(self, indices, with_spatial("max_unpool2d", self, output_size, 2), 2);
}
Tensor max_unpool3d(T self, T indices, const Dims& output_size, const Dims&, const Dims&) {
  check_input("max_unpool3d", self, 3);
  return unpooled(self, indices, with_spatial("max_unpool3d", self, output_size, 3), 3);
}
const Op max_unpool2d_op{{"aten::max_unpool2d(Tensor self, Tensor indices, SymInt[2] output_size) -> Tensor", Autocast::none, "indices",
                          "derivatives.yaml max_unpool2d; native/cuda/MaxUnpooling.cu"},
                         max_unpool2d};
const Op max_unpool3d_op{{"aten::max_unpool3d(Tensor self, Tensor indices, SymInt[3] output_size, int[3] stride, int[3] padding) -> Tensor",
                          Autocast::none, "indices", "derivatives.yaml max_unpool3d; native/cuda/MaxUnpooling.cu"},
                         max_unpool3d};

// ---- average pools -----------------------------------------------------------------------------------------------------

template <int Spatial>
Tensor avg_pool_nd(T self, const Dims& kernel_size, const Dims& stride, const Dims& padding, bool ceil_mode, bool,
                   std::optional<I> divisor) {
  constexpr const char* name = Spatial == 2 ? "avg_pool2d" : "avg_pool3d";
  check_input(name, self, Spatial);
  if (divisor == 0) throw Error("avg_pool: divisor must be not zero");
  const Dims sizes = Window(Spatial, kernel_size, stride, padding).output(self.sizes(), ceil_mode);
  const MemoryFormat format = Spatial == 2 ? suggest_memory_format(self) : MemoryFormat::contiguous;
  auto fn = node(Spatial == 2 ? "AvgPool2DBackward0" : "AvgPool3DBackward0", {self}, {self}, [format](Backward& w, T x) {
    pool_backward(w, x, format);
    if (Spatial == 2) in_format(detached(x), format);  // avg_pool2d_backward has the input in the format as well
  });
  Tensor y = empty(sizes, self.dtype(), format);
  const Tensor x = in_format(detached(self), format);
  fn.outputs({y});
  return y;
}
#define MEMEST_AVG_POOL(N)                                                                                      \
  const Op<Tensor(T, const Dims&, const Dims&, const Dims&, bool, bool, std::optional<I>)> avg_pool##N##d_op{   \
      {"aten::avg_pool" #N "d(Tensor self, int[" #N "] kernel_size, int[" #N "] stride=[], int[" #N             \
       "] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor", \
       Autocast::none, "self", "derivatives.yaml avg_pool" #N "d; native/cuda/AveragePool" #N "d.cu"},          \
      avg_pool_nd<N>};
MEMEST_AVG_POOL(2)
MEMEST_AVG_POOL(3)
#undef MEMEST_AVG_POOL
Tensor avg_pool1d(T self, const Dims& kernel_size, const Dims& stride, const Dims& padding, bool ceil_mode, bool count_include_pad) {
  check_input("avg_pool1d", self, 1);
  const Window window(1, kernel_size, stride, padding);
  Tensor y = avg_pool2d_op(ops::unsqueeze(self, 2 + self.dim() - 3), Dims{1, window.kernel[0]}, Dims{1, window.stride[0]},
                           Dims{0, window.padding[0]}, ceil_mode, count_include_pad, std::nullopt);
  return ops::squeeze_dim(std::move(y), -2);
}
const Op avg_pool1d_op{{"aten::avg_pool1d(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=0, bool ceil_mode=False, bool "
                        "count_include_pad=True) -> Tensor",
                        Autocast::none, "", "native/AdaptiveAveragePooling.cpp, native/Pooling.cpp avg_pool1d"},
                       avg_pool1d};

/// The mean over the spatial dimensions, in channels_last strides where the input has them (as_strided; its backward scatters into zeros).
Tensor global_average(T self, int spatial) {
  Dims dims;
  for (int i = 1; i <= spatial; ++i) dims.push_back(-i);
  Tensor y = ops::mean_dim(self, dims, true, std::nullopt);
  if (self.dim() != spatial + 2 || suggest_memory_format(self) == MemoryFormat::contiguous) return y;
  const I channels = y.sizes()[1];
  Dims strides = Dims::filled(y.dim(), channels);
  strides[1] = 1;
  auto fn = node("AsStridedBackward0", {y}, {}, [](Backward& w) {
    const Tensor zeros = ops::zeros(Dims{w.sizes(0).numel()}, w.grad[0].dtype());
    w.out[0] = make_view(zeros, w.sizes(0), contiguous_strides(w.sizes(0)), 0);
  });
  Tensor last = make_view(y, y.sizes(), strides, y->offset);
  fn.outputs({last});
  return last;
}

/// _adaptive_avg_pool2d, 3d.
template <int Spatial>
Tensor adaptive_avg_pool_kernel(T self, const Dims& output_size) {
  constexpr const char* name = Spatial == 2 ? "adaptive_avg_pool2d" : "adaptive_avg_pool3d";
  check_input(name, self, Spatial);
  const Dims sizes = with_spatial(name, self, output_size, Spatial);
  const MemoryFormat format = Spatial == 2 && self.dim() == 4 ? suggest_memory_format(self) : MemoryFormat::contiguous;
  auto fn = node(Spatial == 2 ? "AdaptiveAvgPool2DBackward0" : "AdaptiveAvgPool3DBackward0", {self}, {self}, [format](Backward& w, T x) {
    w.out[0] = empty(x.sizes(), x.dtype(), format);
    const Tensor grad =
        format == MemoryFormat::contiguous ? plain(w.grad[0]) : Tensor();  // the channels_last kernel reads it through its strides
  });
  const Tensor x = in_format(detached(self), format);
  Tensor y = empty(sizes, self.dtype(), format);
  fn.outputs({y});
  return y;
}
const Op adaptive_avg_pool2d_kernel{{"aten::_adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor", Autocast::none, "self",
                                     "derivatives.yaml _adaptive_avg_pool2d; native/cuda/AdaptiveAveragePooling.cu"},
                                    adaptive_avg_pool_kernel<2>};
const Op adaptive_avg_pool3d_kernel{{"aten::_adaptive_avg_pool3d(Tensor self, SymInt[3] output_size) -> Tensor", Autocast::none, "self",
                                     "derivatives.yaml _adaptive_avg_pool3d; native/cuda/AdaptiveAveragePooling3d.cu"},
                                    adaptive_avg_pool_kernel<3>};

template <int Spatial>
Tensor adaptive_avg_pool_nd(T self, const Dims& output_size) {
  check_input(Spatial == 2 ? "adaptive_avg_pool2d" : "adaptive_avg_pool3d", self, Spatial);
  const Dims out = expanded("output_size", output_size, Spatial);
  if (out == Dims::filled(Spatial, 1)) return global_average(self, Spatial);
  if constexpr (Spatial == 2)
    return adaptive_avg_pool2d_kernel(self, out);
  else
    return adaptive_avg_pool3d_kernel(self, out);
}
const Op adaptive_avg_pool3d_op{{"aten::adaptive_avg_pool3d(Tensor self, SymInt[3] output_size) -> Tensor", Autocast::none, "",
                                 "native/AdaptiveAveragePooling3d.cpp adaptive_avg_pool3d_symint"},
                                adaptive_avg_pool_nd<3>};
Tensor adaptive_avg_pool1d(T self, const Dims& output_size) {
  check_input("adaptive_avg_pool1d", self, 1);
  Tensor y = ops::adaptive_avg_pool2d(ops::unsqueeze(self, -2), Dims{1, expanded("output_size", output_size, 1)[0]});
  return ops::squeeze_dim(std::move(y), -2);
}
const Op adaptive_avg_pool1d_op{
    {"aten::adaptive_avg_pool1d(Tensor self, int[1] output_size) -> Tensor", Autocast::none, "", "native/Pooling.cpp adaptive_avg_pool1d"},
    adaptive_avg_pool1d};

}  // namespace

namespace ops {
const Op<Tensor(T, const Dims&, const Dims&, const Dims&, const Dims&, bool)> max_pool2d{
    {"aten::max_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> "
     "Tensor",
     Autocast::none, "", "native/Pooling.cpp max_pool2d"},
    memest::max_pool2d};
const Op<Tensor(T, const Dims&)> adaptive_avg_pool2d{{"aten::adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor",
                                                      Autocast::none, "", "native/AdaptiveAveragePooling.cpp adaptive_avg_pool2d_symint"},
                                                     adaptive_avg_pool_nd<2>};

std::tuple<Tensor, Tensor> max_pool(int spatial, T self, const Dims& kernel_size, const Dims& stride, const Dims& padding,
                                    const Dims& dilation, bool ceil_mode) {
  auto& op = spatial == 1 ? max_pool1d_with_indices_op : spatial == 2 ? max_pool2d_with_indices_op : max_pool3d_with_indices_op;
  return op(self, kernel_size, stride, padding, dilation, ceil_mode);
}
Tensor avg_pool(int spatial, T self, const Dims& kernel_size, const Dims& stride, const Dims& padding, bool ceil_mode,
                bool count_include_pad) {
  if (spatial == 1) return avg_pool1d_op(self, kernel_size, stride, padding, ceil_mode, count_include_pad);
  return (spatial == 2 ? avg_pool2d_op : avg_pool3d_op)(self, kernel_size, stride, padding, ceil_mode, count_include_pad, std::nullopt);
}
Tensor adaptive_avg_pool(int spatial, T self, const Dims& output_size) {
  if (spatial == 2) return adaptive_avg_pool2d(self, output_size);
  return spatial == 1 ? adaptive_avg_pool1d_op(self, output_size) : adaptive_avg_pool3d_op(self, output_size);
}
std::tuple<Tensor, Tensor> adaptive_max_pool(int spatial, T self, const Dims& output_size) {
  if (spatial == 1) return adaptive_max_pool1d_op(self, output_size);
  return spatial == 2 ? adaptive_max_pool2d_op(self, output_size) : adaptive_max_pool3d_op(self, output_size);
}
std::tuple<Tensor, Tensor> fractional_max_pool(int spatial, T self, const Dims& kernel_size, const Dims& output_size, T random_samples) {
  return spatial == 2 ? fractional_max_pool2d_op(self, kernel_size, output_size, random_samples)
                      : fractional_max_pool3d_op(self, kernel_size, output_size, random_samples);
}
}  // namespace ops
}  // namespace memest
