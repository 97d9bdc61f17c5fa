// torch/optim/{sgd,adam}.py of 2.15.
#include "torch/cuda/foreach.h"

#include <ATen/ATen.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <unordered_map>

namespace memest::plugin {
namespace {
using List = std::vector<at::Tensor>;

/// Options of a request; those that nobody asked for are refused.
class Options {
 public:
  explicit Options(const Json& j) : j_(j) {}
  double number(const char* key, double otherwise) { return used_.insert(key), j_.value(key, otherwise); }
  bool flag(const char* key) { return used_.insert(key), j_.value(key, false); }
  void check() const {
    for (auto& [key, value] : j_.items())
      if (!used_.contains(key))
        throw BadRequest{"a probe of a GPU runs " + j_.at("name").get<std::string>() + " without the option '" + key + "'", ""};
  }

 private:
  const Json& j_;
  std::set<std::string> used_{"name", "foreach"};
};

/// Optimizer._group_tensors_by_device_and_dtype of the parameters that have a gradient.
template <class F>
void each_type(const List& parameters, const F& f) {
  std::map<c10::ScalarType, List> groups;
  for (const at::Tensor& p : parameters)
    if (p.grad().defined()) groups[p.scalar_type()].push_back(p);
  for (auto& [type, group] : groups) f(group);
}
List gradients_of(const List& parameters) {
  List list;
  for (const at::Tensor& p : parameters) list.push_back(p.grad());
  return list;
}

class Sgd final : public Optimizer {
 public:
  Sgd(const Json& j, const List& parameters) : parameters_(parameters) {
    Options o(j);
    lr_ = o.number("lr", 1e-3), momentum_ = o.number("momentum", 0), dampening_ = o.number("dampening", 0);
    decay_ = o.number("weight_decay", 0), nesterov_ = o.flag("nesterov"), fused_ = o.flag("fused");
    o.check();
  }

  void step() override {
    each_type(parameters_, [this](const List& params) { fused_ ? fused(params) : foreach (params); });
  }
  std::vector<at::Tensor> state() override {
    List list;
    for (auto& [key, buffer] : buffers_) list.push_back(buffer);
    return list;
  }

 private:
  void foreach (const List& params) {
    List grads = gradients_of(params);
    if (decay_ != 0) grads = at::_foreach_add(grads, params, decay_);
    if (momentum_ != 0) {
      List buffers;
      const bool first = !buffers_.contains(params[0].unsafeGetTensorImpl());
      for (std::size_t i = 0; i < params.size(); ++i) {
        at::Tensor& buffer = buffers_[params[i].unsafeGetTensorImpl()];
        if (!buffer.defined()) buffer = grads[i].detach().clone();
        buffers.push_back(buffer);
      }
      if (!first) {
        at::_foreach_mul_(buffers, momentum_);
        at::_foreach_add_(buffers, grads, 1 - dampening_);
      }
      if (nesterov_)
        at::_foreach_add_(grads, buffers, momentum_);
      else
        grads = buffers;
    }
    at::_foreach_add_(params, grads, -lr_);
  }
  void fused(const List& params) {
    List buffers;
    bool first = false;
    if (momentum_ != 0)
      for (const at::Tensor& p : params) {
        at::Tensor& buffer = buffers_[p.unsafeGetTensorImpl()];
        if (!buffer.defined()) buffer = at::empty_like(p.grad()), first = true;
        buffers.push_back(buffer);
      }
    at::_fused_sgd_(params, gradients_of(params), buffers, decay_, momentum_, lr_, dampening_, nesterov_, false, first);
  }

  List parameters_;
  std::unordered_map<const void*, at::Tensor> buffers_;
  double lr_, momentum_, dampening_, decay_;
  bool nesterov_, fused_;
};

class Adam final : public Optimizer {
 public:
  Adam(const Json& j, const List& parameters, bool decoupled) : parameters_(parameters), decoupled_(decoupled) {
    Options o(j);
    lr_ = o.number("lr", 1e-3), eps_ = o.number("eps", 1e-8), decay_ = o.number("weight_decay", decoupled ? 1e-2 : 0);
    amsgrad_ = o.flag("amsgrad"), fused_ = o.flag("fused");
    o.check();
  }

