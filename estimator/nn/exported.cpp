#include "nn/exported.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <span>

#include "base/error.h"
#include "base/text.h"
#include "fake/autograd.h"
#include "nn/custom.h"
#include "nn/layer.h"
#include "ops/copy.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

/// A region of a frame: with torch.no_grad(), with torch.autocast(...).
struct ExportedRegion {
  explicit ExportedRegion(const ExportedStep& step) {
    if (step.kind == ExportedStep::Kind::grad_mode)
      grad = std::make_unique<GradMode>(step.flag);
    else
      autocast = std::make_unique<AutocastContext>(step.flag, step.dtype);
  }
  std::unique_ptr<GradMode> grad;
  std::unique_ptr<AutocastContext> autocast;
};
/// The innermost is left first.
struct ExportedRegions {
  ~ExportedRegions() {
    while (!open.empty()) open.pop_back();
  }
  std::vector<ExportedRegion> open;
};

const Values* items_of(const Value& v) {
  auto* l = std::get_if<std::shared_ptr<List>>(&v);
  return l ? &(*l)->items : nullptr;
}

const Value& at(const Values& arguments, std::size_t i) {
  if (i >= arguments.size()) throw Error(fmt::format("it needs {} arguments, {} were given", i + 1, arguments.size()));
  return arguments[i];
}
Tensor tensor_at(const Values& arguments, std::size_t i) {
  const Value& v = at(arguments, i);
  if (auto* t = std::get_if<Tensor>(&v)) return *t;
  throw Error("expected a tensor, found " + describe(v));
}
I integer_at(const Values& arguments, std::size_t i) { return Unbox<I>::from(at(arguments, i)); }
double real_at(const Values& arguments, std::size_t i) { return Unbox<double>::from(at(arguments, i)); }

using Builtin = Value (*)(const Values&);

Value size_of(const Values& a) {
  Tensor x = tensor_at(a, 0);
  if (a.size() > 1 && x.dim() == 0) throw Error("a size of a tensor without dimensions");
  return a.size() > 1 ? Value(x.size(integer_at(a, 1))) : list_of(x.sizes());
}
Value stride_of(const Values& a) {
  Tensor x = tensor_at(a, 0);
  if (a.size() > 1 && x.dim() == 0) throw Error("a stride of a tensor without dimensions");
  return a.size() > 1 ? Value(I{x.strides()[wrap_dim(integer_at(a, 1), x.dim())]}) : list_of(x.strides());
}
Value nothing(const Values&) { return None{}; }
template <class F>
Value compared(const Values& a, F f) {
  return f(real_at(a, 0), real_at(a, 1));
}
Value whole(double x) {
  if (!(x > -9.2e18 && x < 9.2e18)) throw Error(fmt::format("{} is no integer of 64 bits", x));
  return I(x);
}
bool both_int(const Values& a) { return std::holds_alternative<I>(at(a, 0)) && std::holds_alternative<I>(at(a, 1)); }

