#include "models/diffusers/model.h"

#include "ops/loss.h"

namespace memest::diffusers {
namespace {

std::vector<const ModelClass*>& registered() {
  static std::vector<const ModelClass*> classes;
  return classes;
}

}  // namespace

ModelClass::ModelClass(const char* class_name, NetworkPtr (*make_network)(const Config&, const Options&), bool has_tasks)
    : name(class_name), make(make_network), tasks(has_tasks) {
  registered().push_back(this);
}
const std::vector<const ModelClass*>& all_classes() { return registered(); }

std::vector<nn::InputSpec> Network::inputs() const {
  std::vector<nn::InputSpec> list = arguments();
  if (options_.training)
    if (auto shape = target(); !shape.empty()) list.push_back({"target", shape, DType::float32});
  return list;
}

nn::Outcome Network::run(const Tensors& batch) {
  if (!runs()) return {None{}, {}};
  const std::size_t count = arguments().size();
  const std::vector<X> given(batch.begin(), batch.begin() + std::ptrdiff_t(count));
  X pred;
  {
    Entered scope(*this);
    pred = sample(given);
  }
  X loss;
  if (options_.training) {
    const X target = batch.size() > count ? X(batch.back()) : given[0];
    X input = pred.to_float();
    loss = ops::mse_loss(input, target.to_float(), 1);
  }
  return {Value(Tensor(pred)), loss};
}

Tensors called(bool enabled, Region call, const Tensors& inputs) {
  return enabled && runtime().grad_mode ? checkpoint(std::move(call), inputs) : call(inputs);
}

std::vector<std::pair<std::string, I>> image_sizes(I pixels) { return {{"height", pixels}, {"width", pixels}}; }

}  // namespace memest::diffusers
