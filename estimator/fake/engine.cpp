// The autograd engine (torch/csrc/autograd/engine.cpp, input_buffer.cpp; 2.15).
#include <queue>

#include "fake/autograd.h"
#include "fake/counted.h"

namespace memest {
namespace {

/// InputBuffer::accumulate: only the tensor already in the slot is tried in place, and a view never is (its metadata keeps the base,
/// so the storage has two owners). Fake tensors are subclasses: never in place. A gradient that is added stays with the caller: those of
/// one node go together, after all of them have arrived.
void accumulate(Tensor& slot, Tensor&& gradient) {
  if (!gradient) return;
  if (!slot) {
    slot = std::move(gradient);
    return;
  }
  Runtime& rt = runtime();
  const bool in_place = !rt.grad_mode && (rt.settings.semantics == RunSettings::Semantics::cuda || counts_libtorch()) && slot->refs == 1 &&
                        !slot->base && slot->storage->refs == 1 && is_dense(slot);
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
  explicit GraphTask(bool nested) : id_(++runtime().backward_calls), nested_(nested) {}
  /// The nodes that an outer call was at work on are its own again.
  ~GraphTask() {
    for (auto& d : displaced_) d.node->task = d.task, d.node->slot = d.slot;
  }
  GraphTask(const GraphTask&) = delete;
  GraphTask& operator=(const GraphTask&) = delete;

  /// Engine::execute: several roots hang off a GraphRoot, whose gradients arrive in their order. The roots keep the graph alive.
  void run(const std::vector<Edge>& roots, const Tensors& gradients, bool retain_graph) {
    for (auto& root : roots) count_dependencies(root.node.get());
    for (auto& root : roots) ++state_of(*root.node).dependencies;
    for (std::size_t i = 0; i < roots.size(); ++i) arrive(*roots[i].node, roots[i].nr, Tensor(gradients[i]));
    while (!ready_.empty()) {
      Node& next = *ready_.top().node;
      ready_.pop();
      evaluate(next, retain_graph);
    }
  }

 private:
  struct Ready {
    std::uint64_t sequence_nr;
    Node* node;
  };
  struct Displaced {
    Ref<Node> node;
    std::uint64_t task;
    std::size_t slot;
  };

  State& state_of(const Node& n) { return states_[n.slot]; }

  /// Gives the node a state; false where it has one.
  bool enter(Node& n) {
    if (n.task == id_) return false;
    if (n.task && nested_) displaced_.push_back({Ref<Node>(&n), n.task, n.slot});
    n.task = id_;
    n.slot = states_.size();
    states_.emplace_back();
    return true;
  }

  void count_dependencies(Node* root) {
    if (!enter(*root)) return;
    std::vector<Node*> stack{root};
    while (!stack.empty()) {
      Node* n = stack.back();
      stack.pop_back();
      for (auto& edge : n->next) {
        if (!edge.node) continue;
        const bool is_new = enter(*edge.node);
        ++state_of(*edge.node).dependencies;
        if (is_new) stack.push_back(edge.node.get());
      }
    }
  }

  /// A gradient of the node's nr-th input; the node is ready with its last one.
  void arrive(Node& n, int nr, Tensor&& gradient) {
    State& state = state_of(n);
    if (state.buffer.empty()) state.buffer.resize(n.inputs.size());
    accumulate(state.buffer[std::size_t(nr)], std::move(gradient));
    if (--state.dependencies == 0) ready_.push({n.sequence_nr, &n});
  }

  // Engine::evaluate_function and call_function
  void evaluate(Node& n, bool retain_graph) {
    Tensors outputs = call(n, state_of(n));
    if (!retain_graph) n.release_variables();
    Runtime& rt = runtime();
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      auto& edge = n.next[i];
      if (!edge.node) continue;
      Scoped<const char*> op(rt.op, edge.node->name);
      arrive(*edge.node, edge.nr, std::move(outputs[i]));
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
    bool operator()(const Ready& a, const Ready& b) const { return a.sequence_nr < b.sequence_nr; }
  };
  const std::uint64_t id_;
  const bool nested_;
  std::priority_queue<Ready, std::vector<Ready>, Later> ready_;
  std::vector<State> states_;
  std::vector<Displaced> displaced_;
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
  const bool nested = rt.in_backward_thread;
  Scoped<bool> thread(rt.in_backward_thread, true);
  NoGrad guard;
  std::vector<Edge> edges;
  for (auto& root : roots) edges.push_back(gradient_edge(root));
  GraphTask(nested).run(edges, gradients, retain_graph);
}

}  // namespace memest
