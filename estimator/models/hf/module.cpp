#include "models/hf/module.h"

#include "base/text.h"

namespace memest::hf {

Conv2d::Conv2d(I in, I out, I kernel, I stride, I padding, bool bias, I groups)
    : Module("Conv2d"), stride_(stride), padding_(padding), groups_(groups) {
  new_parameter("weight", {out, in / groups, kernel, kernel});
  new_parameter("bias", {out}, bias);
}
X Conv2d::forward(const X& input) {
  return ops::conv2d(input, parameter(0), parameter(1), Dims{stride_, stride_}, Dims{padding_, padding_}, Dims{1, 1}, groups_);
}
Conv1d::Conv1d(I in, I out, I kernel, I stride, I padding, bool bias, I groups)
    : Module("Conv1d"), stride_(stride), padding_(padding), groups_(groups) {
  new_parameter("weight", {out, in / groups, kernel});
  new_parameter("bias", {out}, bias);
}
X Conv1d::forward(const X& input) {
  return ops::conv1d(input, parameter(0), parameter(1), Dims{stride_}, Dims{padding_}, Dims{1}, groups_);
}

namespace {

// transformers/activations.py
X gelu(X x) { return ops::gelu(std::move(x), "none"); }
X gelu_tanh(X x) { return ops::gelu(std::move(x), "tanh"); }
X gelu_new(X input) { return input.mul(0.5).mul(input.add(input.pow(3.0).mul(0.044715)).mul(0.79788).tanh().add(1.0)); }
X gelu_python(X input) { return input.mul(0.5).mul(aten("erf", {Tensor(input.div(1.41421))}).add(1.0)); }
X gelu_python_tanh(X input) { return gelu_new(std::move(input)); }
X gelu_fast(X input) { return input.mul(0.5).mul(input.mul(0.79788).mul(input.mul(0.044715).mul(input).add(1.0)).tanh().add(1.0)); }
X quick_gelu(X input) { return input.mul(input.mul(1.702).sigmoid()); }
X relu(X x) { return ops::relu(std::move(x)); }
X relu2(X input) {
  X relu_applied = ops::relu(std::move(input));
  X squared = relu_applied.pow(2);
  return squared;
}
X silu(X x) { return ops::silu(std::move(x)); }
X tanh(X x) { return std::move(x).tanh(); }
X sigmoid(X x) { return std::move(x).sigmoid(); }
X linear(X x) { return x; }
X relu6(X x) { return ops::hardtanh(std::move(x), 0, 6); }
X mish(X x) { return aten("mish", {Tensor(std::move(x))}); }
X hardswish(X x) { return aten("hardswish", {Tensor(std::move(x))}); }
X leaky_relu(X x) { return aten("leaky_relu", {Tensor(std::move(x))}); }
X sqrtsoftplus(X x) { return aten("softplus", {Tensor(std::move(x))}).sqrt(); }

struct Named {
  const char* name;
  const char* type;
  X (*f)(X);
};
constexpr Named kActivations[] = {{"gelu", "GELUActivation", gelu},
                                  {"gelu_accurate", "AccurateGELUActivation", gelu_new},
                                  {"gelu_fast", "FastGELUActivation", gelu_fast},
                                  {"gelu_new", "NewGELUActivation", gelu_new},
                                  {"gelu_python", "GELUActivation", gelu_python},
                                  {"gelu_python_tanh", "GELUTanh", gelu_python_tanh},
                                  {"gelu_pytorch_tanh", "GELUTanh", gelu_tanh},
                                  {"hardswish", "Hardswish", hardswish},
                                  {"leaky_relu", "LeakyReLU", leaky_relu},
                                  {"linear", "LinearActivation", linear},
                                  {"mish", "MishActivation", mish},
                                  {"quick_gelu", "QuickGELUActivation", quick_gelu},
                                  {"relu", "ReLU", relu},
                                  {"relu2", "ReLUSquaredActivation", relu2},
                                  {"relu6", "ReLU6", relu6},
                                  {"sigmoid", "Sigmoid", sigmoid},
                                  {"silu", "SiLUActivation", silu},
                                  {"sqrtsoftplus", "SqrtSoftplusActivation", sqrtsoftplus},
                                  {"swish", "SiLU", silu},
                                  {"tanh", "Tanh", tanh}};

const Named& named(const std::string& name) {
  std::vector<std::string> names;
  for (auto& a : kActivations) {
    if (name == a.name) return a;
    names.emplace_back(a.name);
  }
  throw Error("unknown activation '" + name.substr(0, 60) + "'", did_you_mean(name, names));
}

}  // namespace

Activation::Activation(const std::string& name) : Module(named(name).type), f_(named(name).f) {}

}  // namespace memest::hf
