// torch.nn convolutions (torch/nn/modules/conv.py).
#include <fmt/format.h>

#include "nn/layer.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

/// padding="valid" or "same", or numbers.
Dims padding_of(const Value& padding, const Dims& kernel, const Dims& stride, const Dims& dilation, Dims& uneven) {
  const int spatial = kernel.size();
  if (auto* text = std::get_if<std::string>(&padding)) {
    if (*text == "valid") return Dims::filled(spatial, 0);
    if (*text != "same") throw Error("padding must be numbers, 'valid' or 'same', found '" + *text + "'");
    Dims left = Dims::filled(spatial, 0);
    uneven = Dims::filled(spatial, 0);
    for (int i = 0; i < spatial; ++i) {
      if (stride[i] != 1) throw Error("padding='same' is not supported for strided convolutions");
      const I total = checked_mul(dilation[i], kernel[i] - 1);
      left[i] = total / 2;
      uneven[i] = total - 2 * left[i];
    }
    return left;
  }
  Dims dims = Unbox<Dims>::from(padding);
  if (dims.size() == 1) dims = Dims::filled(spatial, dims[0]);
  if (dims.size() != spatial) throw Error(fmt::format("padding needs {} values, found {}", spatial, to_string(dims)));
  return dims;
}

struct ConvArguments {
  I in_channels, out_channels;
  Dims kernel, stride, padding, dilation, output_padding;
  I groups;
  bool bias;
  std::string padding_mode;
};

class Conv final : public UnaryModule {
 public:
  Conv(const char* type, ConvArguments a, bool transposed, Dims uneven)
      : UnaryModule(type), a_(std::move(a)), transposed_(transposed), uneven_(std::move(uneven)) {
    if (a_.in_channels < 1 || a_.out_channels < 1)
      throw Error(fmt::format("{}: channels must be positive, found {} and {}", type, a_.in_channels, a_.out_channels));
    if (a_.groups <= 0) throw Error(fmt::format("{}: groups must be a positive integer, found {}", type, a_.groups));
    if (a_.in_channels % a_.groups != 0)
      throw Error(fmt::format("{}: in_channels {} must be divisible by groups {}", type, a_.in_channels, a_.groups));
    if (a_.out_channels % a_.groups != 0)
      throw Error(fmt::format("{}: out_channels {} must be divisible by groups {}", type, a_.out_channels, a_.groups));
    for (I k : a_.kernel)
      if (k < 1) throw Error(fmt::format("{}: kernel_size must be positive, found {}", type, to_string(a_.kernel)));
    Dims sizes = transposed ? Dims{a_.in_channels, a_.out_channels / a_.groups} : Dims{a_.out_channels, a_.in_channels / a_.groups};
    new_parameter("weight", sizes + a_.kernel);
    new_parameter("bias", {a_.out_channels}, a_.bias);
  }
  Tensor forward(T input) override {
    Tensor x = input;
    Dims padding = a_.padding;
    if (a_.padding_mode != "zeros") {  // F.pad(input, self._reversed_padding_repeated_twice, mode)
      Values twice;
      for (int i = padding.size() - 1; i >= 0; --i)
        twice.insert(twice.end(), {padding[i], padding[i] + (uneven_.empty() ? 0 : uneven_[i])});
      x = Unbox<Tensor>::from(call_function("pad", {input, make_list(twice)}, {{"mode", a_.padding_mode}}));
      padding = Dims::filled(padding.size(), 0);
    } else if (!uneven_.empty()) {  // padding="same"
      return Unbox<Tensor>::from(call_function(
          fmt::format("conv{}d", a_.kernel.size()),
          {input, to_value(parameter(0)), to_value(parameter(1)), list_of(a_.stride), std::string("same"), list_of(a_.dilation), a_.groups},
          {}));
    }
    const std::size_t spatial = std::size_t(a_.kernel.size());
    if (transposed_) {
      const Op<Tensor(T, T, T, const Dims&, const Dims&, const Dims&, I, const Dims&)>* op[] = {
          &ops::conv_transpose1d, &ops::conv_transpose2d, &ops::conv_transpose3d};
      return (*op[spatial - 1])(x, parameter(0), parameter(1), a_.stride, padding, a_.output_padding, a_.groups, a_.dilation);
    }
    const Op<Tensor(T, T, T, const Dims&, const Dims&, const Dims&, I)>* op[] = {&ops::conv1d, &ops::conv2d, &ops::conv3d};
    return (*op[spatial - 1])(x, parameter(0), parameter(1), a_.stride, padding, a_.dilation, a_.groups);
  }

 private:
  ConvArguments a_;
  bool transposed_;
  Dims uneven_;
};

ModulePtr make_conv(const char* type, I in, I out, const Dims& kernel, const Dims& stride, const Value& padding, const Dims& dilation,
                    I groups, bool bias, const std::string& mode) {
  if (mode != "zeros" && mode != "reflect" && mode != "replicate" && mode != "circular")
    throw Error("padding_mode must be zeros, reflect, replicate or circular, found '" + mode + "'");
  Dims uneven;
  Dims pad = padding_of(padding, kernel, stride, dilation, uneven);
  return std::make_shared<Conv>(type, ConvArguments{in, out, kernel, stride, pad, dilation, {}, groups, bias, mode}, false, uneven);
}
ModulePtr make_conv_transpose(const char* type, I in, I out, const Dims& kernel, const Dims& stride, const Dims& padding,
                              const Dims& output_padding, I groups, bool bias, const Dims& dilation, const std::string& mode) {
  if (mode != "zeros") throw Error("only 'zeros' padding mode is supported for " + std::string(type));
  return std::make_shared<Conv>(type, ConvArguments{in, out, kernel, stride, padding, dilation, output_padding, groups, bias, mode}, true,
                                Dims{});
}

#define MEMEST_CONV(N)                                                                                                                    \
  const Layer conv##N##d{                                                                                                                 \
      "Conv" #N "d(int in_channels, int out_channels, int[" #N "] kernel_size, int[" #N "] stride=1, Any padding=0, int[" #N              \
      "] dilation=1, int groups=1, bool bias=True, str padding_mode='zeros')",                                                            \
      [](I in, I out, const Dims& kernel, const Dims& stride, const Value& padding, const Dims& dilation, I groups, bool bias,            \
         const std::string& mode) { return make_conv("Conv" #N "d", in, out, kernel, stride, padding, dilation, groups, bias, mode); }};  \
  const Layer conv_transpose##N##d{"ConvTranspose" #N "d(int in_channels, int out_channels, int[" #N "] kernel_size, int[" #N             \
                                   "] stride=1, int[" #N "] padding=0, int[" #N                                                           \
                                   "] output_padding=0, int groups=1, bool bias=True, int[" #N "] dilation=1, str padding_mode='zeros')", \
                                   [](I in, I out, const Dims& kernel, const Dims& stride, const Dims& padding,                           \
                                      const Dims& output_padding, I groups, bool bias, const Dims& dilation, const std::string& mode) {   \
                                     return make_conv_transpose("ConvTranspose" #N "d", in, out, kernel, stride, padding, output_padding, \
                                                                groups, bias, dilation, mode);                                            \
                                   }};
MEMEST_CONV(1)
MEMEST_CONV(2)
MEMEST_CONV(3)
#undef MEMEST_CONV

}  // namespace
}  // namespace memest::nn
