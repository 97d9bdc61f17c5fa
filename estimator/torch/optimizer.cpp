#include "torch/optimizer.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <set>

namespace memest::plugin {
namespace {

/// Of LibTorch's C++ library, which updates one parameter after another.
class TorchOptimizer final : public Optimizer {
 public:
  explicit TorchOptimizer(std::unique_ptr<torch::optim::Optimizer> inner) : inner_(std::move(inner)) {}
  void step() override { inner_->step(); }
  std::vector<at::Tensor> state() override {
    std::vector<at::Tensor> tensors;
    for (auto& [key, state] : inner_->state()) {
      using namespace torch::optim;
      if (auto* sgd = dynamic_cast<SGDParamState*>(state.get())) tensors.push_back(sgd->momentum_buffer());
      if (auto* adam = dynamic_cast<AdamParamState*>(state.get()))
        for (const at::Tensor& x : {adam->exp_avg(), adam->exp_avg_sq(), adam->max_exp_avg_sq()}) tensors.push_back(x);
      if (auto* adamw = dynamic_cast<AdamWParamState*>(state.get()))
        for (const at::Tensor& x : {adamw->exp_avg(), adamw->exp_avg_sq(), adamw->max_exp_avg_sq()}) tensors.push_back(x);
      if (auto* rms = dynamic_cast<RMSpropParamState*>(state.get()))
        for (const at::Tensor& x : {rms->square_avg(), rms->momentum_buffer(), rms->grad_avg()}) tensors.push_back(x);
      if (auto* ada = dynamic_cast<AdagradParamState*>(state.get())) tensors.push_back(ada->sum());
    }
    return tensors;
  }

 private:
  std::unique_ptr<torch::optim::Optimizer> inner_;
};

}  // namespace

std::unique_ptr<Optimizer> torch_optimizer(const Json& j, const std::vector<at::Tensor>& parameters) {
  const std::string name = j.at("name");
  if (name == "none") return nullptr;
  std::set<std::string> used{"name", "foreach"};
  auto number = [&](const char* key, double otherwise) {
    used.insert(key);
    return j.value(key, otherwise);
  };
  auto flag = [&](const char* key) {
    used.insert(key);
    return j.value(key, false);
  };
  std::unique_ptr<torch::optim::Optimizer> made;
  using namespace torch::optim;
  if (name == "sgd")
    made = std::make_unique<SGD>(parameters, SGDOptions(number("lr", 1e-3))
                                                 .momentum(number("momentum", 0))
                                                 .dampening(number("dampening", 0))
                                                 .weight_decay(number("weight_decay", 0))
                                                 .nesterov(flag("nesterov")));
  if (name == "adam")
    made = std::make_unique<Adam>(parameters,
                                  AdamOptions(number("lr", 1e-3)).weight_decay(number("weight_decay", 0)).amsgrad(flag("amsgrad")));
  if (name == "adamw")
    made = std::make_unique<AdamW>(parameters,
                                   AdamWOptions(number("lr", 1e-3)).weight_decay(number("weight_decay", 1e-2)).amsgrad(flag("amsgrad")));
  if (name == "rmsprop")
    made = std::make_unique<RMSprop>(parameters, RMSpropOptions(number("lr", 1e-2))
                                                     .momentum(number("momentum", 0))
                                                     .weight_decay(number("weight_decay", 0))
                                                     .centered(flag("centered")));
  if (name == "adagrad")
    made = std::make_unique<Adagrad>(parameters, AdagradOptions(number("lr", 1e-2)).weight_decay(number("weight_decay", 0)));
  if (!made)
    throw BadRequest{"LibTorch's C++ library has no optimizer '" + name + "'", "a probe takes sgd, adam, adamw, rmsprop, adagrad or none"};
  for (auto& [key, value] : j.items())
    if (!used.contains(key)) throw BadRequest{"LibTorch's " + name + " has no option '" + key + "'", ""};
  return std::make_unique<TorchOptimizer>(std::move(made));
}

}  // namespace memest::plugin
