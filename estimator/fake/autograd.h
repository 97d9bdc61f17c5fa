// Autograd: nodes with an explicit list of saved tensors, and the engine that runs them in PyTorch's order.
// Sources: torch/csrc/autograd/{function.h,engine.cpp,input_buffer.cpp,saved_variable.cpp,custom_function.cpp},
// functions/accumulate_grad.h, functions/tensor.cpp (CopySlices), python_variable... of 2.15.
#pragma once
#include <array>
#include <initializer_list>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "fake/runtime.h"
#include "fake/tensor.h"

namespace memest {

// ---- saved tensors ---------------------------------------------------------------------------------------------------

/// What a pack hook makes of a saved tensor; destroyed when the node lets go of it.
struct Packed {
  virtual Tensor unpack() = 0;
  virtual ~Packed() = default;
};
/// torch.autograd.graph.saved_tensors_hooks: asked for each tensor that a node saves while they are set on the runtime.
struct SavedTensorHooks {
  virtual std::unique_ptr<Packed> pack(T x) = 0;
  virtual ~SavedTensorHooks() = default;
  int refs = 0;
};
struct SavedTensorHooksScope {
  explicit SavedTensorHooksScope(Ref<SavedTensorHooks> hooks) : scope_(runtime().saved_tensor_hooks, std::move(hooks)) {}

 private:
  Scoped<Ref<SavedTensorHooks>> scope_;
};

/// SavedVariable: an input is kept as it is, an output without its history (no cycle). Costs memory only where nothing else holds the
/// storage.
class SavedTensor {
 public:
  SavedTensor() = default;
  SavedTensor(T x, bool is_output);
  Tensor unpack() const { return packed_ ? packed_->unpack() : tensor_; }

 private:
  Tensor tensor_;
  std::unique_ptr<Packed> packed_;
};

// ---- nodes -----------------------------------------------------------------------------------------------------------

/// What a gradient must look like to be handed to a node's input.
struct InputMetadata {
  Dims sizes;
  DType dtype;
};
struct Edge {
  Ref<Node> node;
  int nr = 0;
};

class Node {
 public:
  Node(const char* node_name, std::uint64_t sequence);
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  /// Gradients of the forward's inputs (one for each of `next`) from those of its outputs; undefined ones stand for zero.
  /// `grads` stays alive until the engine has checked the results.
  virtual Tensors apply(Tensors& grads) = 0;
  /// Lets go of the saved tensors.
  virtual void release_variables() {}
  int add_input(T output);

  int refs = 0;
  const char* name;  ///< PyTorch's: "MmBackward0"
  std::uint64_t sequence_nr;
  ModuleId module;  ///< that made it
  std::vector<Edge> next;
  std::vector<InputMetadata> inputs;
};

/// What a derivative formula sees.
struct Backward {
  const Node& node;
  Tensors& grad;  ///< of the forward's outputs; undefined where none arrived
  Tensors out;    ///< to fill: of the forward's inputs

  bool needs(int input) const { return bool(node.next[std::size_t(input)].node); }
  /// Sizes and type of the forward's input (only where needed).
  const Dims& sizes(int input) const { return meta(input).sizes; }
  DType dtype(int input) const { return meta(input).dtype; }
  /// Sizes and type of the forward's output.
  const Dims& output_sizes(int output) const { return node.inputs[std::size_t(output)].sizes; }
  DType output_dtype(int output) const { return node.inputs[std::size_t(output)].dtype; }

 private:
  const InputMetadata& meta(int input) const {
    auto& e = node.next[std::size_t(input)];
    return e.node->inputs[std::size_t(e.nr)];
  }
};

namespace detail {
template <class F>
struct FormulaArity;
template <class C, class... A>
struct FormulaArity<void (C::*)(Backward&, A...) const> {
  static constexpr std::size_t value = sizeof...(A);
  static constexpr bool is_list = (std::is_same_v<A, const Tensors&> || ...);
};
}  // namespace detail

/// A node whose saved tensors are an explicit list; the formula gets them as arguments, its closure holds scalars only.
/// F is `void(Backward&, T, T, ...)` with one T for each saved tensor, or `void(Backward&, const Tensors&)`.
template <class F>
class FormulaNode final : public Node {
 public:
  FormulaNode(const char* node_name, std::uint64_t sequence, F formula) : Node(node_name, sequence), formula_(std::move(formula)) {}
  void save(T x, bool is_output) { saved_.emplace_back(x, is_output); }
  void reserve(std::size_t count) { saved_.reserve(count); }
  Tensors apply(Tensors& grads) override {
    using Arity = detail::FormulaArity<decltype(&F::operator())>;
    Backward w{*this, grads, Tensors(next.size())};
    if constexpr (Arity::is_list) {
      Tensors values;
      values.reserve(saved_.size());
      for (auto& s : saved_) values.push_back(s.unpack());
      formula_(w, values);
    } else {
      if (saved_.size() != Arity::value)
        throw Error(std::string(name) + " saves " + std::to_string(saved_.size()) + " tensors but its formula takes " +
                    std::to_string(Arity::value));
      std::array<Tensor, Arity::value> values;
      for (std::size_t i = 0; i < Arity::value; ++i) values[i] = saved_[i].unpack();
      std::apply([&](auto&... v) { formula_(w, v...); }, values);
    }
    return std::move(w.out);
  }
  void release_variables() override { saved_.clear(); }

