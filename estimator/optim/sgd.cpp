// torch/optim/sgd.py of 2.15.
#include "optim/optimizer.h"

namespace memest::optim {
namespace {

struct Options {
  double momentum, dampening, weight_decay;
  bool nesterov, maximize;
  Form form;
};
struct State {
  Tensor momentum_buffer;
};

class SGD final : public StatefulOptimizer<State> {
 public:
  SGD(ParameterGroups groups, Options o) : StatefulOptimizer(std::move(groups)), o_(o) {}
  bool unscales_itself() const override { return o_.form == Form::fused; }
  void load_state(bool mapped_to_device) override {
    Optimizer::load_state(mapped_to_device);
    if (o_.momentum == 0) return;
    for (auto& g : groups_)
      for (std::size_t i = 0; i < g.parameters.size(); ++i) states_[g.first + i].momentum_buffer = new_state(g.parameters[i]);
  }

 private:
  void init(T, State&) override {}  // a buffer is made inside the step
  void step(const ParameterGroup& g) override {
    std::vector<State*> states;
    const List params = init_group(g, states);
    const double decay = g.decays ? o_.weight_decay : 0;
    if (params.empty()) return;
    if (o_.form == Form::foreach)
      multi(params, states, decay);
    else if (o_.form == Form::fused)
      fused(params, states);
    else
      single(params, states, decay);
  }

  void single(const List& params, const std::vector<State*>& states, double decay) {
    Tensor grad;
    for (std::size_t i = 0; i < params.size(); ++i) {
      T param = params[i];
      grad = o_.maximize ? fresh("aten::neg", param->grad) : param->grad;
      if (decay != 0) grad = fresh("aten::add", grad, param);
      if (o_.momentum != 0) {
        Tensor& buf = states[i]->momentum_buffer;
        if (!buf) buf = clone_state(grad);
        grad = o_.nesterov ? fresh("aten::add", grad, buf) : buf;
      }
    }
  }

  void multi(const List& params, const std::vector<State*>& states, double decay) {
    List device_grads;
    for (auto& group : by_dtype(params)) {
      const List device_params = picked(params, group);
      device_grads = gradients_of(device_params);
      if (o_.maximize) device_grads = foreach ("aten::_foreach_neg", device_grads);
      if (decay != 0 && !o_.maximize) device_grads = foreach ("aten::_foreach_add", device_grads, device_params);
      if (o_.momentum == 0) continue;
      List bufs;
      for (std::size_t k = 0; k < group.size(); ++k) {
        Tensor& buf = states[group[k]]->momentum_buffer;
        if (!buf) buf = clone_state(device_grads[k]);
        bufs.push_back(buf);
      }
      if (!o_.nesterov) device_grads = bufs;  // nesterov adds the buffers to the gradients in place
    }
  }

  void fused(const List& params, const std::vector<State*>& states) {
    if (o_.momentum == 0) return;
    for (std::size_t i = 0; i < params.size(); ++i)  // torch.empty_like(g) of all, before the groups
      if (!states[i]->momentum_buffer) states[i]->momentum_buffer = new_state(params[i]->grad);
  }

  Options o_;
};

const OptimizerKind sgd{
    "sgd(float lr=0.001, float momentum=0, float dampening=0, float weight_decay=0, bool nesterov=False, *, bool maximize=False, bool? "
    "foreach=None, "
    "bool differentiable=False, bool? fused=None)",
    "momentum: 1 × parameter",
    [](double lr, double momentum, double dampening, double weight_decay, bool nesterov, bool maximize, std::optional<bool> foreach,
       bool differentiable, std::optional<bool> fused) -> MakeOptimizer {
      check_argument(lr >= 0, "learning rate", lr);
      check_argument(momentum >= 0, "momentum value", momentum);
      check_argument(weight_decay >= 0, "weight_decay value", weight_decay);
      if (nesterov && (momentum <= 0 || dampening != 0))
        throw Error("--optimizer: Nesterov momentum requires a momentum and zero dampening");
      const Options o{momentum, dampening, weight_decay, nesterov, maximize, form_of(foreach, fused, differentiable)};
      return [o](ParameterGroups groups) { return std::make_unique<SGD>(std::move(groups), o); };
    }};

}  // namespace
}  // namespace memest::optim
