// Autograd: nodes with an explicit list of saved tensors, and the engine that runs them in PyTorch's order.
// Sources: torch/csrc/autograd/{function.h,engine.cpp,input_buffer.cpp,saved_variable.cpp,custom_function.cpp},
// functions/accumulate_grad.h, functions/tensor.cpp (CopySlices), python_variable... of 2.15.
#pragma once
#include <functional>
#include <initializer_list>
#include <span>
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
  std::uint64_t task = 0;  ///< the backward call that knows this node last, counted from 1
  std::size_t slot = 0;    ///< of its state in that call
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
class FormulaNode final : public Node {
 public:
  using Formula = std::function<void(Backward&, const Tensors& saved)>;
  FormulaNode(const char* node_name, std::uint64_t sequence, Formula formula, std::size_t arity)
      : Node(node_name, sequence), formula_(std::move(formula)), arity_(arity) {}
  static constexpr std::size_t kAny = ~std::size_t{0};
  void save(T x, bool is_output) { saved_.emplace_back(x, is_output); }
  void reserve(std::size_t count) { saved_.reserve(count); }
  Tensors apply(Tensors& grads) override;
  void release_variables() override { saved_.clear(); }

 private:
  std::vector<SavedTensor> saved_;
  Formula formula_;
  std::size_t arity_;  ///< tensors that the formula takes; kAny for a list
};

/// A node in the making, null where no gradient is needed: made before the kernel (inputs are packed then), completed after it.
class NewNode {
 public:
  NewNode() = default;
  explicit NewNode(FormulaNode* node) : node_(node) {}
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
  FormulaNode* formula() const { return static_cast<FormulaNode*>(node_.get()); }
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

namespace detail {
/// The node of an op whose inputs need a gradient; null otherwise.
FormulaNode* new_formula_node(const char* name, std::span<const Tensor> inputs, std::span<const Tensor> saved, FormulaNode::Formula formula,
                              std::size_t arity);
inline bool records(std::span<const Tensor> inputs) { return runtime().grad_mode && any_requires_grad(inputs); }
/// A formula of so many tensors as one of a list.
template <class F>
FormulaNode::Formula listed(F formula) {
  using Arity = FormulaArity<decltype(&F::operator())>;
  if constexpr (Arity::is_list) {
    return formula;
  } else {
    return [formula = std::move(formula)](Backward& w, const Tensors& saved) {
      [&]<std::size_t... I>(std::index_sequence<I...>) { formula(w, saved[I]...); }
      (std::make_index_sequence<Arity::value>{});
    };
  }
}
}  // namespace detail

/// Records an op: its inputs in the order of the formula's outputs, the inputs it saves (save_if drops those not needed), its formula:
/// `void(Backward&, T, T, ...)` with one T for each saved tensor, or `void(Backward&, const Tensors&)`.
template <class F>
NewNode node(const char* name, std::span<const Tensor> inputs, std::span<const Tensor> saved, F formula) {
  using Arity = detail::FormulaArity<decltype(&F::operator())>;
  if (!detail::records(inputs)) return {};
  return NewNode(
      detail::new_formula_node(name, inputs, saved, detail::listed(std::move(formula)), Arity::is_list ? FormulaNode::kAny : Arity::value));
}
template <class F>
NewNode node(const char* name, std::initializer_list<Tensor> inputs, std::initializer_list<Tensor> saved, F formula) {
  return node(name, std::span(inputs.begin(), inputs.size()), std::span(saved.begin(), saved.size()), std::move(formula));
}
template <class F>
NewNode node(const char* name, std::span<const Tensor> inputs, std::initializer_list<Tensor> saved, F formula) {
  return node(name, inputs, std::span(saved.begin(), saved.size()), std::move(formula));
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
