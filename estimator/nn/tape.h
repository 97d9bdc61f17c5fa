// A model known by the aten calls of one run of it, with the values that die after each: what a TorchScript interpreter did. There are no
// frames; a value dies where the interpreter let go of it. The modules hold the parameters and name the calls in the trace.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nn/graph.h"
#include "nn/model.h"
#include "nn/module.h"
#include "nn/moved.h"
#include "ops/op.h"

namespace memest::nn {

struct TapeCall {
  std::string target;                ///< "aten::add.Tensor"
  const OpRecord* record = nullptr;  ///< null where memest does not know that overload
  std::vector<GraphArgument> args;
  std::vector<std::pair<std::string, GraphArgument>> kwargs;
  std::vector<GraphArgument> results;  ///< for each return: a value, a list of values, or none
  std::vector<int> dead;               ///< slots to clear
  const Module* module = nullptr;
};

struct Tape {
  struct Described {
    Dims sizes;
    DType dtype = DType::float32;
  };
  std::vector<Described> values;  ///< of each slot
  std::vector<TapeCall> calls;
  std::vector<int> inputs;                      ///< slots of the arguments
  std::vector<std::pair<int, Tensor>> tensors;  ///< slots of parameters, buffers and constants
  GraphArgument output;
};

/// A module that only holds tensors and other modules.
class TapePart : public Module {
 public:
  using Module::Module;

 protected:
  Value forward(const Values&, const KeywordArguments&) override;
};

/// The root: runs a tape.
class TapeRoot final : public TapePart, public AfterMove {
 public:
  using TapePart::TapePart;
  void play(std::shared_ptr<const Tape> tape) { tape_ = std::move(tape); }
  /// A tensor that is neither parameter nor buffer, moved with the model.
  void add_constant(Tensor x) { constants_.push_back(std::move(x)); }
  void moved() override;

 protected:
  Value forward(const Values& arguments, const KeywordArguments& keywords) override;

 private:
  Value run(const TapeCall& call, const Values& frame) const;
  Value assumed(const TapeCall& call, const Values& arguments, const KeywordArguments& keywords) const;

  std::shared_ptr<const Tape> tape_;
  Tensors constants_;
};

/// One tape for each set of input shapes and mode, recorded where it is needed.
class TapeModel final : public Model {
 public:
  using Record = std::function<std::shared_ptr<const Tape>(const std::vector<Dims>& inputs, bool training)>;
  TapeModel(std::shared_ptr<TapeRoot> tape_root, Record record) : tape_root_(tape_root), record_(std::move(record)) {
    root = std::move(tape_root);
  }
  /// The first one, which the reader recorded.
  void add(const std::vector<Dims>& inputs, bool training, std::shared_ptr<const Tape> tape);
  Outcome forward(const Tensors& batch) override;

 private:
  using Key = std::pair<std::vector<std::vector<std::int64_t>>, bool>;
  static Key key(const std::vector<Dims>& inputs, bool training);

  std::shared_ptr<TapeRoot> tape_root_;
  Record record_;
  std::map<Key, std::shared_ptr<const Tape>> tapes_;
};

}  // namespace memest::nn
