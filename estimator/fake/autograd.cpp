#include "fake/autograd.h"

namespace memest {

void dispose(SavedTensorHooks* hooks) { delete hooks; }

EngineOps engine_ops;

SavedTensor::SavedTensor(T x, bool is_output) {
  if (!x) return;
  if (x->storage->category == Category::temporary) x->storage->categorize(Category::activation);
  Tensor kept = x;
  if (is_output && grad_fn(x)) {
    kept = detached(x);
    kept->wrapped_number = x->wrapped_number;
  }
  // saved_variable.cpp: hooks are not shown wrapped numbers
  if (auto hooks = runtime().saved_tensor_hooks; hooks && !x->wrapped_number)
    packed_ = hooks->pack(kept);
  else
    tensor_ = std::move(kept);
}

Node::Node(const char* node_name, std::uint64_t sequence) : name(node_name), sequence_nr(sequence), module(runtime().module) {}

int Node::add_input(T output) {
  inputs.push_back({output.sizes(), output.dtype()});
  return int(inputs.size()) - 1;
}

std::uint64_t next_sequence_nr() { return runtime().next_sequence_nr++; }

// torch/csrc/autograd/function.cpp deleteNode: a chain of any length goes without recursion, variables of a node first.
void dispose(Node* first) {
  std::vector<Node*> doomed{first};
  while (!doomed.empty()) {
    Node* n = doomed.back();
    doomed.pop_back();
    n->release_variables();
    for (auto& edge : n->next) {
      Node* m = edge.node.get();
      if (m && m->refs == 1) {
        // Take over the last reference: the pointer's own count falls to zero without a call of dispose.
        ++m->refs;
        edge.node.reset();
        m->refs = 0;
        doomed.push_back(m);
      } else {
        edge.node.reset();
      }
    }
    n->refs = 1;  // a destructor that hands out references must not dispose again
    delete n;
  }
}

namespace {

/// utils::obeys_layout_contract (torch/csrc/autograd/utils/grad_layout_contract.h).
bool obeys_layout_contract(T gradient, T variable) {
  if (!is_dense(variable)) return is_contiguous(gradient);
  for (int i = 0; i < gradient.dim(); ++i)
    if (gradient.sizes()[i] != 1 && gradient.strides()[i] != variable.strides()[i]) return false;
  return true;
}

class AccumulateGrad final : public Node {
 public:
  explicit AccumulateGrad(T leaf) : Node("AccumulateGrad", ~std::uint64_t{0}), variable_(leaf) {
    leaf->accumulator = this;
    add_input(leaf);
  }
  ~AccumulateGrad() override { variable_->accumulator = nullptr; }

  // torch/csrc/autograd/functions/accumulate_grad.h accumulateGrad
  Tensors apply(Tensors& grads) override {
    Tensor gradient = std::move(grads[0]);
    if (!gradient) return {};
    Tensor& grad = variable_->grad;
    const bool differentiable = runtime().grad_mode;
    if (!grad) {
      if (!differentiable && gradient->refs == 1 && obeys_layout_contract(gradient, variable_))
        grad = detached(gradient);
      else if (is_dense(variable_))
        grad = engine_ops.new_empty_strided_copy(gradient, variable_.sizes(), variable_.strides());
      else
        grad = engine_ops.clone_contiguous(gradient);
      grad->storage->categorize(Category::gradient);
    } else if (differentiable) {
      grad = engine_ops.add(grad, gradient);
      grad->storage->categorize(Category::gradient);
    }  // else added in place: the new gradient was a transient
    return {};
  }

 private:
  Tensor variable_;
};

/// An in-place op on a view: the base's gradient is copied, the slice goes through the op's own node (functions/tensor.cpp).
class CopySlices final : public Node {
 public:
  CopySlices(T base, T view, Ref<Node> inner)
      : Node("CopySlices", next_sequence_nr()),
        sizes_(base.sizes()),
        strides_(base.strides()),
        view_sizes_(view.sizes()),
        view_strides_(view.strides()),
        view_offset_(view->offset - base->offset),
        inner_(std::move(inner)) {
    add_input(base);
    next.push_back(gradient_edge(base));
    for (std::size_t i = 1; i < inner_->next.size(); ++i) next.push_back(inner_->next[i]);
  }
  Tensors apply(Tensors& grads) override {
    Tensors out(next.size());
    if (!grads[0]) return out;
    Tensor result = engine_ops.new_empty_strided_copy(grads[0], sizes_, strides_);
    Tensor slice = share(result, view_sizes_, view_strides_, view_offset_);
    Tensors inner_grads{engine_ops.new_empty_strided_copy(slice, view_sizes_, infer_dense_strides(view_sizes_, view_strides_))};
    Tensors inner_out = inner_->apply(inner_grads);
    for (std::size_t i = 0; i < out.size(); ++i)
      if (next[i].node) out[i] = i == 0 ? result : std::move(inner_out[i]);
    return out;
  }
  void release_variables() override {
    if (inner_) inner_->release_variables();
  }

