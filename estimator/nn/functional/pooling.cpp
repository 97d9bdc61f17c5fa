// torch.nn.functional: pooling (torch/nn/functional.py).
#include <fmt/format.h>

#include <algorithm>

#include "nn/layer.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

Value result(std::tuple<Tensor, Tensor> both, bool return_indices) {
  if (return_indices) return to_value(std::move(both));
  return to_value(std::get<0>(std::move(both)));
}

/// _list_with_default: None keeps the input's size.
Dims with_defaults(const Value& output_size, T input, int spatial) {
  auto* list = std::get_if<std::shared_ptr<List>>(&output_size);
  if (!list) return Dims::filled(spatial, Unbox<I>::from(output_size));
  const Values& items = (*list)->items;
  if (int(items.size()) != spatial) throw Error(fmt::format("output_size must be one number or {}, found {}", spatial, items.size()));
  Dims sizes;
  for (int i = 0; i < spatial; ++i)
    sizes.push_back(is_none(items[std::size_t(i)]) ? input.size(i - spatial) : Unbox<I>::from(items[std::size_t(i)]));
  return sizes;
}

/// `(torch.sign(out) * relu(torch.abs(out))).mul(count).pow(1.0 / norm_type)` over an average pool of input.pow(norm_type).
Tensor lp_pool(int spatial, T input, double norm_type, const Dims& kernel_size, const std::optional<Dims>& stride, bool ceil_mode) {
  auto named = [](const char* op, T x) { return Unbox<Tensor>::from(call_op(op, {x}, {})); };
  Dims kernel = kernel_size.size() == 1 ? Dims::filled(spatial, kernel_size[0]) : kernel_size;
  const Tensor out = ops::avg_pool(spatial, ops::pow_scalar(input, norm_type), kernel, stride.value_or(Dims{}), Dims{0}, ceil_mode, true);
  Tensor y;
  {
    const Tensor sign = named("aten::sign", out);
    const Tensor positive = ops::relu(named("aten::abs", out));
    y = ops::mul(sign, positive);
  }
  y = ops::mul_scalar(y, kernel.numel());
  return ops::pow_scalar(std::move(y), 1 / norm_type);
}

#define MEMEST_POOLS(N)                                                                                                                   \
  const Function max_pool##N##d{                                                                                                          \
      "max_pool" #N "d(Tensor input, int[" #N "] kernel_size, int[" #N "]? stride=None, int[" #N "] padding=0, int[" #N                   \
      "] dilation=1, bool ceil_mode=False, bool return_indices=False)",                                                                   \
      [](T x, const Dims& kernel, const std::optional<Dims>& stride, const Dims& padding, const Dims& dilation, bool ceil_mode,           \
         bool indices) { return result(ops::max_pool(N, x, kernel, stride.value_or(Dims{}), padding, dilation, ceil_mode), indices); }};  \
  const Function adaptive_avg_pool##N##d{"adaptive_avg_pool" #N "d(Tensor input, Any output_size)",                                       \
                                         [](T x, const Value& size) { return ops::adaptive_avg_pool(N, x, with_defaults(size, x, N)); }}; \
  const Function adaptive_max_pool##N##d{                                                                                                 \
      "adaptive_max_pool" #N "d(Tensor input, Any output_size, bool return_indices=False)",                                               \
      [](T x, const Value& size, bool indices) { return result(ops::adaptive_max_pool(N, x, with_defaults(size, x, N)), indices); }};     \
  const Function lp_pool##N##d{"lp_pool" #N "d(Tensor input, float norm_type, int[" #N "] kernel_size, int[" #N                           \
                               "]? stride=None, bool ceil_mode=False)",                                                                   \
                               [](T x, double norm, const Dims& kernel, const std::optional<Dims>& stride, bool ceil_mode) {              \
                                 return lp_pool(N, x, norm, kernel, stride, ceil_mode);                                                   \
                               }};
MEMEST_POOLS(1)
MEMEST_POOLS(2)
MEMEST_POOLS(3)
#undef MEMEST_POOLS

#define MEMEST_AVG_POOL(N, DIVISOR)                                                                                         \
  const Function avg_pool##N##d{                                                                                            \
      "avg_pool" #N "d(Tensor input, int[" #N "] kernel_size, int[" #N "]? stride=None, int[" #N                            \
      "] padding=0, bool ceil_mode=False, bool count_include_pad=True" DIVISOR ")",                                         \
      [](T x, const Dims& kernel, const std::optional<Dims>& stride, const Dims& padding, bool ceil_mode, bool include_pad, \
         std::optional<I>) { return ops::avg_pool(N, x, kernel, stride.value_or(Dims{}), padding, ceil_mode, include_pad); }};
MEMEST_AVG_POOL(1, ", int? divisor_override=None")
MEMEST_AVG_POOL(2, ", int? divisor_override=None")
MEMEST_AVG_POOL(3, ", int? divisor_override=None")
#undef MEMEST_AVG_POOL

