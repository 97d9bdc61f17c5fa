// torch.nn: Linear, Identity, Flatten, Unflatten, Dropout (torch/nn/modules/{linear,flatten,dropout}.py).
#include "nn/layer.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

class Linear final : public UnaryModule {
 public:
  Linear(I in_features, I out_features, bool bias) : UnaryModule("Linear") {
    new_parameter("weight", {out_features, in_features});
    new_parameter("bias", {out_features}, bias);
  }
  Tensor forward(T input) override { return ops::linear(input, parameter(0), parameter(1)); }
};
const Layer linear{"Linear(int in_features, int out_features, bool bias=True)", [](I in_features, I out_features, bool bias) -> ModulePtr {
                     return std::make_shared<Linear>(in_features, out_features, bias);
                   }};

struct Identity final : UnaryModule {
  Identity() : UnaryModule("Identity") {}
  Tensor forward(T input) override { return input; }
};
const Layer identity{"Identity()", []() -> ModulePtr { return std::make_shared<Identity>(); }};

class Flatten final : public UnaryModule {
 public:
  Flatten(I start_dim, I end_dim) : UnaryModule("Flatten"), start_(start_dim), end_(end_dim) {}
  Tensor forward(T input) override { return ops::flatten(input, start_, end_); }

 private:
  I start_, end_;
};
const Layer flatten{"Flatten(int start_dim=1, int end_dim=-1)",
                    [](I start_dim, I end_dim) -> ModulePtr { return std::make_shared<Flatten>(start_dim, end_dim); }};

class Unflatten final : public UnaryModule {
 public:
  Unflatten(I dim, const Dims& sizes) : UnaryModule("Unflatten"), dim_(dim), sizes_(sizes) {}
  Tensor forward(T input) override { return Unbox<Tensor>::from(call_op("aten::unflatten", {input, dim_, list_of(sizes_)}, {})); }

 private:
  I dim_;
  Dims sizes_;
};
const Layer unflatten{"Unflatten(int dim, int[] unflattened_size)",
                      [](I dim, const Dims& sizes) -> ModulePtr { return std::make_shared<Unflatten>(dim, sizes); }};

class Dropout final : public UnaryModule {
 public:
  Dropout(double p, bool inplace) : UnaryModule("Dropout"), p_(p), inplace_(inplace) {}
  Tensor forward(T input) override {
    if (inplace_) return Unbox<Tensor>::from(call_op("aten::dropout_", {input, p_, training}, {}));
    return ops::dropout(input, p_, training);
  }

 private:
  double p_;
  bool inplace_;
};
const Layer dropout{"Dropout(float p=0.5, bool inplace=False)",
                    [](double p, bool inplace) -> ModulePtr { return std::make_shared<Dropout>(p, inplace); }};

/// x + body(x).
class Residual final : public UnaryModule {
 public:
  explicit Residual(const std::vector<ModulePtr>& layers)
      : UnaryModule("Residual"), body_(register_module("body", std::make_shared<Sequential>(layers))) {}
  Tensor forward(T input) override { return ops::add(input, (*body_)(input), 1); }

 private:
  std::shared_ptr<Sequential> body_;
};
const Container sequential{"Sequential", "runs its layers one after the other",
                           [](const std::vector<ModulePtr>& layers) -> ModulePtr { return std::make_shared<Sequential>(layers); }};
const Container module_list{"ModuleList", "holds modules that a graph calls by path",
                            [](const std::vector<ModulePtr>& layers) -> ModulePtr { return std::make_shared<ModuleList>(layers); }};
const Container residual{"Residual", "x + layers(x)",
                         [](const std::vector<ModulePtr>& layers) -> ModulePtr { return std::make_shared<Residual>(layers); }};

}  // namespace
}  // namespace memest::nn
