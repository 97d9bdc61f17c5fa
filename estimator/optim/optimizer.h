// torch.optim: what a step allocates, statement by statement (torch/optim/*.py of 2.15).
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fake/autograd.h"
#include "nn/layer.h"

namespace memest::optim {

/// What GradScaler hands to an optimizer that unscales inside its kernel.
struct ScalerTensors {
  Tensor scale, found_inf;
};

class Optimizer {
 public:
  explicit Optimizer(Tensors parameters) : parameters_(std::move(parameters)) {}
  virtual ~Optimizer() = default;
  virtual void step() = 0;
  /// Takes the gradients still scaled (fused=True); step() then finds the scaler's tensors in `scaler`.
  virtual bool unscales_itself() const { return false; }
  void zero_grad(bool set_to_none);
  const Tensors& parameters() const { return parameters_; }
  /// Bytes of state tensors on the device: elements × item size, unrounded.
  Bytes state_bytes() const { return state_bytes_; }

  ScalerTensors scaler;

 protected:
  /// A state tensor: counted, of category optimizer_state.
  Tensor new_state(T like);
  Tensor new_state(const Dims& sizes, DType dtype);
  void count_state(T state);
  /// Parameters that have a gradient.
  Tensors with_gradient() const;

  Tensors parameters_;

 private:
  Bytes state_bytes_ = 0;
};

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(Tensors parameters)>;

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

/// Which of torch.optim's forms runs: fused, foreach (the default on CUDA) or the for-loop. Throws Error where both are asked for.
enum class Form { foreach, for_loop, fused };
Form form_of(std::optional<bool> foreach, std::optional<bool> fused);

// ---- lists, as torch._foreach_* makes and Python drops them
Tensors foreach_new(const char* op, const Tensors& like);
Tensors gradients_of(const Tensors& parameters);
/// Optimizer._group_tensors_by_device_and_dtype: positions in the list, a group for each dtype in order of appearance.
std::vector<std::vector<std::size_t>> by_dtype(const Tensors& parameters);
Tensors picked(const Tensors& list, const std::vector<std::size_t>& positions);

}  // namespace memest::optim