Value fractional_max_pool(int spatial, T input, const Dims& kernel_size, const std::optional<Dims>& output_size,
                          const std::optional<std::vector<double>>& output_ratio, bool return_indices, T random_samples) {
  if (!output_size && !output_ratio) throw Error("fractional_max_pool requires specifying either an output_size or an output_ratio");
  Dims out;
  if (output_size) {
    out = output_size->size() == 1 ? Dims::filled(spatial, (*output_size)[0]) : *output_size;
  } else {
    std::vector<double> ratios = *output_ratio;
    if (ratios.size() == 1) ratios.assign(std::size_t(spatial), ratios[0]);
    if (int(ratios.size()) != spatial) throw Error(fmt::format("output_ratio must be one number or {}, found {}", spatial, ratios.size()));
    for (int i = 0; i < spatial; ++i) {
      if (!(ratios[std::size_t(i)] > 0 && ratios[std::size_t(i)] < 1)) throw Error("output_ratio must be between 0 and 1");
      out.push_back(I(double(input.size(i - spatial)) * ratios[std::size_t(i)]));
    }
  }
  Tensor samples = random_samples;
  if (!samples) samples = empty({input.dim() == spatial + 1 ? 1 : input.size(0), input.size(-spatial - 1), spatial}, input.dtype());
  return result(ops::fractional_max_pool(spatial, input, kernel_size, out, samples), return_indices);
}
#define MEMEST_FRACTIONAL(N)                                                                                                      \
  const Function fractional_max_pool##N##d{                                                                                       \
      "fractional_max_pool" #N "d(Tensor input, int[" #N "] kernel_size, int[" #N "]? output_size=None, float[" #N                \
      "]? output_ratio=None, bool return_indices=False, Tensor? _random_samples=None)",                                           \
      [](T x, const Dims& kernel, const std::optional<Dims>& size, const std::optional<std::vector<double>>& ratio, bool indices, \
         T samples) { return fractional_max_pool(N, x, kernel, size, ratio, indices, samples); }};
MEMEST_FRACTIONAL(2)
MEMEST_FRACTIONAL(3)
#undef MEMEST_FRACTIONAL

/// _unpool_output_size.
Dims unpooled_size(T input, int spatial, const Dims& kernel_size, const std::optional<Dims>& given_stride, const Dims& padding,
                   const Value& output_size) {
  auto full = [spatial](const Dims& list) { return list.size() == 1 ? Dims::filled(spatial, list[0]) : list; };
  const Dims kernel = full(kernel_size), stride = given_stride ? full(*given_stride) : kernel, pad = full(padding);
  if (!is_none(output_size)) {
    Dims size = Unbox<Dims>::from(output_size);
    return size.size() > spatial ? size.slice(size.size() - spatial, size.size()) : full(size);
  }
  Dims size;
  for (int i = 0; i < spatial; ++i)
    size.push_back(checked_add(checked_mul(input.size(i - spatial) - 1, stride[i]), kernel[i] - 2 * pad[i]));
  return size;
}
Tensor tensor_of(const Value& v) { return Unbox<Tensor>::from(v); }
const Function max_unpool1d{
    "max_unpool1d(Tensor input, Tensor indices, int[1] kernel_size, int[1]? stride=None, int[1] padding=0, Any output_size=None)",
    [](T x, T indices, const Dims& kernel, const std::optional<Dims>& stride, const Dims& padding, const Value& output_size) {
      const Dims size = unpooled_size(x, 1, kernel, stride, padding, output_size);
      return ops::squeeze_dim(
          tensor_of(call_op("aten::max_unpool2d", {ops::unsqueeze(x, -1), ops::unsqueeze(indices, -1), list_of(size + Dims{1})}, {})), -1);
    }};
const Function max_unpool2d{
    "max_unpool2d(Tensor input, Tensor indices, int[2] kernel_size, int[2]? stride=None, int[2] padding=0, Any output_size=None)",
    [](T x, T indices, const Dims& kernel, const std::optional<Dims>& stride, const Dims& padding, const Value& output_size) {
      return tensor_of(call_op("aten::max_unpool2d", {x, indices, list_of(unpooled_size(x, 2, kernel, stride, padding, output_size))}, {}));
    }};
const Function max_unpool3d{
    "max_unpool3d(Tensor input, Tensor indices, int[3] kernel_size, int[3]? stride=None, int[3] padding=0, Any output_size=None)",
    [](T x, T indices, const Dims& kernel, const std::optional<Dims>& stride, const Dims& padding, const Value& output_size) {
      return tensor_of(call_op("aten::max_unpool3d",
                               {x, indices, list_of(unpooled_size(x, 3, kernel, stride, padding, output_size)),
                                list_of(stride.value_or(kernel)), list_of(padding)},
                               {}));
    }};

}  // namespace
}  // namespace memest::nn
