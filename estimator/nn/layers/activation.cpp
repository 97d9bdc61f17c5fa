// torch.nn activations (torch/nn/modules/activation.py): each is the op of its name, in place where asked.
#include "nn/layer.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

/// A layer that is one call.
template <class F>
class Calls final : public UnaryModule {
 public:
  Calls(const char* type, F f) : UnaryModule(type), f_(std::move(f)) {}
  Tensor forward(T input) override { return f_(input); }

 private:
  F f_;
};
template <class F>
ModulePtr calls(const char* type, F f) {
  return std::make_shared<Calls<F>>(type, std::move(f));
}

const Layer relu{"ReLU(bool inplace=False)",
                 [](bool inplace) { return calls("ReLU", [inplace](T x) { return inplace ? ops::relu_(x) : ops::relu(x); }); }};
const Layer relu6{"ReLU6(bool inplace=False)", [](bool inplace) {
                    return calls("ReLU6", [inplace](T x) { return inplace ? ops::hardtanh_(x, 0, 6) : ops::hardtanh(x, 0, 6); });
                  }};
const Layer silu{"SiLU(bool inplace=False)",
                 [](bool inplace) { return calls("SiLU", [inplace](T x) { return inplace ? ops::silu_(x) : ops::silu(x); }); }};
const Layer gelu{"GELU(str approximate='none')",
                 [](const std::string& approximate) { return calls("GELU", [approximate](T x) { return ops::gelu(x, approximate); }); }};
const Layer sigmoid{"Sigmoid()", [] { return calls("Sigmoid", [](T x) { return ops::sigmoid(x); }); }};
const Layer tanh{"Tanh()", [] { return calls("Tanh", [](T x) { return ops::tanh(x); }); }};

}  // namespace
}  // namespace memest::nn