/// What exported programs call beside aten ops (torch/_export/serde/serialize.py: _SYM_OPS; torch/_export/passes).
const std::map<std::string, Builtin, std::less<>>& builtins() {
  static const std::map<std::string, Builtin, std::less<>> table{
      {"aten.sym_size.int", size_of},
      {"aten.sym_size.default", size_of},
      {"aten.sym_stride.int", stride_of},
      {"aten.sym_stride.default", stride_of},
      {"aten.sym_numel.default", [](const Values& a) -> Value { return tensor_at(a, 0).numel(); }},
      {"aten.sym_storage_offset.default", [](const Values& a) -> Value { return tensor_at(a, 0)->offset; }},
      {"aten.sym_is_contiguous.default", [](const Values& a) -> Value { return is_contiguous(tensor_at(a, 0)); }},
      {"aten.size.default", size_of},
      {"aten.size.int", size_of},
      {"aten._assert_async.msg", nothing},
      {"aten._assert_async.default", nothing},
      {"aten._assert_scalar.default", nothing},
      {"aten._assert_tensor_metadata.default", nothing},
      {"aten.sym_constrain_range.default", nothing},
      {"aten.sym_constrain_range_for_size.default", nothing},
      {"aten.lift_fresh.default", [](const Values& a) -> Value { return tensor_at(a, 0); }},
      // torch.tensor([...]) in a forward; a scalar stays on the host
      {"aten.lift_fresh_copy.default",
       [](const Values& a) -> Value {
         Tensor x = tensor_at(a, 0);
         return x.on_host() ? Value(x) : call_op("aten::clone", {x}, {});
       }},
      {"aten.detach_.default", [](const Values& a) -> Value { return tensor_at(a, 0); }},
      {"aten.type_as.default",
       [](const Values& a) -> Value {
         return call_op("aten::to", {at(a, 0), Value(tensor_at(a, 1).dtype())}, {});
       }},
      {"aten.requires_grad_.default", [](const Values& a) -> Value { return tensor_at(a, 0); }},
      {"operator.eq", [](const Values& a) { return compared(a, std::equal_to<>()); }},
      {"operator.ne", [](const Values& a) { return compared(a, std::not_equal_to<>()); }},
      {"operator.lt", [](const Values& a) { return compared(a, std::less<>()); }},
      {"operator.le", [](const Values& a) { return compared(a, std::less_equal<>()); }},
      {"operator.gt", [](const Values& a) { return compared(a, std::greater<>()); }},
      {"operator.ge", [](const Values& a) { return compared(a, std::greater_equal<>()); }},
      {"operator.and_", [](const Values& a) -> Value { return Unbox<bool>::from(at(a, 0)) && Unbox<bool>::from(at(a, 1)); }},
      {"operator.or_", [](const Values& a) -> Value { return Unbox<bool>::from(at(a, 0)) || Unbox<bool>::from(at(a, 1)); }},
      {"operator.not_", [](const Values& a) -> Value { return !Unbox<bool>::from(at(a, 0)); }},
      {"torch.sym_not", [](const Values& a) -> Value { return !Unbox<bool>::from(at(a, 0)); }},
      {"torch.sym_int", [](const Values& a) { return std::holds_alternative<I>(at(a, 0)) ? at(a, 0) : whole(std::trunc(real_at(a, 0))); }},
      {"torch.sym_float", [](const Values& a) -> Value { return real_at(a, 0); }},
      {"torch.sym_ite", [](const Values& a) { return Unbox<bool>::from(at(a, 0)) ? at(a, 1) : at(a, 2); }},
      {"torch.sym_max",
       [](const Values& a) -> Value {
         if (both_int(a)) return std::max(integer_at(a, 0), integer_at(a, 1));
         return std::max(real_at(a, 0), real_at(a, 1));
       }},
      {"torch.sym_min",
       [](const Values& a) -> Value {
         if (both_int(a)) return std::min(integer_at(a, 0), integer_at(a, 1));
         return std::min(real_at(a, 0), real_at(a, 1));
       }},
      {"torch._sym_sqrt", [](const Values& a) -> Value { return std::sqrt(real_at(a, 0)); }},
      {"math.sqrt", [](const Values& a) -> Value { return std::sqrt(real_at(a, 0)); }},
      {"math.log2", [](const Values& a) -> Value { return std::log2(real_at(a, 0)); }},
      {"math.ceil", [](const Values& a) { return whole(std::ceil(real_at(a, 0))); }},
      {"math.floor", [](const Values& a) { return whole(std::floor(real_at(a, 0))); }},
      {"math.trunc", [](const Values& a) { return whole(std::trunc(real_at(a, 0))); }},
      {"round", [](const Values& a) { return whole(std::nearbyint(real_at(a, 0))); }},
  };
  return table;
}

const OpRecord* view_record() {
  static const OpRecord* record = find_op("aten::view");
  return record;
}
bool can_view(T x, Dims sizes) {
  I known = 1;
  int inferred = -1;
  for (int d = 0; d < int(sizes.size()); ++d) {
    if (sizes[d] == -1)
      inferred = d;
    else
      known = checked_mul(known, sizes[d]);
  }
  if (inferred >= 0) sizes[inferred] = known ? x.numel() / known : 0;
  return view_strides(x.sizes(), x.strides(), sizes).has_value();
}

