// torch.nn activations (torch/nn/modules/activation.py): each calls the function of its name in torch.nn.functional.
#include <fmt/format.h>

#include "nn/layer.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

/// A layer that is one call of a function: the input, then what it was made with.
class Activation final : public UnaryModule {
 public:
  Activation(const char* type, const char* function, Values arguments)
      : UnaryModule(type), function_(function), arguments_(std::move(arguments)) {}
  Tensor forward(T input) override {
    Values arguments{input};
    arguments.insert(arguments.end(), arguments_.begin(), arguments_.end());
    return Unbox<Tensor>::from(call_function(function_, arguments, {}));
  }

 private:
  std::string function_;
  Values arguments_;
};
ModulePtr calls(const char* type, const char* function, Values arguments = {}) {
  return std::make_shared<Activation>(type, function, std::move(arguments));
}

#define MEMEST_ACTIVATION(NAME, FUNCTION) const Layer FUNCTION##_layer{#NAME "()", [] { return calls(#NAME, #FUNCTION); }};
MEMEST_ACTIVATION(Sigmoid, sigmoid)
MEMEST_ACTIVATION(Tanh, tanh)
MEMEST_ACTIVATION(LogSigmoid, logsigmoid)
MEMEST_ACTIVATION(Softsign, softsign)
MEMEST_ACTIVATION(Tanhshrink, tanhshrink)
#undef MEMEST_ACTIVATION
#define MEMEST_ACTIVATION(NAME, FUNCTION) \
  const Layer FUNCTION##_layer{#NAME "(bool inplace=False)", [](bool inplace) { return calls(#NAME, #FUNCTION, {inplace}); }};
MEMEST_ACTIVATION(ReLU, relu)
MEMEST_ACTIVATION(ReLU6, relu6)
MEMEST_ACTIVATION(SELU, selu)
MEMEST_ACTIVATION(SiLU, silu)
MEMEST_ACTIVATION(Mish, mish)
MEMEST_ACTIVATION(Hardswish, hardswish)
MEMEST_ACTIVATION(Hardsigmoid, hardsigmoid)
#undef MEMEST_ACTIVATION
#define MEMEST_ACTIVATION(NAME, FUNCTION, ARGUMENT)                                                                \
  const Layer FUNCTION##_layer{#NAME "(float " ARGUMENT ", bool inplace=False)", [](double number, bool inplace) { \
                                 return calls(#NAME, #FUNCTION, {number, inplace});                                \
                               }};
MEMEST_ACTIVATION(ELU, elu, "alpha=1.0")
MEMEST_ACTIVATION(CELU, celu, "alpha=1.0")
MEMEST_ACTIVATION(LeakyReLU, leaky_relu, "negative_slope=0.01")
#undef MEMEST_ACTIVATION
#define MEMEST_ACTIVATION(NAME, FUNCTION) \
  const Layer FUNCTION##_layer{#NAME "(float lambd=0.5)", [](double lambd) { return calls(#NAME, #FUNCTION, {lambd}); }};
MEMEST_ACTIVATION(Hardshrink, hardshrink)
MEMEST_ACTIVATION(Softshrink, softshrink)
#undef MEMEST_ACTIVATION
#define MEMEST_ACTIVATION(NAME, FUNCTION)               \
  const Layer FUNCTION##_layer{#NAME "(int? dim=None)", \
                               [](std::optional<I> dim) { return calls(#NAME, #FUNCTION, {dim ? Value(*dim) : Value(None{})}); }};
MEMEST_ACTIVATION(Softmax, softmax)
MEMEST_ACTIVATION(Softmin, softmin)
MEMEST_ACTIVATION(LogSoftmax, log_softmax)
#undef MEMEST_ACTIVATION

const Layer gelu{"GELU(str approximate='none')", [](const std::string& approximate) { return calls("GELU", "gelu", {approximate}); }};
const Layer glu{"GLU(int dim=-1)", [](I dim) { return calls("GLU", "glu", {dim}); }};
const Layer hardtanh{"Hardtanh(float min_val=-1.0, float max_val=1.0, bool inplace=False)", [](double min, double max, bool inplace) {
                       if (max <= min) throw Error(fmt::format("Hardtanh: max_val must be larger than min_val, found {} and {}", max, min));
                       return calls("Hardtanh", "hardtanh", {min, max, inplace});
                     }};
const Layer softplus_layer{"Softplus(float beta=1.0, float threshold=20.0)", [](double beta, double threshold) {
                             return calls("Softplus", "softplus", {beta, threshold});
                           }};
const Layer threshold_layer{"Threshold(float threshold, float value, bool inplace=False)",
                            [](double threshold, double value, bool inplace) {
                              return calls("Threshold", "threshold", {threshold, value, inplace});
                            }};

class Softmax2d final : public UnaryModule {
 public:
  Softmax2d() : UnaryModule("Softmax2d") {}
  Tensor forward(T input) override {
    if (input.dim() != 3 && input.dim() != 4) throw Error("Softmax2d: expected input to be 3D or 4D, found " + describe(input));
    return ops::softmax(input, -3, std::nullopt);
  }
};
const Layer softmax2d{"Softmax2d()", []() -> ModulePtr { return std::make_shared<Softmax2d>(); }};

class PReLU final : public UnaryModule {
 public:
  explicit PReLU(I num_parameters) : UnaryModule("PReLU") { new_parameter("weight", {num_parameters}); }
  Tensor forward(T input) override { return ops::prelu(input, parameter(0)); }
};
const Layer prelu{"PReLU(int num_parameters=1, float init=0.25)",
                  [](I num_parameters, double) -> ModulePtr { return std::make_shared<PReLU>(num_parameters); }};

class RReLU final : public UnaryModule {
 public:
  RReLU(double lower, double upper, bool inplace) : UnaryModule("RReLU"), lower_(lower), upper_(upper), inplace_(inplace) {}
  Tensor forward(T input) override {
    return inplace_ ? ops::rrelu_(input, lower_, upper_, training) : ops::rrelu(input, lower_, upper_, training);
  }

 private:
  double lower_, upper_;
  bool inplace_;
};
const Layer rrelu{"RReLU(float lower=0.125, float upper=0.3333333333333333, bool inplace=False)",
                  [](double lower, double upper, bool inplace) -> ModulePtr { return std::make_shared<RReLU>(lower, upper, inplace); }};

}  // namespace
}  // namespace memest::nn
