// torch.nn.LinearCrossEntropyLoss (torch/nn/modules/loss.py, functional.py linear_cross_entropy of 2.15) without chunking (options=None):
// a linear layer whose result is the logits, and their cross entropy.
#include "nn/layer.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

class LinearCrossEntropyLoss final : public Module {
 public:
  LinearCrossEntropyLoss(I in_features, I classes, Dims out_features, bool bias, KeywordArguments options, T weight)
      : Module("LinearCrossEntropyLoss"), in_features_(in_features), out_features_(std::move(out_features)), options_(std::move(options)) {
    shape_ = Dims{classes} + out_features_;
    if (weight) register_buffer("weight", weight);
    linear_ =
        register_module("linear", make_layer("Linear", {{"in_features", in_features}, {"out_features", shape_.numel()}, {"bias", bias}}));
  }

 protected:
  Value forward(const Values& arguments, const KeywordArguments& keywords) override {
    if (arguments.size() != 2 || !keywords.empty()) throw Error("LinearCrossEntropyLoss takes an input and a target");
    const Tensor input = Unbox<Tensor>::from(arguments[0]), bias = linear_->own_parameters()[1].second;
    const Tensor linear_weight = ops::reshape(linear_->own_parameters()[0].second, shape_ + Dims{in_features_});
    const Tensor linear_bias = bias ? ops::reshape(bias, shape_) : Tensor();
    Tensor logits = ops::linear(input, ops::reshape(linear_weight, {-1, in_features_}), bias ? ops::reshape(linear_bias, {-1}) : Tensor());
    logits = ops::reshape(logits, input.sizes().slice(0, input.dim() - 1) + shape_);
    KeywordArguments all = options_;
    for (auto& [name, buffer] : own_buffers()) all.emplace_back(name, buffer);
    return call_function("cross_entropy", {logits, arguments[1]}, all);
  }

 private:
  I in_features_;
  Dims out_features_, shape_;
  KeywordArguments options_;
  ModulePtr linear_;
};
const Layer linear_cross_entropy{
    "LinearCrossEntropyLoss(int in_features, int num_classes, *, int[] out_features=[], bool bias=False, str reduction='mean', Tensor? "
    "weight=None, int? ignore_index=None, float label_smoothing=0.0)",
    [](I in_features, I classes, const Dims& out_features, bool bias, const std::string& reduction, T weight, std::optional<I> ignore_index,
       double label_smoothing) -> ModulePtr {
      return std::make_shared<LinearCrossEntropyLoss>(
          in_features, classes, out_features, bias,
          KeywordArguments{{"ignore_index", ignore_index.value_or(-100)}, {"reduction", reduction}, {"label_smoothing", label_smoothing}},
          weight);
    }};

}  // namespace
}  // namespace memest::nn