/// What the region of a higher-order op gives, as a list of its outputs.
Values outputs_of(Value result) {
  if (auto* items = items_of(result)) return *items;
  return {std::move(result)};
}

}  // namespace

bool is_exported_builtin(const std::string& target) { return builtins().contains(target); }

Dims ExportedTensor::evaluate(const Symbols& symbols) const {
  Dims dims;
  for (auto& size : sizes) dims.push_back(size.evaluate(symbols));
  for (I size : dims)
    if (size < 0) throw Error(fmt::format("the sizes {} are negative", to_string(dims)));
  dims.numel();
  return dims;
}

int ExportedModule::add_frame(std::shared_ptr<const ExportedFrame> frame) {
  frames_.push_back(std::move(frame));
  return int(frames_.size()) - 1;
}

void ExportedModule::moved() {
  CategoryScope scope(Category::buffer);
  Entered entered(*this);
  for (auto& x : constants_)
    if (x->storage->host && x.dim() > 0) x->storage = ops::to_device(x, MemoryFormat::preserve)->storage;
}

Value ExportedModule::forward(const Values& arguments, const KeywordArguments& keywords) {
  if (!keywords.empty()) throw Error("a module of an exported program takes no keyword arguments");
  // What evaluation leaves out (a dropout) gives its input.
  if (frames_.empty()) return arguments.size() == 1 ? arguments[0] : Value(None{});
  std::size_t frame = 0, first = 0;
  if (frames_.size() > 1 && !arguments.empty() && std::holds_alternative<I>(arguments[0])) {
    frame = std::size_t(std::get<I>(arguments[0]));
    first = 1;
  }
  const ExportedFrame& f = *frames_.at(frame);
  if (arguments.size() - first != f.inputs.size())
    throw Error(fmt::format("it takes {} inputs, {} were given", f.inputs.size(), arguments.size() - first));
  return hooked(arguments, run(f, arguments.data() + first, arguments.size() - first));
}

Value ExportedModule::evaluate(const ExportedArgument& a, const Values& frame) const {
  switch (a.form) {
    case ExportedArgument::Form::constant: return a.constant;
    case ExportedArgument::Form::value: return frame[std::size_t(a.slot)];
    case ExportedArgument::Form::training:
      if (training) return a.constant;
      if (std::holds_alternative<bool>(a.constant)) return false;
      return 0.0;
    case ExportedArgument::Form::list: {
      Values items;
      items.reserve(a.items.size());
      for (auto& item : a.items) items.push_back(evaluate(item, frame));
      return make_list(std::move(items));
    }
    case ExportedArgument::Form::dict: {
      auto dict = std::make_shared<Dict>();
      for (std::size_t i = 0; i < a.items.size(); ++i) dict->items.emplace_back(a.keys[i], evaluate(a.items[i], frame));
      return dict;
    }
  }
  return None{};
}

Value ExportedModule::run(const ExportedFrame& f, const Value* arguments, std::size_t count) const {
  ExportedRegions regions;
  Values frame(std::size_t(f.slots));
  for (std::size_t i = 0; i < std::min(count, f.inputs.size()); ++i) frame[std::size_t(f.inputs[i])] = arguments[i];
  for (auto& step : f.steps) {
    switch (step.kind) {
      case ExportedStep::Kind::grad_mode:
      case ExportedStep::Kind::autocast: regions.open.emplace_back(step); continue;
      case ExportedStep::Kind::leave:
        if (!regions.open.empty()) regions.open.pop_back();
        continue;
      default: break;
    }
    Value result;
    try {
      result = perform(step, frame);
    } catch (Error& e) {
      if (step.kind != ExportedStep::Kind::call || !e.has_place()) e.within(step.where);
      throw;
    }
    // The operands go first, then the names are bound, and with that their old values go.
    for (int slot : step.dead) frame[std::size_t(slot)] = None{};
    if (step.outputs.size() == 1 && !step.list) {
      if (step.outputs[0] >= 0) frame[std::size_t(step.outputs[0])] = std::move(result);
    } else if (!step.outputs.empty()) {
      const Values* items = items_of(result);
      if (!items || items->size() < step.outputs.size())
        throw Error(fmt::format("it gives {} where the program expects {} values", describe(result), step.outputs.size()))
            .within(step.where);
      for (std::size_t i = 0; i < step.outputs.size(); ++i)
        if (step.outputs[i] >= 0) frame[std::size_t(step.outputs[i])] = (*items)[i];
    }
  }
  return evaluate(f.output, frame);
}