 private:
  Dims sizes_, strides_, view_sizes_, view_strides_;
  std::int64_t view_offset_;
  Ref<Node> inner_;
};

/// How a view of a base written in place gets its gradient back to the base (derivatives.yaml as_strided, FunctionsManual.cpp
/// as_strided_backward).
class AsStridedBackward final : public Node {
 public:
  AsStridedBackward(T base, T view) : Node("AsStridedBackward0", next_sequence_nr()), base_sizes_(base.sizes()) {
    next.push_back(gradient_edge(base));
    add_input(view);
  }
  Tensors apply(Tensors& grads) override {
    Tensors out(1);
    if (grads[0]) out[0] = engine_ops.new_zeros(grads[0], base_sizes_);
    return out;
  }

 private:
  Dims base_sizes_;
};

}  // namespace

bool any_requires_grad(std::span<const Tensor> inputs) {
  for (auto& x : inputs)
    if (x.requires_grad()) return true;
  return false;
}

const Ref<Node>& grad_fn(T x) {
  if (x->base && x->attr_version != x->storage->version) {
    x->attr_version = x->storage->version;
    if (x->base.requires_grad()) {
      x->grad_fn = Ref<Node>(new AsStridedBackward(x->base, x));
      x->output_nr = 0;
    }
  }
  return x->grad_fn;
}

Edge gradient_edge(T x) {
  if (!x) return {};
  if (auto& fn = grad_fn(x)) return {fn, x->output_nr};
  if (!x->requires_grad) return {};
  if (!x->accumulator) return {Ref<Node>(new AccumulateGrad(x)), 0};
  return {Ref<Node>(x->accumulator), 0};
}

void set_history(const Ref<Node>& node, std::span<const Tensor> outputs) {
  for (auto& y : outputs) {
    if (!y || !is_differentiable(y.dtype())) {  // keeps its place among the node's inputs
      node->inputs.push_back({y ? y.sizes() : Dims{}, y ? y.dtype() : DType::float32});
      continue;
    }
    y->output_nr = node->add_input(y);
    y->grad_fn = node;
    y->requires_grad = false;
  }
}

FormulaNode* detail::new_formula_node(const char* name, std::span<const Tensor> inputs, std::span<const Tensor> saved,
                                      FormulaNode::Formula formula, std::size_t arity) {
  auto* made = new FormulaNode(name, next_sequence_nr(), std::move(formula), arity);
  Ref<FormulaNode> guard(made);  // packing a saved tensor may throw: a checkpoint's recomputation stops so
  made->next.reserve(inputs.size());
  for (auto& x : inputs) made->next.push_back(gradient_edge(x));
  made->reserve(saved.size() + 2);
  for (auto& x : saved) made->save(x, false);
  return guard.release();
}

Tensors FormulaNode::apply(Tensors& grads) {
  if (arity_ != kAny && saved_.size() != arity_)
    throw Error(std::string(name) + " saves " + std::to_string(saved_.size()) + " tensors but its formula takes " + std::to_string(arity_));
  Backward w{*this, grads, Tensors(next.size())};
  Tensors values;
  values.reserve(saved_.size());
  for (auto& s : saved_) values.push_back(s.unpack());
  formula_(w, values);
  while (!values.empty()) values.pop_back();  // names of the generated apply(): the last unpacked goes first
  return std::move(w.out);
}

void NewNode::outputs(std::span<const Tensor> results, std::span<const Tensor> saved) {
  if (!node_) return;
  set_history(node_, results);
  for (auto& x : saved) formula()->save(x, true);
}
void NewNode::in_place(T self, std::initializer_list<Tensor> saved) {
  ++self->storage->version;
  if (!node_) return;
  rebase_history(self, node_);
  for (auto& x : saved) formula()->save(x, true);
}

void rebase_history(T self, const Ref<Node>& node) {
  node->add_input(self);
  if (self->base) {
    Tensor base = self->base;
    Ref<Node> slices(new CopySlices(base, self, node));
    base->grad_fn = std::move(slices);
    base->output_nr = 0;
    base->requires_grad = false;
    grad_fn(self);
    return;
  }
  self->grad_fn = node;
  self->output_nr = int(node->inputs.size()) - 1;
  self->requires_grad = false;
}

}  // namespace memest
