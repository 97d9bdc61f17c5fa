// A run's forward as a flat program: tensors that are made, calls of aten ops as the model writes them, and the instant at which the last
// name of each value goes. What an op is composed of, and what autograd saves, is left to whoever runs the program (memest probe).
#pragma once
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "fake/observer.h"
#include "ops/op.h"

namespace memest {

/// Values are numbered from 0 over the whole program. In arguments and results a tensor is {"value": N}, and a Python number that stands
/// for a tensor {"number": its dtype}.
struct Program {
  struct Make {  ///< uninitialised
    int value;
    std::string name;  ///< of a parameter or a buffer
    Dims sizes, strides;
    DType dtype;
    Category category;  ///< parameter, buffer, input or another
    bool requires_grad, host;
    BlockId block;  ///< of the storage: states load in this order, and may share one
    Bytes storage_bytes;
    std::int64_t offset;  ///< in the storage, in elements
  };
  struct Call {
    const OpRecord* op;
    Values arguments;  ///< as the schema has them, ignored ones left out
    Value result;
    ModuleId module;
    bool grad, autocast, host;  ///< grad mode; whether autocast is on; the results lie on the host
  };
  struct Drop {
    std::vector<int> values;
  };
  struct Step {
    Phase phase;
    int step, micro;
  };
  struct Backward {
    int loss;
  };
  struct ClearAutocast {};  ///< the casts that it keeps go
  struct Region {           ///< of a checkpoint: begins or ends; one within another is part of it
    bool begins;
    std::vector<int> holds{};  ///< values that have no name any more when backward begins, but live in the region's closure
  };
  using Instruction = std::variant<Make, Call, Drop, Step, Backward, ClearAutocast, Region>;

  std::vector<Make> states;  ///< parameters, buffers and other tensors that are there before the first step
  std::vector<Instruction> instructions;
  std::vector<ModuleInfo> modules;
};

/// Records what the current runtime runs, from its construction to finish().
class Recorder final : Observer, CallObserver {
 public:
  Recorder();
  ~Recorder() override;
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  Program finish();

 private:
  void made(T x) override;
  void died(const TensorImpl* x) override;
  void phase(Phase phase, int step, int micro) override;
  void state(const std::string& name, T x) override;
  void begin_region(const memest::Region& region) override;
  void end_region() override;
  void backward(T loss) override;
  Ref<SavedTensorHooks> hooks() override;
  bool begin() override;
  void arguments(const OpRecord& op, const Values& values) override;
  void end(const Value& result) override;
  void autocast_ended() override { program_.instructions.emplace_back(Program::ClearAutocast{}); }

  int add(T x);
  int id_of(T x);
  Value encoded(const Value& v);
  void drop(const std::vector<int>& values);
  Program::Make make(T x, int value, const std::string& name = {}) const;

  Runtime& rt_;
  Program program_;
  int values_ = 0, depth_ = 0, regions_ = 0;
  bool loaded_ = false;
  std::unordered_map<const TensorImpl*, int> ids_;
  std::unordered_set<const TensorImpl*> shared_;               ///< made outside of ops over another's storage
  std::unordered_map<const TensorImpl*, const char*> unused_;  ///< made outside of ops, and the name that stood there for one
  std::vector<int> dead_;                                      ///< in the call that runs
  std::vector<std::pair<std::size_t, memest::Region>>
      closures_;  ///< of regions whose backward is still to come, with their place in the program
};

}  // namespace memest