Value ExportedModule::perform(const ExportedStep& step, const Values& frame) const {
  Values arguments;
  arguments.reserve(step.arguments.size());
  for (auto& a : step.arguments) arguments.push_back(evaluate(a, frame));
  using Kind = ExportedStep::Kind;
  if (step.kind == Kind::call) {
    if (step.module->frames() > 1) arguments.insert(arguments.begin(), I{step.frame});
    return step.module->call(arguments);
  }
  std::optional<Entered> entered;
  if (step.module) entered.emplace(*step.module);
  KeywordArguments keywords;
  for (auto& [key, a] : step.keywords) keywords.emplace_back(key, evaluate(a, frame));
  switch (step.kind) {
    case Kind::op: {
      // The device that it was exported on may have laid the tensor out otherwise: the eager code then made it contiguous first.
      if (step.record == view_record())
        if (Tensor x = tensor_at(arguments, 0); !is_contiguous(x) && arguments.size() > 1 && !can_view(x, Unbox<Dims>::from(arguments[1])))
          arguments[0] = call_op("aten::contiguous", {x}, {});
      std::string problem;
      auto bound = bind_arguments(step.record->schema(), arguments, keywords, problem);
      if (!bound) throw Error(problem, step.record->info.schema);
      arguments.clear();
      return step.record->call(*bound);
    }
    case Kind::overloads: return call_op(step.target, arguments, keywords);
    case Kind::function: return call_function(step.target, arguments, keywords);
    case Kind::builtin:
      for (auto& [key, v] : keywords) arguments.push_back(v);
      return builtin(step, arguments);
    case Kind::cond: {
      const bool truth = !arguments.empty() && std::holds_alternative<bool>(arguments[0]) ? std::get<bool>(arguments[0]) : step.flag;
      return run(*step.bodies.at(truth ? 0 : 1), arguments.data() + 1, arguments.size() - 1);
    }
    case Kind::map:
    case Kind::scan:
    case Kind::while_loop: return repeated(step, arguments);
    case Kind::mutate: {
      Tensor target = tensor_at(arguments, 0), value = tensor_at(arguments, 1);
      // self.buffer = value: the module's own code binds the name; the program copies
      if (step.flag && !value.requires_grad() && !value.on_host() && value.dtype() == target.dtype()) {
        value->storage->categorize(target->storage->category);
        target->storage = value->storage;
        return None{};
      }
      NoGrad guard;
      ops::copy_(target, value, false);
      return None{};
    }
    default:
      for (auto& [key, v] : keywords) arguments.push_back(v);
      return unknown(step, arguments);
  }
}

Value ExportedModule::builtin(const ExportedStep& step, const Values& arguments) const {
  return builtins().find(step.target)->second(arguments);
}

