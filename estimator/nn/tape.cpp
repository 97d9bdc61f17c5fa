#include "nn/tape.h"

#include <fmt/format.h>

#include "base/error.h"
#include "fake/runtime.h"
#include "nn/custom.h"
#include "ops/copy.h"

namespace memest::nn {
namespace {

Value evaluate(const GraphArgument& a, const Values& frame) {
  if (a.form == GraphArgument::Form::constant) return a.constant;
  if (a.form == GraphArgument::Form::value) return frame[std::size_t(a.slot)];
  Values items;
  for (auto& item : a.items) items.push_back(evaluate(item, frame));
  return make_list(std::move(items));
}

/// Binds what a call gave; values that die at once are not bound.
void bind(const GraphArgument& to, Value&& value, Values& frame, const std::vector<int>& dead) {
  if (to.form == GraphArgument::Form::value) {
    for (int slot : dead)
      if (slot == to.slot) return;
    frame[std::size_t(to.slot)] = std::move(value);
  } else if (to.form == GraphArgument::Form::list) {
    auto* list = std::get_if<std::shared_ptr<List>>(&value);
    if (!list || (*list)->items.size() < to.items.size())
      throw Error(fmt::format("the call gives {}, LibTorch gave a list of {}", describe(value), to.items.size()));
    for (std::size_t i = 0; i < to.items.size(); ++i) bind(to.items[i], std::move((*list)->items[i]), frame, dead);
  }
}

}  // namespace

Value TapePart::forward(const Values&, const KeywordArguments&) { throw Error(type() + " is not called by itself"); }

void TapeRoot::moved() {
  CategoryScope scope(Category::buffer);
  for (auto& x : constants_)
    if (x->storage->host) x->storage = ops::to_device(x, MemoryFormat::preserve)->storage;
}

Value TapeRoot::forward(const Values& arguments, const KeywordArguments&) {
  if (!tape_) return None{};
  const Tape& tape = *tape_;
  if (arguments.size() != tape.inputs.size())
    throw Error(fmt::format("the model takes {} inputs, {} were given", tape.inputs.size(), arguments.size()));
  Values frame(tape.values.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) frame[std::size_t(tape.inputs[i])] = arguments[i];
  for (auto& [slot, x] : tape.tensors) frame[std::size_t(slot)] = x;
  for (auto& call : tape.calls) {
    Module::Entered entered(*call.module);
    try {
      Value result = run(call, frame);
      for (int slot : call.dead) frame[std::size_t(slot)] = None{};
      if (call.results.size() == 1) {
        bind(call.results[0], std::move(result), frame, call.dead);
      } else if (auto* list = std::get_if<std::shared_ptr<List>>(&result)) {
        for (std::size_t i = 0; i < call.results.size() && i < (*list)->items.size(); ++i)
          bind(call.results[i], std::move((*list)->items[i]), frame, call.dead);
      }
    } catch (Error& e) {
      throw e.within(fmt::format("{} in {}", call.target, call.module->path().empty() ? "the model itself" : call.module->path()));
    }
  }
  return evaluate(tape.output, frame);
}

Value TapeRoot::run(const TapeCall& call, const Values& frame) const {
  Values arguments;
  arguments.reserve(call.args.size());
  for (auto& a : call.args) arguments.push_back(evaluate(a, frame));
  KeywordArguments keywords;
  for (auto& [name, a] : call.kwargs) keywords.emplace_back(name, evaluate(a, frame));
  if (call.record) {
    std::string problem;
    if (auto bound = bind_arguments(call.record->schema(), arguments, keywords, problem)) {
      arguments.clear();
      return call.record->call(*bound);
    }
  }
  const std::string name = call.target.substr(0, call.target.find('.'));
  if (!find_ops(name).empty()) return call_op(name, arguments, keywords);
  return assumed(call, arguments, keywords);
}

Value TapeRoot::assumed(const TapeCall& call, const Values& arguments, const KeywordArguments& keywords) const {
  CustomCall custom;
  custom.op = runtime().trace.intern(call.target);
  custom.assumed = true;
  for (auto& a : arguments) collect_tensors(a, custom.inputs);
  for (auto& [name, a] : keywords) collect_tensors(a, custom.inputs);
  custom.saves_input.assign(custom.inputs.size(), true);
  auto add = [&](const GraphArgument& result) {
    visit_values(result, [&](int slot) {
      auto& described = tape_->values[std::size_t(slot)];
      custom.outputs.push_back({described.sizes, described.dtype, true});
    });
  };
  for (auto& result : call.results) add(result);
  report_unknown(
      {Diagnostic::Severity::warning, "unknown-op", fmt::format("memest does not know the op {}", call.target), call.module->path(), ""},
      "it saves its inputs and what it returns, whose sizes LibTorch tells");
  Tensors made = call_custom(custom);
  std::size_t next = 0;
  auto value_of = [&](const GraphArgument& result) -> Value {
    if (result.form == GraphArgument::Form::value) return made[next++];
    if (result.form != GraphArgument::Form::list) return None{};
    Values items;
    for (std::size_t i = 0; i < result.items.size(); ++i) items.emplace_back(made[next++]);
    return make_list(std::move(items));
  };
  if (call.results.size() == 1) return value_of(call.results[0]);
  Values items;
  for (auto& result : call.results) items.push_back(value_of(result));
  return make_tuple(std::move(items));
}

TapeModel::Key TapeModel::key(const std::vector<Dims>& inputs, bool training) {
  Key key{{}, training};
  for (auto& sizes : inputs) key.first.emplace_back(sizes.begin(), sizes.end());
  return key;
}
void TapeModel::add(const std::vector<Dims>& inputs_sizes, bool training, std::shared_ptr<const Tape> tape) {
  tapes_[key(inputs_sizes, training)] = std::move(tape);
}

Outcome TapeModel::forward(const Tensors& batch) {
  std::vector<Dims> sizes;
  for (auto& x : batch) sizes.push_back(x.sizes());
  auto& tape = tapes_[key(sizes, root->training)];
  if (!tape) tape = record_(sizes, root->training);
  tape_root_->play(tape);
  return Model::forward(batch);
}

}  // namespace memest::nn
