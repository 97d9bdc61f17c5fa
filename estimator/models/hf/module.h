// Modules whose forward has C++ types, and torch.nn's own layers in that form.
#pragma once
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/config.h"
#include "models/hf/python.h"
#include "nn/adapter.h"
#include "nn/module.h"

namespace memest::hf {

class Base : public nn::Module {
 public:
  using nn::Module::Module;

 protected:
  /// Makes and registers a child, in the order of the original's __init__.
  template <class M, class... A>
  M& child(std::string name, A&&... arguments) {
    return *register_module(std::move(name), std::make_shared<M>(std::forward<A>(arguments)...));
  }
  Value forward(const Values&, const KeywordArguments&) final { throw Error(type() + " is called from C++ only"); }
};

/// Drops a tensor or tensors; other arguments hold none.
template <class V>
void let_go(V& argument) {
  if constexpr (std::is_base_of_v<Tensor, V>)
    argument.reset();
  else
    memest::detail::drop(argument);
}

/// A module with `forward(...)`: calling it enters the trace, holds the arguments until the forward returns, and drops them then, as
/// Python's `module(*args)` does.
template <class Self>
class Module : public Base {
 public:
  using Base::Base;
  template <class... A>
  auto operator()(A... arguments) {
    Entered scope(*this);
    auto result = static_cast<Self*>(this)->forward(arguments...);
    (let_go(arguments), ...);
    return result;
  }
};

/// nn.ModuleList of one kind, made by `make(index)`.
template <class M>
class Layers {
 public:
  template <class F>
  Layers(nn::Module& owner, std::string name, I count, F make) {
    auto list = owner.register_module(std::move(name), std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
    for (I i = 0; i < count; ++i) {
      layers_.push_back(make(i));
      list->append(layers_.back());
    }
  }
  auto begin() const { return layers_.begin(); }
  auto end() const { return layers_.end(); }
  I size() const { return I(layers_.size()); }
  M& operator[](I i) const { return *layers_[std::size_t(i)]; }

 private:
  std::vector<std::shared_ptr<M>> layers_;
};

// ---- torch.nn ----------------------------------------------------------------------------------------------------------

class Linear final : public Module<Linear>, public nn::Adaptable {
 public:
  Linear(I in, I out, bool bias = true) : Module("Linear") {
    new_parameter("weight", {out, in});
    new_parameter("bias", {out}, bias);
  }
  X forward(const X& input) { return adapted(input, product(input, parameter(0), parameter(1))); }
  T weight() const { return parameter(0); }
  T bias() const { return parameter(1); }
};

class Embedding final : public Module<Embedding>, public nn::InputEmbedding {
 public:
  Embedding(I count, I width, std::optional<I> padding_idx = {}) : Module("Embedding"), padding_idx_(padding_idx.value_or(-1)) {
    new_parameter("weight", {count, width});
  }
  X forward(const X& indices) { return hooked(ops::embedding(parameter(0), indices, padding_idx_, false, false)); }
  T weight() const { return parameter(0); }

 private:
  I padding_idx_;
};

class LayerNorm final : public Module<LayerNorm> {
 public:
  explicit LayerNorm(I width, double eps = 1e-5, bool affine = true, bool bias = true) : Module("LayerNorm"), width_(width), eps_(eps) {
    new_parameter("weight", {width}, affine);
    new_parameter("bias", {width}, affine && bias);
  }
  X forward(const X& input) { return ops::layer_norm(input, Dims{width_}, parameter(0), parameter(1), eps_, true); }

 private:
  I width_;
  double eps_;
};

class Dropout final : public Module<Dropout> {
 public:
  explicit Dropout(double p) : Module("Dropout"), p_(p) {}
  X forward(const X& input) { return ops::dropout(input, p_, training); }

 private:
  double p_;
};

class Conv2d final : public Module<Conv2d> {
 public:
  Conv2d(I in, I out, I kernel, I stride, I padding = 0, bool bias = true, I groups = 1);
  X forward(const X& input);

 private:
  I stride_, padding_, groups_;
};
class Conv1d final : public Module<Conv1d> {
 public:
  Conv1d(I in, I out, I kernel, I stride = 1, I padding = 0, bool bias = true, I groups = 1);
  X forward(const X& input);
  T weight() const { return parameter(0); }
  T bias() const { return parameter(1); }

 private:
  I stride_, padding_, groups_;
};

/// ACT2FN[name] (transformers/activations.py): a module of the model, as there. Throws Error for a name it does not know.
class Activation : public Module<Activation> {
 public:
  explicit Activation(const std::string& name);
  X forward(const X& x) { return f_(x); }

 private:
  X (*f_)(X);
};

/// A module of one tensor whose kind the configuration picks: norms, MLPs.
class Unary : public Base {
 public:
  using Base::Base;
  X operator()(X input) {
    Entered scope(*this);
    X result = forward(input);
    input.reset();
    return result;
  }

 protected:
  virtual X forward(X input) = 0;
  using Base::forward;
};
using UnaryPtr = std::shared_ptr<Unary>;

}  // namespace memest::hf
