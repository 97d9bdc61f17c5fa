// A module whose forward is a graph of calls, as a torch.fx trace of one module's own forward holds. A call of it is a frame: inside, a
// value dies after the statement that uses it last, or when its name is assigned again, or, where it is kept, when the frame returns.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "nn/custom.h"
#include "nn/module.h"

namespace memest::nn {

/// Sizes that a spec names ("batch", "image"); changed between steps.
using Symbols = std::map<std::string, std::int64_t>;

/// An expression over symbols: "batch", "image//16", "(height + 2) * 3".
class SizeExpression {
 public:
  /// Throws Error where the text is no expression.
  explicit SizeExpression(std::string text);
  /// Throws Error for a symbol that has no value, a division by zero or an overflow.
  std::int64_t evaluate(const Symbols& symbols) const;
  const std::string& text() const { return text_; }
  /// Names of the symbols in it.
  std::vector<std::string> symbols() const;

 private:
  std::string text_;
};

/// An argument as the file gives it: a constant, a value of the frame, a size, or a structure of these.
struct GraphArgument {
  enum class Form { constant, value, size, training, list, tuple, slice, dict };
  Form form = Form::constant;
  Value constant;  ///< of a training flag: the mode in which it is true
  int slot = -1;   ///< of a value
  std::shared_ptr<SizeExpression> size;
  std::vector<GraphArgument> items;  ///< of a list, tuple or slice (start, stop, step), or a dict's values
  std::vector<std::string> keys;     ///< of a dict
};

/// The slots of the values in an argument, in order.
void visit_values(const GraphArgument& argument, const std::function<void(int)>& f);

/// What a spec says of an op of its own: the tensors that it makes, and those that it saves for the backward pass.
struct CustomOp {
  struct Made {
    std::vector<GraphArgument> shape;  ///< sizes; or none, where it has those of `like`
    int like = -1;                     ///< slot of a value
    std::optional<DType> dtype;        ///< else that of `like`, or of the first input
    bool saved = false;
    std::string where;  ///< in its node, for messages
  };
  std::vector<Made> outputs, temporaries, backward_temporaries;
  std::set<int> saved_slots;  ///< of the values among its arguments that it saves
};

struct GraphNode {
  enum class Op { placeholder, call_module, call_function, call_method, get_attr, output, custom };
  std::string name;
  Op op = Op::placeholder;
  std::string target;
  std::vector<GraphArgument> args;
  std::vector<std::pair<std::string, GraphArgument>> kwargs;
  std::string where;  ///< JSON pointer, for messages
  int slot = -1;      ///< its name's; filled in by GraphProgram

  std::shared_ptr<const CustomOp> custom;  ///< of a custom op
  bool unknown = false;                    ///< a call of a function that memest does not know; filled in by GraphProgram
  int parts = 1;                           ///< of an unknown call: values that its users take out of it; filled in by GraphProgram
};

/// What graphs of the same text have in common: the nodes, the frame's slots and where values die.
class GraphProgram {
 public:
  /// The slot of a name, made at first use.
  int slot_of(const std::string& name);
  bool has_name(const std::string& name) const { return slots_.contains(name); }
  const std::map<std::string, int>& names() const { return slots_; }
  void add(GraphNode node) { nodes_.push_back(std::move(node)); }
  void keep(const std::string& name) { kept_.push_back(name); }
  /// Checks the order and works out where values die; throws Error. Call once, when all nodes are there.
  void finish();
  const std::vector<GraphNode>& nodes() const { return nodes_; }
  std::size_t slots() const { return slots_.size(); }
  std::size_t placeholders() const;
  /// Slots to clear after the i-th node.
  const std::vector<int>& dead(std::size_t i) const { return dead_[i]; }

 private:
  void find_unknown();

  std::map<std::string, int> slots_;
  std::vector<GraphNode> nodes_;
  std::vector<std::string> kept_;
  std::vector<std::vector<int>> dead_;
};

class Graph final : public Module {
 public:
  explicit Graph(std::shared_ptr<const Symbols> symbols) : Module("Graph"), symbols_(std::move(symbols)) {}
  /// The finished program, which copies of a layer share; call once, when all children are there. Throws Error for a call of a module that
  /// the graph does not have.
  void set_program(std::shared_ptr<const GraphProgram> program);
  /// What it runs in evaluation mode instead, where its forward then takes another way.
  void set_evaluation_program(std::shared_ptr<const GraphProgram> program);

 protected:
  Value forward(const Values& arguments, const KeywordArguments& keywords) override;

 private:
  Value evaluate(const GraphArgument& argument, const Values& frame) const;
  Value run(std::size_t node, const Values& frame);
  Value run_custom(const GraphNode& node, const Values& frame) const;
  CustomCall::Made described(const CustomOp::Made& made, const Tensors& inputs, const Values& frame) const;
  Value run_unknown(const GraphNode& node, const Values& arguments, const KeywordArguments& keywords) const;

  std::shared_ptr<const Symbols> symbols_;
  struct Linked {
    std::shared_ptr<const GraphProgram> program;
    std::vector<Module*> called;  ///< of each node: the module of a call_module
  };
  Linked linked(std::shared_ptr<const GraphProgram> program);
  const Linked& current() const { return training || !evaluation_.program ? usual_ : evaluation_; }
  Linked usual_, evaluation_;
};

}  // namespace memest::nn
