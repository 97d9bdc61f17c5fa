// Layers that something may be added to after the model was built, as peft replaces modules of a finished one.
#pragma once
#include <memory>
#include <optional>

#include "nn/module.h"
#include "ops/matmul.h"

namespace memest::nn {

/// What is added to a linear layer: its modules become the layer's children.
class LinearAdapter {
 public:
  virtual ~LinearAdapter() = default;
  /// The layer's result from its own; both arguments are handed over, as a Python frame holds them.
  virtual Tensor adapt(Tensor input, Tensor result) = 0;
};

/// A linear layer's weight that is stored in another form than it was trained in, and the layer's forward with it.
class QuantizedWeight {
 public:
  virtual ~QuantizedWeight() = default;
  /// Moves the weight from the host: it becomes what is stored. `pretrained`: as from_pretrained does, not Module.to. `transposed`: a
  /// weight of [in, out], turned round on the device.
  virtual void load(T weight, bool pretrained, bool transposed) = 0;
  virtual Tensor linear(T input, T weight, T bias) = 0;
  /// On the device beside the weight itself: scales, code books.
  virtual Bytes state_bytes() const = 0;
  /// What the weight on the host counts for when transformers warms the allocator up, in halves of a byte.
  virtual std::int64_t half_bytes(T weight) const = 0;
  /// The type that peft makes adapters in (BaseTunerLayer._get_base_layer_device_and_dtype); none: float32.
  virtual std::optional<DType> adapter_dtype() const = 0;
  /// peft's layer around it: as around any other, one that changes types outside autocast only, or one that clones the result first too.
  enum class Adapter { plain, converts, clones };
  virtual Adapter adapter() const = 0;
};

/// A linear layer with a weight of [out_features, in_features].
class Adaptable {
 public:
  virtual ~Adaptable() = default;
  void set_adapter(std::shared_ptr<LinearAdapter> adapter) { adapter_ = std::move(adapter); }
  void set_quantized(std::shared_ptr<QuantizedWeight> weight) { quantized_ = std::move(weight); }
  QuantizedWeight* quantized() const { return quantized_.get(); }
  /// Its weight is [in_features, out_features] (Conv1D of transformers).
  virtual bool transposed() const { return false; }
  bool adapters_follow = false;  ///< the adapter's modules are moved after the whole model, not with the layer

 protected:
  Tensor adapted(T input, Tensor result) const { return adapter_ ? adapter_->adapt(input, std::move(result)) : result; }
  /// torch.nn.functional.linear, or what the weight's form has in its place.
  Tensor product(T input, T weight, T bias) const {
    return quantized_ ? quantized_->linear(input, weight, bias) : ops::linear(input, weight, bias);
  }

 private:
  std::shared_ptr<LinearAdapter> adapter_;
  std::shared_ptr<QuantizedWeight> quantized_;
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
