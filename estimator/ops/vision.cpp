// Sources: derivatives.yaml;
// aten/src/ATen/native/{UpSample.cpp,PixelShuffle.cpp,ChanelShuffle.cpp,Im2Col.cpp,Col2Im.cpp,GridSampler.cpp,AffineGridGenerator.cpp},
// native/cuda/{UpSample*,Im2Col,Col2Im,GridSampler}.cu, native/cudnn/GridSampler.cpp of 2.15.
#include "ops/vision.h"

#include <fmt/format.h>

#include "ops/copy.h"
#include "ops/iterator.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/views.h"

namespace memest {
namespace {
using I = std::int64_t;

// ---- resampling: structured kernels; the output keeps the input's format, the gradient that of the output's gradient ---

Tensor in_format(T x, MemoryFormat format) { return is_contiguous(x, format) ? x : ops::clone(x, format); }

/// What a kernel without a channels_last form does with tensors that are not contiguous: reads and writes them through their strides, or
/// works on contiguous copies.
enum class Forward { strided, copies };
enum class Reverse {
  copies,           ///< a contiguous gradient of the input, which is copied, and a contiguous one of the output
  copies_in_order,  ///< the output's first
  strided,          ///< only the output's gradient is made contiguous
  contiguous,       ///< likewise, and the gradient of the input is a contiguous tensor
};

/// The kernels of native/cuda/UpSampleNearest2d.cu and UpSampleBilinear2d.cu take channels_last from so many channels on.
struct ResampleKernel {
  const char* node;
  int spatial;
  I channels_last_from;  ///< 0: never
  Forward forward;
  Reverse reverse;
  bool takes(MemoryFormat format, I channels) const {
    return format == MemoryFormat::channels_last && channels_last_from && channels >= channels_last_from;
  }
};

void resample_backward(Backward& w, const ResampleKernel& kernel) {
  const Tensor& grad = w.grad[0];
  const Dims& sizes = w.sizes(0);
  const MemoryFormat format = suggest_memory_format(grad);
  w.out[0] = empty(sizes, grad.dtype(), kernel.reverse == Reverse::contiguous ? MemoryFormat::contiguous : format);
  if (kernel.channels_last_from && grad.sizes() == sizes) return;  // the same two kernels copy a gradient of the input's size
  if (kernel.takes(format, sizes[1])) {
    const Tensor own = in_format(grad, format);
    return;
  }
  const bool copied = kernel.reverse == Reverse::copies || kernel.reverse == Reverse::copies_in_order;
  auto contiguous_out = [&] { return copied && !is_contiguous(w.out[0]) ? empty(sizes, grad.dtype()) : Tensor(); };
  Tensor out;
  if (kernel.reverse == Reverse::copies) out = contiguous_out();
  const Tensor contiguous_grad = ops::contiguous_tensor(grad);
  const Tensor later = kernel.reverse == Reverse::copies_in_order ? contiguous_out() : Tensor();
}

Tensor resampled(T self, const Dims& output_size, const ResampleKernel& kernel) {
  if (self.dim() != kernel.spatial + 2)
    throw Error(fmt::format("upsample: expected a {}D input, found {}", kernel.spatial + 2, describe(self)));
  if (output_size.size() != kernel.spatial)
    throw Error(fmt::format("upsample: output_size must have {} values, found {}", kernel.spatial, to_string(output_size)));
  Dims sizes = self.sizes().slice(0, 2) + output_size;
  for (I s : output_size)
    if (s <= 0) throw Error("upsample: input and output sizes should be greater than 0, found an output of " + to_string(sizes));
  auto fn = node(kernel.node, {self}, {}, [kernel](Backward& w) { resample_backward(w, kernel); });
  const MemoryFormat format = suggest_memory_format(self);
  Tensor y = empty(sizes, self.dtype(), format);
  if (kernel.takes(format, sizes[1])) {
    const Tensor own = in_format(detached(self), format);
  } else if (kernel.forward == Forward::copies) {
    const Tensor output = is_contiguous(y) ? Tensor() : empty(sizes, self.dtype());
    const Tensor input = ops::contiguous_tensor(detached(self));
  }
  fn.outputs({y});
  return y;
}

/// upsample::compute_output_size.
Dims output_size_of(T input, const std::optional<Dims>& output_size, const std::optional<std::vector<double>>& scale_factors) {
  const int spatial = input.dim() - 2;
  if (!output_size == !scale_factors) throw Error("upsample: must specify exactly one of output_size and scale_factors");
  if (output_size) return *output_size;
  if (int(scale_factors->size()) != spatial)
    throw Error(fmt::format("upsample: {} scale factors for {}", scale_factors->size(), describe(input)));
  Dims sizes;
  for (int i = 0; i < spatial; ++i) {
    const double size = double(input.sizes()[i + 2]) * (*scale_factors)[std::size_t(i)];
    if (!(size >= 0 && size < 9e18))
      throw Error(fmt::format("upsample: a scale factor of {} for {}", (*scale_factors)[std::size_t(i)], describe(input)));
    sizes.push_back(I(size));
  }
  return sizes;
}

constexpr const char* kUpsample = "derivatives.yaml upsample_*; native/UpSample.cpp, native/cuda/UpSample*.cu";
using Scale = std::optional<double>;
using Sizes = std::optional<Dims>;
using Factors = std::optional<std::vector<double>>;

#define MEMEST_SCALES_1 "float? scales=None"
#define MEMEST_SCALES_2 "float? scales_h=None, float? scales_w=None"
#define MEMEST_SCALES_3 "float? scales_d=None, float? scales_h=None, float? scales_w=None"
#define MEMEST_ARGUMENTS_1 Scale
#define MEMEST_ARGUMENTS_2 Scale, Scale
#define MEMEST_ARGUMENTS_3 Scale, Scale, Scale
/// One kernel as two records: with sizes and scales, and with either (.vec, what torch.nn.functional.interpolate calls).
#define MEMEST_UPSAMPLE(NAME, NODE, N, FROM, FORWARD, REVERSE)                                                                       \
  constexpr ResampleKernel NAME##_kernel{NODE, N, FROM, Forward::FORWARD, Reverse::REVERSE};                                         \
  Tensor NAME##_of(T self, const Dims& size, MEMEST_ARGUMENTS_##N) { return resampled(self, size, NAME##_kernel); }                  \
  const Op NAME##_op{                                                                                                                \
      {"aten::" #NAME "(Tensor self, SymInt[" #N "] output_size, " MEMEST_SCALES_##N ") -> Tensor", Autocast::fp32, "", kUpsample},  \
      NAME##_of};                                                                                                                    \
  Tensor NAME##_vec(T input, const Sizes& size, const Factors& factors) {                                                            \
    return resampled(input, output_size_of(input, size, factors), NAME##_kernel);                                                    \
  }                                                                                                                                  \
  const Op NAME##_vec_op{                                                                                                            \
      {"aten::" #NAME ".vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor", Autocast::fp32, "", kUpsample}, \
      NAME##_vec};
#define MEMEST_UPSAMPLE_ALIGNED(NAME, NODE, N, FROM, FORWARD, REVERSE)                                                                   \
  constexpr ResampleKernel NAME##_kernel{NODE, N, FROM, Forward::FORWARD, Reverse::REVERSE};                                             \
  Tensor NAME##_of(T self, const Dims& size, bool, MEMEST_ARGUMENTS_##N) { return resampled(self, size, NAME##_kernel); }                \
  const Op NAME##_op{{"aten::" #NAME "(Tensor self, SymInt[" #N "] output_size, bool align_corners, " MEMEST_SCALES_##N ") -> Tensor",   \
                      Autocast::fp32, "", kUpsample},                                                                                    \
                     NAME##_of};                                                                                                         \
  Tensor NAME##_vec(T input, const Sizes& size, bool, const Factors& factors) {                                                          \
    return resampled(input, output_size_of(input, size, factors), NAME##_kernel);                                                        \
  }                                                                                                                                      \
  const Op NAME##_vec_op{                                                                                                                \
      {"aten::" #NAME ".vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor", Autocast::fp32, \
       "", kUpsample},                                                                                                                   \
      NAME##_vec};
MEMEST_UPSAMPLE(upsample_nearest1d, "UpsampleNearest1DBackward0", 1, 0, copies, copies)
MEMEST_UPSAMPLE(upsample_nearest2d, "UpsampleNearest2DBackward0", 2, 4, copies, copies)
MEMEST_UPSAMPLE(upsample_nearest3d, "UpsampleNearest3DBackward0", 3, 0, copies, contiguous)
MEMEST_UPSAMPLE(_upsample_nearest_exact1d, "UpsampleNearestExact1DBackward0", 1, 0, copies, copies)
MEMEST_UPSAMPLE(_upsample_nearest_exact2d, "UpsampleNearestExact2DBackward0", 2, 4, copies, copies)
MEMEST_UPSAMPLE(_upsample_nearest_exact3d, "UpsampleNearestExact3DBackward0", 3, 0, copies, contiguous)
MEMEST_UPSAMPLE_ALIGNED(upsample_linear1d, "UpsampleLinear1DBackward0", 1, 0, strided, copies)
MEMEST_UPSAMPLE_ALIGNED(upsample_bilinear2d, "UpsampleBilinear2DBackward0", 2, 4, strided, copies)
MEMEST_UPSAMPLE_ALIGNED(upsample_bicubic2d, "UpsampleBicubic2DBackward0", 2, 0, strided, contiguous)
MEMEST_UPSAMPLE_ALIGNED(upsample_trilinear3d, "UpsampleTrilinear3DBackward0", 3, 0, strided, copies_in_order)
MEMEST_UPSAMPLE_ALIGNED(_upsample_bilinear2d_aa, "UpsampleBilinear2DAaBackward0", 2, 0, copies, strided)
MEMEST_UPSAMPLE_ALIGNED(_upsample_bicubic2d_aa, "UpsampleBicubic2DAaBackward0", 2, 0, copies, contiguous)
MEMEST_UPSAMPLE_ALIGNED(_upsample_lanczos2d_aa, "UpsampleLanczos2DAaBackward0", 2, 0, copies, contiguous)
#undef MEMEST_UPSAMPLE
#undef MEMEST_UPSAMPLE_ALIGNED

// ---- rearranged pixels: a view, a permutation and a copy --------------------------------------------------------------

/// Below autograd: self.reshape(sizes).permute(...).reshape(result).
Tensor rearranged(T self, const Dims& result) {
  NoGrad guard;
  return empty(result, self.dtype());
}

Tensor pixel_shuffle(T self, I upscale_factor) {
  if (self.dim() < 3 || upscale_factor <= 0)
    throw Error(fmt::format("pixel_shuffle expects an input of at least 3 dimensions and a positive factor, found {} and {}",
                            describe(self), upscale_factor));
  const I square = checked_mul(upscale_factor, upscale_factor), channels = self.size(-3);
  if (channels % square != 0)
    throw Error(
        fmt::format("pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of upscale_factor, but {} is not "
                    "divisible by {}",
                    channels, square));
  auto fn = node("PixelShuffleBackward0", {self}, {}, [](Backward& w) { w.out[0] = rearranged(w.grad[0], w.sizes(0)); });
  Dims sizes = self.sizes();
  sizes[-3] = channels / square;
  sizes[-2] = checked_mul(sizes[-2], upscale_factor);
  sizes[-1] = checked_mul(sizes[-1], upscale_factor);
  Tensor y = rearranged(self, sizes);
  fn.outputs({y});
  return y;
}
Tensor pixel_unshuffle(T self, I downscale_factor) {
  if (self.dim() < 3 || downscale_factor <= 0)
    throw Error(fmt::format("pixel_unshuffle expects an input of at least 3 dimensions and a positive factor, found {} and {}",
                            describe(self), downscale_factor));
  for (int d : {-2, -1})
    if (self.size(d) % downscale_factor != 0)
      throw Error(fmt::format("pixel_unshuffle expects height and width to be divisible by downscale_factor, but {} is not divisible by {}",
                              self.size(d), downscale_factor));
  auto fn = node("PixelUnshuffleBackward0", {self}, {}, [](Backward& w) { w.out[0] = rearranged(w.grad[0], w.sizes(0)); });
  Dims sizes = self.sizes();
  sizes[-3] = checked_mul(sizes[-3], checked_mul(downscale_factor, downscale_factor));
  sizes[-2] /= downscale_factor;
  sizes[-1] /= downscale_factor;
  Tensor y = rearranged(self, sizes);
  fn.outputs({y});
  return y;
}
Tensor channel_shuffle(T self, I groups) {
  if (self.dim() < 3 || groups <= 0 || self.sizes()[1] % groups != 0)
    throw Error(
        fmt::format("channel_shuffle: the number of channels must be divisible by groups, found {} and {}", describe(self), groups));
  auto fn = node("ChannelShuffleBackward0", {self}, {}, [](Backward& w) { w.out[0] = rearranged(w.grad[0], w.sizes(0)); });
  Tensor y = rearranged(self, self.sizes());
  fn.outputs({y});
  return y;
}
const Op pixel_shuffle_op{{"aten::pixel_shuffle(Tensor self, int upscale_factor) -> Tensor", Autocast::none, "",
                           "derivatives.yaml pixel_shuffle; native/PixelShuffle.cpp"},
                          pixel_shuffle};
const Op pixel_unshuffle_op{{"aten::pixel_unshuffle(Tensor self, int downscale_factor) -> Tensor", Autocast::none, "",
                             "derivatives.yaml pixel_unshuffle; native/PixelShuffle.cpp"},
                            pixel_unshuffle};
const Op channel_shuffle_op{{"aten::channel_shuffle(Tensor self, SymInt groups) -> Tensor", Autocast::none, "",
                             "derivatives.yaml channel_shuffle; native/ChanelShuffle.cpp"},
                            channel_shuffle};

// ---- patches -----------------------------------------------------------------------------------------------------------

/// im2col_cuda, col2im_cuda: the output starts as empty_like(input) and is resized, so its storage is never smaller than the input's.
Tensor resized_like(T input, const Dims& sizes) {
  Tensor storage = empty({input.numel()}, input.dtype());
  const Tensor x = ops::contiguous_tensor(detached(input));
  if (sizes.numel() > input.numel()) storage = empty({sizes.numel()}, input.dtype());
  return share(storage, sizes, contiguous_strides(sizes), 0);
}

struct Patches {
  Dims kernel, dilation, padding, stride;
  /// Patches along dimension i of an image of that size.
  I count(int i, I size) const {
    const I room = checked_add(size, 2 * padding[i]) - checked_mul(dilation[i], kernel[i] - 1) - 1;
    return room < 0 ? 0 : room / stride[i] + 1;
  }
};
Patches patches(const char* name, const Dims& kernel, const Dims& dilation, const Dims& padding, const Dims& stride) {
  Patches p{kernel, dilation, padding, stride};
  for (Dims* list : {&p.kernel, &p.dilation, &p.padding, &p.stride}) {
    if (list->size() == 1) list->push_back((*list)[0]);
    if (list->size() != 2) throw Error(fmt::format("{}: two values expected, found {}", name, to_string(*list)));
    for (I v : *list)
      if (v < (list == &p.padding ? 0 : 1))
        throw Error(fmt::format("{}: kernel size, dilation and stride must be positive and padding not negative, found {}", name,
                                to_string(*list)));
  }
  return p;
}

Tensor im2col(T self, const Dims& kernel_size, const Dims& dilation, const Dims& padding, const Dims& stride) {
  const Patches p = patches("im2col", kernel_size, dilation, padding, stride);
  if (self.dim() != 3 && self.dim() != 4) throw Error("im2col: expected a 3D or 4D input, found " + describe(self));
  const I rows = p.count(0, self.size(-2)), columns = p.count(1, self.size(-1));
  if (rows < 1 || columns < 1)
    throw Error(fmt::format("im2col: the array of sliding blocks has no elements: an input of {} with a kernel of {}",
                            to_string(self.sizes()), to_string(kernel_size)));
  auto fn = node("Im2ColBackward0", {self}, {}, [](Backward& w) { w.out[0] = resized_like(w.grad[0], w.sizes(0)); });
  Dims sizes = self.sizes().slice(0, self.dim() - 3);
  sizes.push_back(checked_mul(self.size(-3), checked_mul(p.kernel[0], p.kernel[1])));
  sizes.push_back(checked_mul(rows, columns));
  Tensor y = resized_like(self, sizes);
  fn.outputs({y});
  return y;
}
Tensor col2im(T self, const Dims& output_size, const Dims& kernel_size, const Dims& dilation, const Dims& padding, const Dims& stride) {
  const Patches p = patches("col2im", kernel_size, dilation, padding, stride);
  if (self.dim() != 2 && self.dim() != 3) throw Error("col2im: expected a 2D or 3D input, found " + describe(self));
  if (output_size.size() != 2) throw Error("col2im: output_size must have two values, found " + to_string(output_size));
  const I area = checked_mul(p.kernel[0], p.kernel[1]), blocks = checked_mul(p.count(0, output_size[0]), p.count(1, output_size[1]));
  if (self.size(-2) % area != 0 || self.size(-1) != blocks)
    throw Error(fmt::format("col2im: an output of {} and a kernel of {} need {} sliding blocks of a multiple of {} values, found {}",
                            to_string(output_size), to_string(p.kernel), blocks, area, describe(self)));
  auto fn = node("Col2ImBackward0", {self}, {}, [](Backward& w) { w.out[0] = resized_like(w.grad[0], w.sizes(0)); });
  Tensor y = resized_like(self, self.sizes().slice(0, self.dim() - 2) + Dims{self.size(-2) / area} + output_size);
  fn.outputs({y});
  return y;
}
const Op im2col_op{{"aten::im2col(Tensor self, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor",
                    Autocast::none, "self", "derivatives.yaml im2col; native/cuda/Im2Col.cu"},
                   im2col};
const Op col2im_op{
    {"aten::col2im(Tensor self, SymInt[2] output_size, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor",
     Autocast::none, "", "derivatives.yaml col2im; native/cuda/Col2Im.cu"},
    col2im};

// ---- grids -------------------------------------------------------------------------------------------------------------

void check_grid(T input, T grid, int dims) {
  if (input.dim() != dims || grid.dim() != dims || input.sizes()[0] != grid.sizes()[0] || grid.sizes().back() != dims - 2)
    throw Error(fmt::format("grid_sampler: expected {}D input and grid of one batch size, the grid with {} values, found {} and {}", dims,
                            dims - 2, describe(input), describe(grid)));
  if (input.dtype() != grid.dtype())
    throw Error("grid_sampler: input and grid must have the same type, found " + describe(input) + " and " + describe(grid));
}
Dims sampled_sizes(T input, T grid) { return input.sizes().slice(0, 2) + grid.sizes().slice(1, grid.dim() - 1); }

template <int Spatial>
Tensor grid_sampler_nd(T input, T grid, I, I, bool) {
  check_grid(input, grid, Spatial + 2);
  auto fn =
      node(Spatial == 2 ? "GridSampler2DBackward0" : "GridSampler3DBackward0", {input, grid}, {grid, input}, [](Backward& w, T g, T x) {
        if (w.needs(0)) w.out[0] = empty(x.sizes(), x.dtype());
        Tensor of_grid = empty(g.sizes(), g.dtype());  // always
        if (w.needs(1)) w.out[1] = std::move(of_grid);
      });
  Tensor y = empty(sampled_sizes(input, grid), input.dtype());
  fn.outputs({y});
  return y;
}
const Op grid_sampler_2d_op{
    {"aten::grid_sampler_2d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor",
     Autocast::promote, "input, grid", "derivatives.yaml grid_sampler_2d; native/cuda/GridSampler.cpp"},
    grid_sampler_nd<2>};
const Op grid_sampler_3d_op{
    {"aten::grid_sampler_3d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor",
     Autocast::promote, "input, grid", "derivatives.yaml grid_sampler_3d; native/cuda/GridSampler.cpp"},
    grid_sampler_nd<3>};

/// contiguousIfZeroInStrides: cuDNN takes any strides but zero.
Tensor without_zero_strides(T x) {
  for (I s : x.strides())
    if (s == 0) return ops::contiguous_tensor(detached(x));
  return x;
}
Tensor cudnn_grid_sampler(T self, T grid) {
  check_grid(self, grid, 4);
  auto fn = node("CudnnGridSamplerBackward0", {self, grid}, {grid, self}, [](Backward& w, T g, T x) {
    const Tensor x_in = without_zero_strides(x);
    const Tensor g_in = ops::contiguous_tensor(g);
    const Tensor grad = without_zero_strides(w.grad[0]);
    Tensor of_input = empty(x.sizes(), x.dtype());
    Tensor of_grid = empty(g.sizes(), g.dtype());
    if (w.needs(0)) w.out[0] = std::move(of_input);
    if (w.needs(1)) w.out[1] = std::move(of_grid);
  });
  Tensor y;
  {
    const Tensor x_in = without_zero_strides(self);
    const Tensor g_in = ops::contiguous_tensor(detached(grid));
    y = empty(sampled_sizes(self, grid), self.dtype());
  }
  fn.outputs({y});
  return y;
}
const Op cudnn_grid_sampler_op{{"aten::cudnn_grid_sampler(Tensor self, Tensor grid) -> Tensor output", Autocast::none, "self, grid",
                                "derivatives.yaml cudnn_grid_sampler; native/cudnn/GridSampler.cpp"},
                               cudnn_grid_sampler};

Tensor grid_sampler(T input, T grid, I interpolation_mode, I padding_mode, bool align_corners) {
  if (input.dim() != 4 && input.dim() != 5) throw Error("grid_sampler: expected a 4D or 5D input, found " + describe(input));
  const bool float_type = input.dtype() == DType::float32 || input.dtype() == DType::float64;
  if (input.dim() == 4 && interpolation_mode == 0 && padding_mode == 0 && align_corners && float_type && input.sizes()[1] <= 1024)
    return cudnn_grid_sampler_op(input, grid);
  if (input.dim() == 4) return grid_sampler_2d_op(input, grid, interpolation_mode, padding_mode, align_corners);
  return grid_sampler_3d_op(input, grid, interpolation_mode, padding_mode, align_corners);
}
const Op grid_sampler_op{
    {"aten::grid_sampler(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor",
     Autocast::promote, "", "native/GridSampler.cpp grid_sampler"},
    grid_sampler};

/// make_base_grid_4D, _5D: ones and each axis' coordinates, flattened over space.
Tensor base_grid(T theta, const Dims& size, bool align_corners) {
  const int spatial = size.size() - 2;
  const Dims image = size.slice(2, size.size());
  Tensor grid = empty(Dims{size[0]} + image + Dims{spatial + 1}, theta.dtype());
  for (int axis = spatial - 1; axis >= 0; --axis) {  // linspace(-1, 1, n), times (n - 1) / n where corners are not aligned
    if (image[axis] <= 1) {
      const Tensor zero = empty({}, theta.dtype());
      continue;
    }
    Tensor range = empty({image[axis]}, theta.dtype());
    if (align_corners) continue;
    const Tensor scaled = empty_like(range);
    range = empty_like(range);
  }
  return ops::view(grid, {size[0], image.numel(), spatial + 1});
}
void check_affine(T theta, const Dims& size) {
  const int spatial = size.size() - 2;
  if ((spatial != 2 && spatial != 3) || theta.dim() != 3 || theta.sizes()[0] != size[0] || theta.sizes()[1] != spatial ||
      theta.sizes()[2] != spatial + 1)
    throw Error(fmt::format("affine_grid_generator: expected a batch of {}x{} affine matrices for the size {}, found {}", spatial,
                            spatial + 1, to_string(size), describe(theta)));
}
Tensor affine_grid_generator(T theta, const Dims& size, bool align_corners) {
  check_affine(theta, size);
  const int spatial = size.size() - 2;
  const Dims image = size.slice(2, size.size());
  auto fn = node("AffineGridGeneratorBackward0", {theta}, {}, [size, align_corners, spatial, cells = image.numel()](Backward& w) {
    const Tensor base = base_grid(w.grad[0], size, align_corners);
    const Tensor grad = ops::reshape(w.grad[0], {size[0], cells, spatial});
    w.out[0] = ops::transpose(ops::bmm(ops::transpose(base, 1, 2), grad), 1, 2);
  });
  Tensor y;
  {
    NoGrad guard;
    const Tensor base = base_grid(theta, size, align_corners);
    Tensor product = ops::bmm(base, ops::transpose(detached(theta), 1, 2));
    const Dims sizes = Dims{size[0]} + image + Dims{spatial};
    y = share(product, sizes, contiguous_strides(sizes), 0);
  }
  fn.outputs({y});
  return y;
}
const Op affine_grid_generator_op{{"aten::affine_grid_generator(Tensor theta, SymInt[] size, bool align_corners) -> Tensor", Autocast::none,
                                   "", "derivatives.yaml affine_grid_generator; native/AffineGridGenerator.cpp"},
                                  affine_grid_generator};

}  // namespace
}  // namespace memest