 private:
  std::vector<SavedTensor> saved_;
  F formula_;
};

/// A node in the making, null where no gradient is needed: made before the kernel (inputs are packed then), completed after it.
template <class F>
class NewNode {
 public:
  NewNode() = default;
  explicit NewNode(FormulaNode<F>* node) : node_(node) {}
  explicit operator bool() const { return bool(node_); }
  /// set_history: the outputs are the node's; then packs the saved outputs. Undefined outputs keep their place.
  void outputs(std::span<const Tensor> results, std::span<const Tensor> saved = {});
  void outputs(std::initializer_list<Tensor> results, std::initializer_list<Tensor> saved = {}) {
    outputs(std::span(results.begin(), results.size()), std::span(saved.begin(), saved.size()));
  }
  /// rebase_history: an op that wrote into `self`; on a view, the base gets a CopySlices node.
  void in_place(T self, std::initializer_list<Tensor> saved = {});

 private:
  Ref<Node> node_;
  FormulaNode<F>* formula() const { return static_cast<FormulaNode<F>*>(node_.get()); }
};

/// The edge that a gradient of x takes; makes a leaf's AccumulateGrad. Empty where x needs none.
Edge gradient_edge(T x);
/// x itself if a gradient of `needed_by` is wanted, else nothing: a tensor that only one formula uses is saved only for it.
inline Tensor save_if(T x, T needed_by) { return needed_by.requires_grad() ? x : Tensor(); }
bool any_requires_grad(std::span<const Tensor> inputs);
/// Of a node about to be made in grad mode.
std::uint64_t next_sequence_nr();
void set_history(const Ref<Node>& node, std::span<const Tensor> outputs);
void rebase_history(T self, const Ref<Node>& node);
/// The tensor's current grad_fn; a view of a base written in place gets an AsStridedBackward0 here.
const Ref<Node>& grad_fn(T x);

/// Records an op: its inputs in the order of the formula's outputs, the inputs it saves (save_if drops those not needed), its formula.
template <class F>
NewNode<F> node(const char* name, std::span<const Tensor> inputs, std::span<const Tensor> saved, F formula) {
  if (!runtime().grad_mode || !any_requires_grad(inputs)) return {};
  auto* made = new FormulaNode<F>(name, next_sequence_nr(), std::move(formula));
  NewNode<F> result(made);
  made->next.reserve(inputs.size());
  for (auto& x : inputs) made->next.push_back(gradient_edge(x));
  made->reserve(saved.size() + 2);
  for (auto& x : saved) made->save(x, false);
  return result;
}
template <class F>
NewNode<F> node(const char* name, std::initializer_list<Tensor> inputs, std::initializer_list<Tensor> saved, F formula) {
  return node(name, std::span(inputs.begin(), inputs.size()), std::span(saved.begin(), saved.size()), std::move(formula));
}
template <class F>
NewNode<F> node(const char* name, std::span<const Tensor> inputs, std::initializer_list<Tensor> saved, F formula) {
  return node(name, inputs, std::span(saved.begin(), saved.size()), std::move(formula));
}

template <class F>
void NewNode<F>::outputs(std::span<const Tensor> results, std::span<const Tensor> saved) {
  if (!node_) return;
  set_history(node_, results);
  for (auto& x : saved) formula()->save(x, true);
}
template <class F>
void NewNode<F>::in_place(T self, std::initializer_list<Tensor> saved) {
  ++self->storage->version;
  if (!node_) return;
  rebase_history(self, node_);
  for (auto& x : saved) formula()->save(x, true);
}

// ---- the engine --------------------------------------------------------------------------------------------------------

/// tensor.backward(gradient): without one, a tensor of ones. Runs on the engine's thread; saved tensors go as nodes are done.
void backward(T root, Tensor gradient = {}, bool retain_graph = false);
/// torch.autograd.backward(roots, gradients); all roots take part in autograd.
void backward(const Tensors& roots, const Tensors& gradients, bool retain_graph = false);

/// What the engine needs of ops: set by ops/, since fake/ names none.
struct EngineOps {
  Tensor (*ones_like)(T x);
  Tensor (*sum_to_size)(T gradient, const Dims& sizes);  ///< at::sum_to: sum over broadcast dimensions
  Tensor (*cast)(T gradient, DType dtype);
  Tensor (*add)(T a, T b);                                                               ///< out of place
  Tensor (*new_empty_strided_copy)(T gradient, const Dims& sizes, const Dims& strides);  ///< a copy in the given layout
  Tensor (*clone_contiguous)(T gradient);
  Tensor (*new_zeros)(T like, const Dims& sizes);
};
extern EngineOps engine_ops;

}  // namespace memest
