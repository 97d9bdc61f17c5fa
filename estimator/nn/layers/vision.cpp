// torch.nn: padding, resampling, rearranged pixels, patches (torch/nn/modules/{padding,upsampling,pixelshuffle,channelshuffle,fold}.py).
#include "nn/layer.h"
#include "nn/simple_layer.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

/// F.pad(input, padding, mode, value).
ModulePtr padding_layer(const char* type, const Dims& padding, const char* mode, std::optional<double> value = {}) {
  return simple_layer(type, [=](T x) { return ops::pad(x, padding, mode, value); });
}
#define MEMEST_PADS(N, SIDES)                                                                                                            \
  const Layer zero_pad##N##d{"ZeroPad" #N "d(int[" #SIDES "] padding)",                                                                  \
                             [](const Dims& p) { return padding_layer("ZeroPad" #N "d", p, "constant", 0.0); }};                         \
  const Layer constant_pad##N##d{"ConstantPad" #N "d(int[" #SIDES "] padding, float value)",                                             \
                                 [](const Dims& p, double value) { return padding_layer("ConstantPad" #N "d", p, "constant", value); }}; \
  const Layer reflection_pad##N##d{"ReflectionPad" #N "d(int[" #SIDES "] padding)",                                                      \
                                   [](const Dims& p) { return padding_layer("ReflectionPad" #N "d", p, "reflect"); }};                   \
  const Layer replication_pad##N##d{"ReplicationPad" #N "d(int[" #SIDES "] padding)",                                                    \
                                    [](const Dims& p) { return padding_layer("ReplicationPad" #N "d", p, "replicate"); }};               \
  const Layer circular_pad##N##d{"CircularPad" #N "d(int[" #SIDES "] padding)",                                                          \
                                 [](const Dims& p) { return padding_layer("CircularPad" #N "d", p, "circular"); }};
MEMEST_PADS(1, 2)
MEMEST_PADS(2, 4)
MEMEST_PADS(3, 6)
#undef MEMEST_PADS

const Layer upsample{
    "Upsample(Any size=None, Any scale_factor=None, str mode='nearest', bool? align_corners=None, bool? recompute_scale_factor=None)",
    [](const Value& size, const Value& scale, const std::string& mode, std::optional<bool> align_corners, std::optional<bool> recompute) {
      return simple_layer("Upsample", [=](T x) {
        return call_function(
            "interpolate",
            {x, size, scale, mode, align_corners ? Value(*align_corners) : Value(None{}), recompute ? Value(*recompute) : Value(None{})},
            {});
      });
    }};
const Layer upsampling_nearest2d{"UpsamplingNearest2d(Any size=None, Any scale_factor=None)", [](const Value& size, const Value& scale) {
                                   return simple_layer("UpsamplingNearest2d", [=](T x) {
                                     return call_function("interpolate", {x, size, scale, std::string("nearest")}, {});
                                   });
                                 }};
const Layer upsampling_bilinear2d{"UpsamplingBilinear2d(Any size=None, Any scale_factor=None)", [](const Value& size, const Value& scale) {
                                    return simple_layer("UpsamplingBilinear2d", [=](T x) {
                                      return call_function("interpolate", {x, size, scale, std::string("bilinear"), true}, {});
                                    });
                                  }};

const Layer pixel_shuffle{"PixelShuffle(int upscale_factor)", [](I factor) {
                            return simple_layer("PixelShuffle", [=](T x) { return call_op("aten::pixel_shuffle", {x, factor}, {}); });
                          }};
const Layer pixel_unshuffle{"PixelUnshuffle(int downscale_factor)", [](I factor) {
                              return simple_layer("PixelUnshuffle", [=](T x) { return call_op("aten::pixel_unshuffle", {x, factor}, {}); });
                            }};
const Layer channel_shuffle{"ChannelShuffle(int groups)", [](I groups) {
                              return simple_layer("ChannelShuffle", [=](T x) { return call_op("aten::channel_shuffle", {x, groups}, {}); });
                            }};
const Layer unfold{"Unfold(int[2] kernel_size, int[2] dilation=1, int[2] padding=0, int[2] stride=1)",
                   [](const Dims& kernel, const Dims& dilation, const Dims& padding, const Dims& stride) {
                     return simple_layer("Unfold", [=](T x) {
                       return call_function("unfold", {x, list_of(kernel), list_of(dilation), list_of(padding), list_of(stride)}, {});
                     });
                   }};
const Layer fold{
    "Fold(int[2] output_size, int[2] kernel_size, int[2] dilation=1, int[2] padding=0, int[2] stride=1)",
    [](const Dims& size, const Dims& kernel, const Dims& dilation, const Dims& padding, const Dims& stride) {
      return simple_layer("Fold", [=](T x) {
        return call_function("fold", {x, list_of(size), list_of(kernel), list_of(dilation), list_of(padding), list_of(stride)}, {});
      });
    }};

}  // namespace
}  // namespace memest::nn
