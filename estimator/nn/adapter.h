// Layers that something may be added to after the model was built, as peft replaces modules of a finished one.
#pragma once
#include <memory>

#include "nn/module.h"

namespace memest::nn {

/// What is added to a linear layer: its modules become the layer's children.
class LinearAdapter {
 public:
  virtual ~LinearAdapter() = default;
  /// The layer's result from its own; both arguments are handed over, as a Python frame holds them.
  virtual Tensor adapt(Tensor input, Tensor result) = 0;
};

/// A linear layer with a weight of [out_features, in_features].
class Adaptable {
 public:
  virtual ~Adaptable() = default;
  void set_adapter(std::shared_ptr<LinearAdapter> adapter) { adapter_ = std::move(adapter); }

 protected:
  Tensor adapted(T input, Tensor result) const { return adapter_ ? adapter_->adapt(input, std::move(result)) : result; }

 private:
  std::shared_ptr<LinearAdapter> adapter_;
};

/// An embedding whose output may be made to require grad (transformers' enable_input_require_grads: a forward hook on it).
class InputEmbedding {
 public:
  virtual ~InputEmbedding() = default;
  void require_grads() { requires_grads_ = true; }

 protected:
  Tensor hooked(Tensor output) const {
    if (requires_grads_ && runtime().grad_mode && !output.requires_grad()) output->requires_grad = true;
    return output;
  }

 private:
  bool requires_grads_ = false;
};

}  // namespace memest::nn