/// torch._higher_order_ops: map_dense and generic_scan run the body for each slice along the first dimension and stack the results;
/// while_loop runs until its condition fails, which only the data knows.
Value ExportedModule::repeated(const ExportedStep& step, const Values& arguments) const {
  const ExportedFrame& body = *step.bodies.back();
  if (step.kind == ExportedStep::Kind::while_loop) {
    runtime().diagnostics.add(
        {Diagnostic::Severity::warning, "data-dependent", "a while_loop runs as often as its data says; assumed: once", step.where, ""});
    return run(body, arguments.data(), arguments.size());
  }
  // arguments: [carried values (scan only)], the sliced tensors, what each run takes
  if (arguments.size() < 3) throw Error("a map or scan takes three lists");
  Values carry = outputs_of(arguments[0]);
  const Values sliced = outputs_of(arguments[1]), extra = outputs_of(arguments[2]);
  Tensors whole;
  for (auto& v : sliced) whole.push_back(std::get<Tensor>(v));
  if (whole.empty() || whole[0].dim() == 0) throw Error("a map or scan goes over the first dimension of a tensor");
  std::vector<Tensors> rows;
  const I count = whole[0].size(0);
  const std::size_t carried = carry.size();
  for (I i = 0; i < count; ++i) {
    Values given = carry;
    for (auto& x : whole) given.emplace_back(ops::select(x, 0, i));
    given.insert(given.end(), extra.begin(), extra.end());
    Values made = outputs_of(run(body, given.data(), given.size()));
    if (made.size() < carried) throw Error("the body of a scan returns the carried values first");
    carry.assign(made.begin(), made.begin() + std::ptrdiff_t(carried));
    Tensors row;
    for (std::size_t k = carried; k < made.size(); ++k) row.push_back(Unbox<Tensor>::from(made[k]));
    rows.push_back(std::move(row));
  }
  Values results = carry;
  for (std::size_t k = 0; !rows.empty() && k < rows[0].size(); ++k) {
    Tensors column;
    for (auto& row : rows) column.push_back(row[k]);
    results.push_back(call_op("aten::stack", {list_of(column), I{0}}, {}));
  }
  return make_tuple(std::move(results));
}

/// An op that memest does not know, of which the program gives the outputs' sizes.
Value ExportedModule::unknown(const ExportedStep& step, const Values& arguments) const {
  const std::string name = step.target.substr(0, 80), near = near_functions(name.substr(0, name.rfind('.')));
  report_unknown({Diagnostic::Severity::warning, "unknown-op", fmt::format("memest does not know the op {}", name), step.where, near},
                 "it saves its inputs and what it returns");
  CustomCall call;
  call.op = runtime().trace.intern(step.target);
  call.assumed = true;
  for (auto& a : arguments) collect_tensors(a, call.inputs);
  call.saves_input.assign(call.inputs.size(), true);
  for (auto& t : step.made) call.outputs.push_back({t.evaluate(*symbols_), t.dtype, true});
  const Tensors made = call_custom(call);
  if (step.outputs.size() == 1 && !step.list) return made.empty() ? Value(None{}) : Value(made[0]);
  Values values;
  std::size_t next = 0;
  for (int output : step.outputs) values.push_back(output >= 0 && next < made.size() ? Value(made[next++]) : Value(None{}));
  return make_tuple(std::move(values));
}

Outcome ExportedJointModel::forward(const Tensors& batch) {
  if (runtime().observer && !parameters.empty())
    throw Error("a probe cannot train a program that holds its own backward pass", "export the module alone");
  Values arguments(batch.begin(), batch.end()), values;
  {
    NoGrad guard;
    values = outputs_of(root->call(arguments));
  }
  if (values.size() < results + parameters.size()) throw Error("the program gives fewer values than its signature lists");
  Outcome outcome;
  auto gradients = std::make_shared<Tensors>();
  for (std::size_t i = 0; i < parameters.size(); ++i) gradients->push_back(Unbox<Tensor>::from(values[results + i]));
  values.resize(results);
  outcome.loss = Unbox<Tensor>::from(values.at(loss));
  auto fn = node("JointBackward", std::span<const Tensor>(parameters), {}, [gradients](Backward& w, const Tensors&) {
    for (std::size_t i = 0; i < w.out.size(); ++i)
      if (w.needs(int(i))) w.out[i] = std::move((*gradients)[i]);
    gradients->clear();
  });
  if (fn) fn.outputs({outcome.loss});
  outcome.out = results == 1 ? values[0] : make_tuple(std::move(values));
  return outcome;
}

Value ExportedLinear::hooked(const Values& arguments, Value result) {
  if (!std::holds_alternative<Tensor>(result) || arguments.empty() || !std::holds_alternative<Tensor>(arguments.back())) return result;
  return to_value(adapted(std::get<Tensor>(arguments.back()), std::move(std::get<Tensor>(result))));
}
Value ExportedEmbedding::hooked(const Values&, Value result) {
  return std::holds_alternative<Tensor>(result) ? to_value(InputEmbedding::hooked(std::move(std::get<Tensor>(result)))) : result;
}

}  // namespace memest::nn
