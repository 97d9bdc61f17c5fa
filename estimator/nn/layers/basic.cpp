// torch.nn: Linear, Bilinear, Identity, Flatten, Unflatten, Dropout (torch/nn/modules/{linear,flatten,dropout}.py).
#include "nn/adapter.h"
#include "nn/layer.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

class Linear final : public UnaryModule, public Adaptable {
 public:
  Linear(I in_features, I out_features, bool bias) : UnaryModule("Linear") {
    new_parameter("weight", {out_features, in_features});
    new_parameter("bias", {out_features}, bias);
  }
  Tensor forward(T input) override { return adapted(input, product(input, parameter(0), parameter(1))); }
};
const Layer linear{"Linear(int in_features, int out_features, bool bias=True)", [](I in_features, I out_features, bool bias) -> ModulePtr {
                     return std::make_shared<Linear>(in_features, out_features, bias);
                   }};

class Bilinear final : public Module {
 public:
  Bilinear(I in1, I in2, I out, bool bias) : Module("Bilinear") {
    if (in1 < 1) throw Error("in1_features must be > 0, but got " + std::to_string(in1));
    new_parameter("weight", {out, in1, in2});
    new_parameter("bias", {out}, bias);
  }

 protected:
  Value forward(const Values& arguments, const KeywordArguments& keywords) override {
    Values inputs = arguments;
    for (auto& [name, v] : keywords) inputs.push_back(v);
    if (inputs.size() != 2) throw Error("Bilinear takes two inputs, " + std::to_string(inputs.size()) + " were given");
    return call_op("aten::bilinear", {inputs[0], inputs[1], to_value(parameter(0)), to_value(parameter(1))}, {});
  }
};
const Layer bilinear{"Bilinear(int in1_features, int in2_features, int out_features, bool bias=True)",
                     [](I in1, I in2, I out, bool bias) -> ModulePtr { return std::make_shared<Bilinear>(in1, in2, out, bias); }};

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

/// ParameterList and ParameterDict: tensors that a graph reads by path ("scales.0").
class Parameters final : public Module {
 public:
  explicit Parameters(const char* type) : Module(type) {}
  void add(std::string name, const Value& sizes) { new_parameter(std::move(name), Unbox<Dims>::from(sizes)); }

 protected:
  Value forward(const Values&, const KeywordArguments&) override {
    throw Error(type() + " should not be called.", "read its parameters by path, as \"scales.0\"");
  }
};
const Layer parameter_list{"ParameterList(Any values=None)", [](const Value& values) -> ModulePtr {
                             auto made = std::make_shared<Parameters>("ParameterList");
                             auto* list = std::get_if<std::shared_ptr<List>>(&values);
                             if (!list && !is_none(values)) throw Error("ParameterList takes a list of sizes, found " + describe(values));
                             for (std::size_t i = 0; list && i < (*list)->items.size(); ++i)
                               made->add(std::to_string(i), (*list)->items[i]);
                             return made;
                           }};
const Layer parameter_dict{"ParameterDict(Any parameters=None)", [](const Value& parameters) -> ModulePtr {
                             auto made = std::make_shared<Parameters>("ParameterDict");
                             auto* dict = std::get_if<std::shared_ptr<Dict>>(&parameters);
                             if (!dict && !is_none(parameters))
                               throw Error("ParameterDict takes a dictionary of sizes, found " + describe(parameters));
                             if (dict)
                               for (auto& [name, sizes] : (*dict)->items) made->add(name, sizes);
                             return made;
                           }};

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
const Container module_dict{
    "ModuleDict", "holds modules that a graph calls by path",
    [](const std::vector<ModulePtr>& layers) -> ModulePtr { return std::make_shared<ModuleList>(layers, "ModuleDict"); }};
const Container residual{"Residual", "x + layers(x)",
                         [](const std::vector<ModulePtr>& layers) -> ModulePtr { return std::make_shared<Residual>(layers); }};

}  // namespace
}  // namespace memest::nn
