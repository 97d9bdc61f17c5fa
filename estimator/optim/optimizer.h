// torch.optim: what a step allocates, statement by statement (torch/optim/*.py of 2.15).
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fake/autograd.h"
#include "nn/layer.h"
#include "optim/tensors.h"

namespace memest::optim {

/// One of an optimizer's param_groups. Each has a step of its own, so temporaries of two groups never meet.
struct ParameterGroup {
  Tensors parameters;
  bool decays = true;     ///< false: weight_decay=0, as for biases and norms
  std::size_t first = 0;  ///< position of its first parameter among all; filled in by Optimizer
};
using ParameterGroups = std::vector<ParameterGroup>;

/// What GradScaler hands to an optimizer that unscales inside its kernel.
struct ScalerTensors {
  Tensor grad_scale, found_inf;
};

class Optimizer {
 public:
  explicit Optimizer(ParameterGroups groups);
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// optimizer.step(): each group in turn.
  virtual void step();
  /// optimizer.step(closure), where the optimizer needs one (LBFGS): it runs forward and backward again.
  virtual bool needs_closure() const { return false; }
  virtual void step(const std::function<void()>& closure);
  /// Takes the gradients still scaled (fused=True); step() then finds the scaler's tensors in `scaler`.
  virtual bool unscales_itself() const { return false; }
  virtual void zero_grad(bool set_to_none);
  /// load_state_dict: the states that a step would create, before the first forward. A checkpoint that torch.load mapped to the device
  /// brings the counters there too, and they stay.
  virtual void load_state(bool mapped_to_device);
  const ParameterGroups& groups() const { return groups_; }
  Tensors parameters() const;
  /// param_group["params"] = ...: other tensors of each group, at most as many, before any has a state.
  void replace_parameters(std::vector<Tensors> of_groups);
  /// Bytes of state tensors on the device: elements × item size, unrounded.
  Bytes state_bytes() const { return state_bytes_; }
  /// Bytes of state that lives on the host (paged or offloaded optimizers).
  Bytes host_state_bytes() const { return host_state_bytes_; }

  ScalerTensors scaler;

 protected:
  virtual void step(const ParameterGroup&) {}
  /// A state tensor: zeros_like(like, preserve_format); counted, of category optimizer_state.
  Tensor new_state(T like);
  Tensor new_state(T like, DType dtype);
  Tensor new_state(const Dims& sizes, DType dtype);
  /// A clone as state (SGD's first momentum).
  Tensor clone_state(T gradient);
  /// A counter as torch.optim keeps it: a float32 scalar, on the device where the optimizer is fused or capturable.
  Tensor new_counter(bool on_device);
  /// Counts a tensor that became state.
  void count_state(T state);
  void forget_state(T state);

  ParameterGroups groups_;
  std::size_t count_ = 0;  ///< parameters of all groups

 private:
  bool counters_on_device_ = false;
  Bytes state_bytes_ = 0, host_state_bytes_ = 0;
};

/// The state of each parameter, made at its first step; and the lists of a group's step: parameters that have a gradient.
template <class State>
class StatefulOptimizer : public Optimizer {
 public:
  explicit StatefulOptimizer(ParameterGroups groups) : Optimizer(std::move(groups)), states_(count_) {}
  void load_state(bool mapped_to_device) override {
    Optimizer::load_state(mapped_to_device);
    std::vector<State> loaded(count_);
    for (auto& g : groups_)
      for (std::size_t i = 0; i < g.parameters.size(); ++i) init(g.parameters[i], loaded[g.first + i]);
    states_ = std::move(loaded);  // what the constructor made goes
  }

 protected:
  /// Makes what the state lacks.
  virtual void init(T parameter, State& state) = 0;
  /// _init_group: parameters with a gradient, their states made where they are missing.
  List init_group(const ParameterGroup& g, std::vector<State*>& states) {
    List parameters;
    for (std::size_t i = 0; i < g.parameters.size(); ++i) {
      T p = g.parameters[i];
      if (!p->grad) continue;
      parameters.push_back(p);
      init(p, states_[g.first + i]);
      states.push_back(&states_[g.first + i]);
    }
    return parameters;
  }
  /// One state of each, at the given positions.
  static List list(const std::vector<State*>& states, const std::vector<std::size_t>& positions, Tensor State::*member) {
    List out;
    for (std::size_t i : positions) out.push_back(states[i]->*member);
    return out;
  }

  std::vector<State> states_;
};

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(ParameterGroups groups)>;

/// "adamw(float lr=0.001, ..., bool? foreach=None, bool? fused=None)": torch.optim's names in lower case and its own arguments.
class OptimizerRecord : public nn::Record {
 public:
  OptimizerRecord(const char* signature, const char* state);
  const char* state;  ///< what it keeps for each parameter, for lists
  virtual MakeOptimizer make(Values& arguments) const = 0;
};
template <class F>
class OptimizerKind final : public OptimizerRecord {
 public:
  OptimizerKind(const char* signature, const char* state_text, F f) : OptimizerRecord(signature, state_text), f_(std::move(f)) {}
  MakeOptimizer make(Values& arguments) const override { return nn::detail::CallableOf<F>::call(f_, arguments); }
  std::vector<std::pair<Kind, bool>> parameter_kinds() const override { return nn::detail::CallableOf<F>::kinds(); }

 private:
  F f_;
};

const std::vector<const OptimizerRecord*>& all_optimizers();
/// "adam", "sgd:momentum=0.9,nesterov=true"; throws Error with near names. "none" makes nothing.
MakeOptimizer parse_optimizer(const std::string& text);
/// The optimizer's own name in such a text.
std::string optimizer_name(const std::string& text);

/// Which of torch.optim's forms runs: fused, foreach (the default on CUDA) or the for-loop.
enum class Form { foreach, for_loop, fused };
/// Throws Error where both are asked for, or a differentiable step, which PyTorch refuses on leaves.
Form form_of(std::optional<bool> foreach, std::optional<bool> fused, bool differentiable);

/// Throws Error "Invalid <what>: <value>" as torch.optim's constructors do.
void check_argument(bool good, const char* what, double value);
void check_betas(const std::vector<double>& betas);

}  // namespace memest::optim
