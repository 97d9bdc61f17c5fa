// A program that memest recorded (ops/recorder.h), run with real tensors: each call goes through the dispatcher, so that LibTorch itself
// decomposes it, chooses its kernels, and saves for backward what it saves.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "torch/memory.h"
#include "torch/plugin.h"
#include "torch/region.h"

namespace memest::plugin {

class Player {
 public:
  /// Reads {"states", "instructions", "modules"}. `autocast`: the type of calls under autocast.
  Player(const Json& program, c10::Device device, Memory& memory, std::optional<c10::ScalarType> autocast);
  /// Makes the states.
  void load();

  struct Step {
    std::string phase;
    int step, micro;
  };
  struct Backward {
    int loss;
  };
  /// Runs on to the next mark; none at the end.
  const std::variant<Step, Backward>* next();

  const at::Tensor& value(int id) const { return values_.at(std::size_t(id)); }
  /// Tensors of a kind: "parameter", "buffer", "input". Inputs are those that live.
  std::vector<at::Tensor> of(const std::string& category) const;
  /// Of the call that runs, or failed; "" outside of calls.
  std::string running_op() const { return running_ ? running_->op.schema().name() : ""; }
  std::string running_module() const { return running_ ? running_->module : ""; }

 private:
  struct Make {
    int value;
    std::string category;
    std::vector<std::int64_t> sizes, strides;
    c10::ScalarType dtype;
    bool requires_grad, host;
    std::int64_t storage = -1, bytes = 0, offset = 0;  ///< -1: of its own
  };
  struct Argument {
    enum class Kind { constant, value, values, optional_values } kind;
    c10::IValue constant;
    std::vector<int> ids;  ///< -1: none
  };
  struct Result {
    int value = -1;
    std::vector<Result> items;
  };
  struct Call {
    c10::OperatorHandle op;
    std::vector<Argument> arguments;
    std::vector<Result> results;
    std::string module;
    bool grad, autocast, host;
    bool indexes;  ///< integers among its arguments are places in another
  };
  struct Drop {
    std::vector<int> values;
  };
  struct ClearAutocast {};
  struct BeginRegion {
    std::size_t end;        ///< the instruction that ends it
    std::vector<int> from;  ///< values that it takes from outside
  };
  struct EndRegion {};
  using Mark = std::variant<Step, Backward>;
  using Instruction = std::variant<Make, Call, Drop, Mark, ClearAutocast, BeginRegion, EndRegion>;
  using Values = std::vector<at::Tensor>;

  Make read_make(const Json& j) const;
  Call read_call(const Json& j, const std::vector<std::string>& modules);
  Argument read_argument(const Json& j, const c10::Argument& argument, const std::string& op, bool host);
  c10::IValue read_constant(const Json& j, const c10::TypePtr& type, const std::string& where);
  Result read_result(const Json& j) const;
  at::Tensor number(const std::string& dtype, const std::string& op);

  void read_region(std::size_t begin, std::size_t end);

  void set_autocast(bool on) const;
  void make(const Make& m);
  void call(const Call& c, Values& values);
  static void assign(const Result& result, const c10::IValue& v, Values& values);
  void begin_region(const BeginRegion& region);
  void run_again(std::size_t begin, std::size_t end, Values values);

  c10::Device device_;
  Memory& memory_;
  std::optional<c10::ScalarType> autocast_;
  std::vector<Make> states_;
  std::vector<Instruction> instructions_;
  std::size_t next_ = 0;
  Values values_;
  std::unique_ptr<Region> region_;
  std::vector<std::string> categories_;          ///< of values that were made
  std::map<std::int64_t, at::Tensor> storages_;  ///< that states share
  const Call* running_ = nullptr;
};

}  // namespace memest::plugin
