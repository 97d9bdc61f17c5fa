// Modules whose forward is a part of a program that torch.export wrote: a list of calls of aten ops, and of other modules. Each call of a
// module is a frame, as its eager forward is one: the caller holds the arguments, names live until they are bound again or the frame
// returns.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nn/adapter.h"
#include "nn/graph.h"
#include "nn/model.h"
#include "nn/module.h"
#include "nn/moved.h"
#include "ops/op.h"

namespace memest::nn {

class ExportedModule;

/// An argument of a step.
struct ExportedArgument {
  enum class Form { constant, value, list, dict, training };
  Form form = Form::constant;
  int slot = -1;   ///< of a value
  Value constant;  ///< of a training flag: what it is in training; in evaluation it is False, 0 where it is a number
  std::vector<ExportedArgument> items;
  std::vector<std::string> keys;  ///< of a dict
};

/// A tensor that the program describes.
struct ExportedTensor {
  DType dtype = DType::float32;
  std::vector<SizeExpression> sizes;
  Dims evaluate(const Symbols& symbols) const;
};

struct ExportedFrame;

struct ExportedStep {
  enum class Kind {
    op,         ///< a record; the arguments follow its schema
    overloads,  ///< an op by name: the overload that fits
    function,   ///< Python's own, by name
    builtin,    ///< of the exported program: sizes, assertions, ...
    unknown,    ///< an op that memest does not know
    call,       ///< another module
    grad_mode,  ///< torch.set_grad_enabled(flag) until `leave`
    autocast,   ///< torch.autocast until `leave`
    leave,      ///< the innermost region
    cond,       ///< higher-order ops with frames of their own
    map,
    scan,
    while_loop,
    mutate,  ///< buffer.copy_(value)
  };
  Kind kind = Kind::op;
  const OpRecord* record = nullptr;
  std::string target, where;  ///< as the file has it; the node, for messages
  std::vector<ExportedArgument> arguments;
  std::vector<std::pair<std::string, ExportedArgument>> keywords;
  std::vector<int> outputs;                            ///< slots; -1 for one that nobody uses
  bool list = false;                                   ///< the only output is a list: `outputs` are its elements
  std::vector<int> dead;                               ///< slots to clear after it
  bool flag = false;                                   ///< of grad_mode and autocast
  DType dtype = DType::float16;                        ///< of autocast
  ExportedModule* module = nullptr;                    ///< of a call; of an op in a flat program: whose it is
  int frame = 0;                                       ///< of a call: which of the module's
  std::vector<std::shared_ptr<ExportedFrame>> bodies;  ///< of higher-order ops
  std::vector<ExportedTensor> made;                    ///< of an unknown op: its outputs
};

struct ExportedFrame {
  std::vector<ExportedStep> steps;
  int slots = 0;
  std::vector<int> inputs;  ///< slots of the arguments
  ExportedArgument output;
};

class ExportedModule : public Module, public AfterMove {
 public:
  ExportedModule(std::string type, std::shared_ptr<const Symbols> symbols) : Module(std::move(type)), symbols_(std::move(symbols)) {}
  /// One for each call in the program.
  int add_frame(std::shared_ptr<const ExportedFrame> frame);
  std::size_t frames() const { return frames_.size(); }
  /// A tensor that is neither parameter nor buffer.
  void add_constant(Tensor constant) { constants_.push_back(std::move(constant)); }
  void moved() override;

 protected:
  /// The arguments are the frame's inputs, in order; a module that is called more than once takes the frame's number before them.
  Value forward(const Values& arguments, const KeywordArguments& keywords) override;
  /// What a hook makes of the result of the module's forward.
  virtual Value hooked(const Values& /*arguments*/, Value result) { return result; }

 private:
  Value run(const ExportedFrame& frame, const Value* arguments, std::size_t count) const;
  Value evaluate(const ExportedArgument& argument, const Values& frame) const;
  Value perform(const ExportedStep& step, const Values& frame) const;
  Value builtin(const ExportedStep& step, const Values& arguments) const;
  Value unknown(const ExportedStep& step, const Values& arguments) const;
  Value repeated(const ExportedStep& step, const Values& arguments) const;

  std::shared_ptr<const Symbols> symbols_;
  std::vector<std::shared_ptr<const ExportedFrame>> frames_;
  Tensors constants_;
};

/// torch.nn.Linear, to which an adapter may be added.
class ExportedLinear final : public ExportedModule, public Adaptable {
 public:
  using ExportedModule::ExportedModule;

 protected:
  Value hooked(const Values& arguments, Value result) override;
};
/// torch.nn.Embedding, whose output may be made to require grad.
class ExportedEmbedding final : public ExportedModule, public InputEmbedding {
 public:
  using ExportedModule::ExportedModule;

 protected:
  Value hooked(const Values& arguments, Value result) override;
};

/// A program that holds its own backward pass: one call gives the results and then the gradients of parameters, which the loss's node hands
/// over.
class ExportedJointModel final : public Model {
 public:
  Outcome forward(const Tensors& batch) override;
  bool computes_loss() const override { return true; }

  std::size_t results = 1, loss = 0;  ///< how many values come before the gradients, and which of them is the loss
  Tensors parameters;                 ///< whose gradients these are; none in inference
};

/// Whether a target that is no aten op is known: sizes, assertions and arithmetic of exported programs.
bool is_exported_builtin(const std::string& target);

}  // namespace memest::nn