  void step() override {
    ++steps_;
    List roots;                              // exp_avg_sq_sqrt, which lives until the next group's is there
    for (const at::Tensor& p : parameters_)  // _init_group
      if (p.grad().defined()) init(p);
    each_type(parameters_, [&](const List& params) { fused_ ? fused(params) : foreach (params, roots); });
  }
  std::vector<at::Tensor> state() override {
    List list;
    for (auto& [key, s] : states_)
      for (const at::Tensor& x : {s.step, s.exp_avg, s.exp_avg_sq, s.max_exp_avg_sq})
        if (x.defined() && !x.is_cpu()) list.push_back(x);
    return list;
  }

 private:
  struct State {
    at::Tensor step, exp_avg, exp_avg_sq, max_exp_avg_sq;
  };
  static constexpr double kBeta1 = 0.9, kBeta2 = 0.999;

  void init(const at::Tensor& p) {
    State& s = states_[p.unsafeGetTensorImpl()];
    if (s.exp_avg.defined()) return;
    if (fused_) s.step = at::zeros({}, p.options().dtype(c10::kFloat));  // else it lies on the host
    s.exp_avg = at::zeros_like(p);
    s.exp_avg_sq = at::zeros_like(p);
    if (amsgrad_) s.max_exp_avg_sq = at::zeros_like(p);
  }
  List of(const List& params, at::Tensor State::*member) {
    List list;
    for (const at::Tensor& p : params) list.push_back(states_[p.unsafeGetTensorImpl()].*member);
    return list;
  }

  void foreach (const List& params, List & roots) {
    const List exp_avgs = of(params, &State::exp_avg), exp_avg_sqs = of(params, &State::exp_avg_sq);
    {
      List grads = gradients_of(params);
      if (decay_ != 0 && decoupled_) at::_foreach_mul_(params, 1 - lr_ * decay_);
      if (decay_ != 0 && !decoupled_) grads = at::_foreach_add(grads, params, decay_);
      at::_foreach_lerp_(exp_avgs, grads, 1 - kBeta1);
      at::_foreach_mul_(exp_avg_sqs, kBeta2);
      at::_foreach_addcmul_(exp_avg_sqs, grads, grads, 1 - kBeta2);
    }
    const std::vector<c10::Scalar> step_size(params.size(), -lr_ / (1 - std::pow(kBeta1, steps_)));
    const std::vector<c10::Scalar> root(params.size(), std::sqrt(1 - std::pow(kBeta2, steps_)));
    const List most = of(params, &State::max_exp_avg_sq);
    if (amsgrad_) at::_foreach_maximum_(most, exp_avg_sqs);
    roots = at::_foreach_sqrt(amsgrad_ ? most : exp_avg_sqs);
    at::_foreach_div_(roots, root);
    at::_foreach_add_(roots, eps_);
    at::_foreach_addcdiv_(params, exp_avgs, roots, step_size);
  }
  void fused(const List& params) {
    const List steps = of(params, &State::step);
    at::_foreach_add_(steps, 1);
    const auto kernel = [&](auto& op) {
      op(params, gradients_of(params), of(params, &State::exp_avg), of(params, &State::exp_avg_sq),
         amsgrad_ ? of(params, &State::max_exp_avg_sq) : List(), steps, lr_, kBeta1, kBeta2, decay_, eps_, amsgrad_, false, std::nullopt,
         std::nullopt);
    };
    using Kernel = void(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList, double, double,
                        double, double, double, bool, bool, const std::optional<at::Tensor>&, const std::optional<at::Tensor>&);
    kernel(decoupled_ ? static_cast<Kernel&>(at::_fused_adamw_) : static_cast<Kernel&>(at::_fused_adam_));
  }

  List parameters_;
  bool decoupled_, amsgrad_, fused_;
  double lr_, eps_, decay_;
  int steps_ = 0;
  std::unordered_map<const void*, State> states_;
};

}  // namespace

std::unique_ptr<Optimizer> foreach_optimizer(const Json& j, const std::vector<at::Tensor>& parameters) {
  const std::string name = j.at("name");
  if (!j.value("foreach", true) && !j.value("fused", false)) return torch_optimizer(j, parameters);
  if (name == "sgd") return std::make_unique<Sgd>(j, parameters);
  if (name == "adam" || name == "adamw") return std::make_unique<Adam>(j, parameters, name == "adamw");
  if (name == "none") return nullptr;
  throw BadRequest{"a probe of a GPU has no optimizer '" + name + "'", "it takes sgd, adam, adamw or none"};
}

}  // namespace memest::plugin
