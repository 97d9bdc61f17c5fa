// The autograd engine (torch/csrc/autograd/engine.cpp, input_buffer.cpp; 2.15).
#include <queue>
#include <unordered_map>

#include "fake/autograd.h"

namespace memest {
namespace {

/// InputBuffer::accumulate: only the tensor already in the slot is tried in place, and a view never is (its metadata keeps the base,
/// so the storage has two owners). Fake tensors are subclasses: never in place.
void accumulate(Tensor& slot, Tensor gradient) {
  if (!gradient) return;
  if (!slot) {
    slot = std::move(gradient);
    return;
  }
  Runtime& rt = runtime();
  const bool in_place = !rt.grad_mode && rt.settings.semantics == RunSettings::Semantics::cuda && slot->refs == 1 && !slot->base &&
                        slot->storage->refs == 1 && is_dense(slot);
  if (in_place && slot.sizes() == gradient.sizes() && promote_types(slot.dtype(), gradient.dtype()) == slot.dtype()) return;
  slot = engine_ops.add(slot, gradient);
}

/// What one backward call knows of a node. It belongs to the call: a nested backward has its own.
struct State {
  int dependencies = 0;
  Tensors buffer;
};

class GraphTask {
 public:
  /// Engine::execute: several roots hang off a GraphRoot, whose gradients arrive in their order.
  void run(const std::vector<Edge>& roots, const Tensors& gradients, bool retain_graph) {
    states_.reserve(1024);
    for (auto& root : roots) count_dependencies(root.node.get());
    for (auto& root : roots) ++states_[root.node.get()].dependencies;
    for (std::size_t i = 0; i < roots.size(); ++i) {
      State& state = states_[roots[i].node.get()];
      state.buffer.resize(roots[i].node->inputs.size());
      accumulate(state.buffer[std::size_t(roots[i].nr)], gradients[i]);
      if (--state.dependencies == 0) ready_.push({roots[i].node, &state});
    }
    while (!ready_.empty()) {
      const Ready next = ready_.top();
      ready_.pop();
      evaluate(next, retain_graph);
    }
  }

 private:
  struct Ready {
    Ref<Node> node;
    State* state;  ///< into states_, whose elements stay where they are
  };

  void count_dependencies(Node* root) {
    if (!states_.try_emplace(root).second) return;
    std::vector<Node*> stack{root};
    while (!stack.empty()) {
      Node* n = stack.back();
      stack.pop_back();
      for (auto& edge : n->next) {
        if (!edge.node) continue;
        auto [it, is_new] = states_.try_emplace(edge.node.get());
        ++it->second.dependencies;
        if (is_new) stack.push_back(edge.node.get());
      }
    }
  }

  // Engine::evaluate_function and call_function
  void evaluate(const Ready& next, bool retain_graph) {
    Node& n = *next.node;
    Tensors outputs = call(n, *next.state);
    if (!retain_graph) n.release_variables();
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      auto& edge = n.next[i];
      if (!edge.node) continue;
      State& state = states_.find(edge.node.get())->second;
      if (state.buffer.empty()) state.buffer.resize(edge.node->inputs.size());
      Runtime& rt = runtime();
      Scoped<const char*> op(rt.op, edge.node->name);
      accumulate(state.buffer[std::size_t(edge.nr)], std::move(outputs[i]));
      if (--state.dependencies == 0) ready_.push({edge.node, &state});
    }
  }

  Tensors call(Node& n, State& state) {
    Tensors gradients = std::move(state.buffer);
    Runtime& rt = runtime();
    Scoped<ModuleId> module(rt.module, n.module);
    Scoped<const char*> op(rt.op, n.name);
    bool any = false;
    for (auto& g : gradients) any |= g.defined();
    Tensors outputs = any ? n.apply(gradients) : Tensors(n.next.size());
    if (!n.next.empty()) validate(n, outputs);
    return outputs;
  }

  /// validate_outputs: sums broadcast dimensions, casts to the type of the forward's input.
  static void validate(const Node& n, Tensors& outputs) {
    outputs.resize(n.next.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      Tensor& g = outputs[i];
      auto& edge = n.next[i];
      if (!g) continue;
      if (!edge.node) {
        g.reset();
        continue;
      }
      const InputMetadata& wanted = edge.node->inputs[std::size_t(edge.nr)];
      if (!(g.sizes() == wanted.sizes)) g = engine_ops.sum_to_size(g, wanted.sizes);
      if (g.dtype() != wanted.dtype) g = engine_ops.cast(g, wanted.dtype);
    }
  }

  struct Later {  // a lower sequence number is done later; AccumulateGrad has the highest
    bool operator()(const Ready& a, const Ready& b) const { return a.node->sequence_nr < b.node->sequence_nr; }
  };
  std::priority_queue<Ready, std::vector<Ready>, Later> ready_;
  std::unordered_map<Node*, State> states_;
};

}  // namespace

void backward(T root, Tensor gradient, bool retain_graph) {
  if (!root.requires_grad())
    throw Error("element 0 of tensors does not require grad and does not have a grad_fn", "nothing that the loss depends on is trainable");
  if (!gradient) {
    if (root.numel() != 1)
      throw Error("grad can be implicitly created only for scalar outputs, but the loss has the sizes " + to_string(root.sizes()));
    gradient = engine_ops.ones_like(root);
  }
  backward(Tensors{root}, Tensors{gradient}, retain_graph);
}

void backward(const Tensors& roots, const Tensors& gradients, bool retain_graph) {
  Runtime& rt = runtime();
  Scoped<bool> thread(rt.in_backward_thread, true);
  NoGrad guard;
  std::vector<Edge> edges;
  for (auto& root : roots) edges.push_back(gradient_edge(root));
  GraphTask().run(edges, gradients, retain_graph);
}

}  // namespace memest
