// torch.nn.functional: padding, resampling, patches, grids (torch/nn/functional.py).
#include <fmt/format.h>

#include <cmath>

#include "nn/layer.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

Tensor tensor_of(const Value& v) { return Unbox<Tensor>::from(v); }

const Function pad{
    "pad(Tensor input, int[] pad, str mode='constant', float? value=None)",
    [](T input, const Dims& sides, const std::string& mode, std::optional<double> value) { return ops::pad(input, sides, mode, value); }};

/// One number, or one for each spatial dimension.
std::vector<double> numbers(const char* name, const Value& v, int spatial) {
  std::vector<double> list;
  if (auto* l = std::get_if<std::shared_ptr<List>>(&v)) {
    for (auto& item : (*l)->items) list.push_back(Unbox<double>::from(item));
  } else {
    list.assign(std::size_t(spatial), Unbox<double>::from(v));
  }
  if (int(list.size()) != spatial)
    throw Error(fmt::format("interpolate: {} must be one number or {}, found {}", name, spatial, list.size()));
  return list;
}

Tensor interpolate(T input, const Value& size, const Value& scale_factor, const std::string& mode, std::optional<bool> align_corners,
                   std::optional<bool> recompute, bool antialias) {
  const int spatial = input.dim() - 2;
  if (spatial < 1 || spatial > 3) throw Error("interpolate: input must have 1 to 3 spatial dimensions, found " + describe(input));
  const bool aligned_mode = mode == "linear" || mode == "bilinear" || mode == "bicubic" || mode == "trilinear" || mode == "lanczos";
  if (!aligned_mode && mode != "nearest" && mode != "nearest-exact" && mode != "area")
    throw Error("interpolate: mode '" + mode + "' is unknown",
                "modes are nearest, linear, bilinear, bicubic, trilinear, area, nearest-exact");
  if (!aligned_mode && align_corners)
    throw Error("align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic | trilinear");
  if (is_none(size) == is_none(scale_factor))
    throw Error(is_none(size) ? "either size or scale_factor should be defined" : "only one of size or scale_factor should be defined");
  Value sizes = None{}, factors = None{};
  if (!is_none(size)) {
    Values list;
    for (double n : numbers("size", size, spatial)) list.push_back(I(n));
    sizes = make_list(std::move(list));
  } else {
    const std::vector<double> scales = numbers("scale_factor", scale_factor, spatial);
    Values list;
    const bool as_size = mode == "area" || recompute.value_or(false);
    for (int i = 0; i < spatial; ++i) {
      const double scale = scales[std::size_t(i)];
      if (as_size)
        list.push_back(I(std::floor(double(input.size(i + 2)) * scale)));
      else
        list.push_back(scale);
    }
    (as_size ? sizes : factors) = make_list(std::move(list));
  }
  if (antialias && (spatial != 2 || (mode != "bilinear" && mode != "bicubic" && mode != "lanczos")))
    throw Error("anti-alias option is restricted to bilinear and bicubic modes and requires a 4-D tensor as input");
  if (mode == "area") return ops::adaptive_avg_pool(spatial, input, Unbox<Dims>::from(sizes));
  if (mode == "nearest") return tensor_of(call_op(fmt::format("aten::upsample_nearest{}d", spatial), {input, sizes, factors}, {}));
  if (mode == "nearest-exact")
    return tensor_of(call_op(fmt::format("aten::_upsample_nearest_exact{}d", spatial), {input, sizes, factors}, {}));
  const int wanted = mode == "linear" ? 1 : mode == "trilinear" ? 3 : 2;
  if (wanted != spatial) throw Error(fmt::format("interpolate: mode {} takes a {}D input, found {}", mode, wanted + 2, describe(input)));
  return tensor_of(call_op(fmt::format("aten::{}upsample_{}{}d{}", antialias ? "_" : "", mode, spatial, antialias ? "_aa" : ""),
                           {input, sizes, align_corners.value_or(false), factors}, {}));
}
const Function interpolate_function{
    "interpolate(Tensor input, Any size=None, Any scale_factor=None, str mode='nearest', bool? align_corners=None, bool? "
    "recompute_scale_factor=None, bool antialias=False)",
    interpolate};
const Function upsample{"upsample(Tensor input, Any size=None, Any scale_factor=None, str mode='nearest', bool? align_corners=None)",
                        [](T input, const Value& size, const Value& scale, const std::string& mode, std::optional<bool> align_corners) {
                          return interpolate(input, size, scale, mode, align_corners, std::nullopt, false);
                        }};
const Function upsample_nearest{"upsample_nearest(Tensor input, Any size=None, Any scale_factor=None)",
                                [](T input, const Value& size, const Value& scale) {
                                  return interpolate(input, size, scale, "nearest", std::nullopt, std::nullopt, false);
                                }};
const Function upsample_bilinear{
    "upsample_bilinear(Tensor input, Any size=None, Any scale_factor=None)",
    [](T input, const Value& size, const Value& scale) { return interpolate(input, size, scale, "bilinear", true, std::nullopt, false); }};

const Function unfold{
    "unfold(Tensor input, int[2] kernel_size, int[2] dilation=1, int[2] padding=0, int[2] stride=1)",
    [](T input, const Dims& kernel, const Dims& dilation, const Dims& padding, const Dims& stride) {
      return tensor_of(call_op("aten::im2col", {input, list_of(kernel), list_of(dilation), list_of(padding), list_of(stride)}, {}));
    }};
const Function fold{
    "fold(Tensor input, int[2] output_size, int[2] kernel_size, int[2] dilation=1, int[2] padding=0, int[2] stride=1)",
    [](T input, const Dims& size, const Dims& kernel, const Dims& dilation, const Dims& padding, const Dims& stride) {
      return tensor_of(
          call_op("aten::col2im", {input, list_of(size), list_of(kernel), list_of(dilation), list_of(padding), list_of(stride)}, {}));
    }};

I index_of(const char* what, const std::string& name, std::initializer_list<const char*> names) {
  I i = 0;
  for (const char* n : names) {
    if (name == n) return i;
    ++i;
  }
  throw Error(fmt::format("grid_sample: {} '{}' is unknown", what, name));
}
const Function grid_sample{
    "grid_sample(Tensor input, Tensor grid, str mode='bilinear', str padding_mode='zeros', bool? align_corners=None)",
    [](T input, T grid, const std::string& mode, const std::string& padding_mode, std::optional<bool> align_corners) {
      return tensor_of(call_op("aten::grid_sampler",
                               {input, grid, index_of("mode", mode, {"bilinear", "nearest", "bicubic"}),
                                index_of("padding_mode", padding_mode, {"zeros", "border", "reflection"}), align_corners.value_or(false)},
                               {}));
    }};
const Function affine_grid{
    "affine_grid(Tensor theta, int[] size, bool? align_corners=None)", [](T theta, const Dims& size, std::optional<bool> align_corners) {
      return tensor_of(call_op("aten::affine_grid_generator", {theta, list_of(size), align_corners.value_or(false)}, {}));
    }};

}  // namespace
}  // namespace memest::nn
