// A TorchScript file, run once on the meta device by LibTorch's own interpreter: loops and branches are resolved, every value is typed, and
// each aten call is written down above autograd and above the ops that it is composed of.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/interpreter.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <unordered_map>

#include "torch/plugin.h"
#include "torch/script_file.h"

namespace memest::plugin {
namespace {

using c10::IValue;

constexpr auto kMode = c10::DispatchKey::TESTING_ONLY_GenericMode;  // above every other key: it sees calls before they are decomposed
constexpr std::size_t kMostCalls = 2'000'000, kMostAnswers = 10'000;

constexpr const char* kTypesHint = "inputs have the type of the weights unless --input says another, as in ids=4x16:int64";

/// A module of the file: where its calls are booked.
struct Place {
  std::string path, name, type;
  std::vector<std::size_t> children;
};

class Recorder {
 public:
  explicit Recorder(const ScriptFile& file) {
    collect(file.module, "", "");
    tape_["nodes"] = Json::array();
    tape_["diagnostics"] = Json::array();
  }

  /// A tensor from outside: an input, or a constant of the script at its first use.
  int add(const at::Tensor& x) {
    const int id = int(values_.size());
    values_.push_back({{"shape", x.sizes().vec()}, {"dtype", name_of(x.scalar_type())}});
    if (!x.is_contiguous()) values_.back()["strides"] = x.strides().vec();
    kept_.emplace_back(x.getIntrusivePtr());
    ids_[x.unsafeGetTensorImpl()] = id;
    return id;
  }

  void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    c10::impl::ExcludeDispatchKeyGuard outside(kMode);
    const c10::FunctionSchema& schema = op.schema();
    const std::size_t count = schema.arguments().size(), first = stack->size() - count;
    bool on_device = false;
    for (std::size_t i = first; i < stack->size(); ++i) {
      IValue& v = (*stack)[i];
      if (v.isDevice()) v = c10::Device(c10::kMeta), on_device = true;  // everything is on the one device
      each_tensor(v, [&](const at::Tensor& x) { on_device |= x.is_meta(); });
    }
    if (!on_device) return op.callBoxed(stack);  // a host's tensor, with real values
    for (std::size_t i = first; i < stack->size(); ++i) move_to_device((*stack)[i]);
    if (answers(schema, stack)) return;

    bury();
    if (tape_["nodes"].size() > kMostCalls)
      throw BadRequest{"the method calls more than " + std::to_string(kMostCalls) + " operators",
                       "a loop of it does not end, or depends on data"};
    Json node{{"op", schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name()}, {"module", module()}};
    node["args"] = Json::array();
    for (std::size_t i = 0; i < count; ++i) {
      const c10::Argument& a = schema.arguments()[i];
      Json value = argument((*stack)[first + i], a.real_type());
      if (!a.kwarg_only())
        node["args"].push_back(std::move(value));
      else if (!value.is_null() && a.name() != "pin_memory" && a.name() != "non_blocking")
        node["kwargs"][a.name()] = std::move(value);
    }
    {
      at::AutoDispatchBelowADInplaceOrView below;  // no graph: a value dies where the interpreter lets go of it
      op.callBoxed(stack);
    }
    Json results = Json::array();
    bool any = false;
    for (std::size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
      each_tensor((*stack)[i], [&](const at::Tensor&) { any = true; });
      results.push_back(result((*stack)[i]));
    }
    if (!any && !schema.returns().empty()) return;  // a number: sizes, strides
    node["results"] = std::move(results);
    tape_["nodes"].push_back(std::move(node));
  }

  Json finish(const IValue& output) {
    bury();
    tape_["output"] = result(output);
    tape_["values"] = values_;
    return std::move(tape_);
  }

  Json& tape() { return tape_; }

 private:
  template <class F>
  static void each_tensor(const IValue& v, const F& f) {
    if (v.isTensor()) {
      if (v.toTensor().defined()) f(v.toTensor());
    } else if (v.isTensorList()) {
      for (const at::Tensor& x : v.toTensorVector())
        if (x.defined()) f(x);
    } else if (v.isList()) {
      for (const IValue& item : v.toListRef()) each_tensor(item, f);
    }
  }

  /// Tensors of the host that meet ones of the device: a constant of the file, or one that the script made without naming a device.
  void move_to_device(IValue& v) {
    auto moved = [this](const at::Tensor& x) {
      if (!x.defined() || x.is_meta() || x.dim() == 0) return x;
      auto& [host, device] = moved_[x.unsafeGetTensorImpl()];
      if (!host.defined()) host = x, device = at::empty_strided(x.sizes(), x.strides(), x.options().device(c10::kMeta));
      return device;
    };
    if (v.isTensor()) {
      v = moved(v.toTensor());
    } else if (v.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& x : v.toTensorVector()) list.push_back(moved(x));
      v = list;
    } else if (v.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& x : v.toOptionalTensorVector()) list.push_back(x ? std::optional(moved(*x)) : x);
      v = list;
    }
  }

  /// What a tensor holds is not known: the question is answered with zero or false, and said so once a place.
  bool answers(const c10::FunctionSchema& schema, torch::jit::Stack* stack) {
    const std::string& name = schema.name();
    const bool number = name == "aten::item" || name == "aten::_local_scalar_dense";
    if (!number && name != "aten::is_nonzero" && name != "aten::equal" && name != "aten::allclose") return false;
    const at::Tensor x = stack->at(stack->size() - schema.arguments().size()).toTensor();
    IValue answer = false;
    if (number && x.is_floating_point()) answer = 0.0;
    if (number && !x.is_floating_point() && x.scalar_type() != c10::kBool) answer = 0;
    torch::jit::drop(*stack, schema.arguments().size());
    stack->push_back(answer);
    if (++answers_ > kMostAnswers) throw BadRequest{"a loop of the script depends on data, which memest does not have", ""};
    const std::string place = source();
    if (!asked_.insert(place).second) return true;
    tape_["diagnostics"].push_back({{"code", "data-dependent"},
                                    {"where", place},
                                    {"message", "the script asks for the value of a tensor, which memest does not know; it takes " +
                                                    std::string(number && x.scalar_type() != c10::kBool ? "0" : "False")}});
    return true;
  }

  /// What died since the last call died after it.
  void bury() {
    if (tape_["nodes"].empty()) return;
    Json dead = Json::array();
    for (auto it = living_.begin(); it != living_.end();) {
      if (kept_[std::size_t(*it)].expired()) {
        dead.push_back(*it);
        it = living_.erase(it);
      } else {
        ++it;
      }
    }
    if (!dead.empty()) tape_["nodes"].back()["dead"] = std::move(dead);
  }

  int id_of(const at::Tensor& x) {
    auto it = ids_.find(x.unsafeGetTensorImpl());
    if (it != ids_.end()) return it->second;
    const int id = add(x);
    if (x.is_meta()) {
      tape_["constants"].push_back(id);
      constants_.push_back(x);
    } else {
      values_.back()["host"] = true;
      constants_.push_back(x);
    }
    return id;
  }

  Json number(double v) const {
    if (std::isfinite(v)) return v;
    return {{"float", std::isnan(v) ? "nan" : v > 0 ? "inf" : "-inf"}};
  }

  Json argument(const IValue& v, const c10::TypePtr& type) {
    const auto optional = type->cast<c10::OptionalType>();
    const c10::TypePtr& inner = optional ? optional->getElementType() : type;
    if (v.isNone() || v.isDevice() || v.isGenerator()) return nullptr;
    if (v.isTensor()) return v.toTensor().defined() ? Json{{"value", id_of(v.toTensor())}} : Json(nullptr);
    if (v.isBool()) return v.toBool();
    if (v.isInt()) {
      switch (inner->kind()) {
        case c10::TypeKind::ScalarTypeType: return {{"dtype", name_of(c10::ScalarType(v.toInt()))}};
        case c10::TypeKind::MemoryFormatType: {
          static constexpr const char* names[] = {"contiguous", "preserve", "channels_last", "channels_last_3d"};
          return {{"memory_format", names[std::clamp<std::int64_t>(v.toInt(), 0, 3)]}};
        }
        case c10::TypeKind::LayoutType: return nullptr;
        default: return v.toInt();
      }
    }
    if (v.isDouble()) return number(v.toDouble());
    if (v.isString()) return v.toStringRef();
    if (v.isScalar()) return v.toScalar().isFloatingPoint() ? number(v.toScalar().toDouble()) : Json(v.toScalar().toLong());
    if (v.isList() || v.isTuple()) {
      Json list = Json::array();
      if (v.isList())
        for (const IValue& item : v.toList().vec()) list.push_back(argument(item, c10::AnyType::get()));
      else
        for (const IValue& item : v.toTupleRef().elements()) list.push_back(argument(item, c10::AnyType::get()));
      return list;
    }
    throw BadRequest{"an operator takes a " + v.tagKind() + ", which memest does not know", ""};
  }

  Json result(const IValue& v) {
    if (v.isTensor()) {
      const at::Tensor& x = v.toTensor();
      if (!x.defined()) return nullptr;
      auto it = ids_.find(x.unsafeGetTensorImpl());
      if (it != ids_.end()) return it->second;
      const int id = add(x);
      living_.push_back(id);
      return id;
    }
    if (v.isList()) {
      Json list = Json::array();
      for (const IValue& item : v.toList().vec()) list.push_back(result(item));
      return list;
    }
    if (v.isTuple()) {
      Json list = Json::array();
      for (const IValue& item : v.toTupleRef().elements()) list.push_back(result(item));
      return list;
    }
    if (v.isGenericDict()) {
      Json list = Json::array();
      for (const auto& entry : v.toGenericDict()) list.push_back(result(entry.value()));
      return list;
    }
    return nullptr;
  }

  // ---- where a call stands
  std::size_t collect(const torch::jit::Module& m, const std::string& path, const std::string& name) {
    const std::size_t i = places_.size();
    const auto type = m.type()->name();
    places_.push_back({path, name, type ? type->name() : "Module", {}});
    for (const auto& child : m.named_children()) {
      const std::size_t c = collect(child.value, path.empty() ? child.name : path + "." + child.name, child.name);
      places_[i].children.push_back(c);
    }
    return i;
  }
  /// The nearest module below `from` with this name and type: containers between are not called, so the interpreter does not name them.
  std::optional<std::size_t> below(std::size_t from, const std::string& name, const std::string& type) const {
    std::vector<std::size_t> level = places_[from].children;
    while (!level.empty()) {
      std::vector<std::size_t> next, found;
      for (std::size_t c : level) {
        if (places_[c].name == name && places_[c].type == type) found.push_back(c);
        next.insert(next.end(), places_[c].children.begin(), places_[c].children.end());
      }
      if (!found.empty()) {
        for (std::size_t c : found)  // of several, the one that runs already
          if (last_.starts_with(places_[c].path)) return c;
        return found[0];
      }
      level = std::move(next);
    }
    return {};
  }
  /// From frames such as "TOP(Net)::forward", "layer1(Sequential)::forward", "0(Block)::forward", "SELF(Block)::helper".
  std::string module() {
    std::vector<std::string> frames;
    try {
      frames = torch::jit::currentModuleHierarchy();
    } catch (const std::exception&) {
      return last_;
    }
    std::size_t at = 0;
    for (const std::string& frame : frames) {
      const std::size_t open = frame.find('('), close = frame.find(')');
      if (open == std::string::npos || close == std::string::npos) continue;
      if (auto found = below(at, frame.substr(0, open), frame.substr(open + 1, close - open - 1))) at = *found;
    }
    return last_ = places_[at].path;
  }
  std::string source() const {
    const auto stack = torch::jit::currentCallstack();
    for (auto it = stack.rbegin(); it != stack.rend(); ++it)
      if (const auto line = it->range.file_line_col()) {
        const auto& [file, row, column] = *line;
        return file.substr(file.rfind('/') + 1) + ":" + std::to_string(row);
      }
    return "the script";
  }

  Json tape_, values_ = Json::array();
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> kept_;  // no address is used twice while one of these refers to it
  std::vector<int> living_;
  std::vector<at::Tensor> constants_;
  std::unordered_map<const c10::TensorImpl*, std::pair<at::Tensor, at::Tensor>> moved_;
  std::unordered_map<const c10::TensorImpl*, int> ids_;
  std::vector<Place> places_;
  std::string last_;
  std::set<std::string> asked_;
  std::size_t answers_ = 0;
};

Recorder* recording = nullptr;

void on_call(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (recording) return recording->call(op, stack);
  c10::impl::ExcludeDispatchKeyGuard outside(kMode);
  op.callBoxed(stack);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_call>()); }

/// Type, path, parameters and buffers of each module, a shared tensor once.
Json described_modules(const torch::jit::Module& root, Recorder& recorder) {
  Json list = Json::array();
  std::unordered_map<const c10::TensorImpl*, int> ids;
  std::function<void(const torch::jit::Module&, const std::string&)> visit = [&](const torch::jit::Module& m, const std::string& path) {
    const auto type = m.type()->name();
    Json described{{"path", path}, {"type", type ? type->name() : "Module"}, {"parameters", Json::array()}, {"buffers", Json::array()}};
    auto put = [&](const char* where, const std::string& name, const at::Tensor& x) {
      if (!x.defined()) return;
      auto [it, fresh] = ids.try_emplace(x.unsafeGetTensorImpl(), 0);
      if (fresh) it->second = recorder.add(x);
      described[where].push_back({{"name", name}, {"value", it->second}, {"requires_grad", x.requires_grad()}});
    };
    for (const auto& p : m.named_parameters(/*recurse=*/false)) put("parameters", p.name, p.value);
    for (const auto& b : m.named_buffers(/*recurse=*/false)) put("buffers", b.name, b.value);
    list.push_back(std::move(described));
    for (const auto& child : m.named_children()) visit(child.value, path.empty() ? child.name : path + "." + child.name);
  };
  visit(root, "");
  return list;
}

}  // namespace

Json record_torchscript(const Json& request) {
  ScriptFile file = load_script(request, c10::kMeta);
  Recorder recorder(file);
  recorder.tape()["modules"] = described_modules(file.module, recorder);
  if (!file.packed.empty()) {
    Json tape = recorder.finish(IValue());
    tape["packed"] = file.packed;
    return tape;
  }
  std::vector<IValue> arguments = make_arguments(file, request["inputs"], c10::kMeta);
  Json& inputs = recorder.tape()["inputs"] = Json::array();
  for (const Input& input : file.inputs)
    inputs.push_back({{"name", input.name}, {"value", recorder.add(input.tensor)}, {"dtype", name_of(input.tensor.scalar_type())}});
  file.inputs.clear();

  at::AutoGradMode grad(request.value("grad", true));
  recording = &recorder;
  IValue output;
  {
    c10::impl::IncludeDispatchKeyGuard mode(kMode);
    try {
      output = file.module.get_method(file.method)(std::move(arguments));
    } catch (const BadRequest&) {
      throw;
    } catch (const std::exception& e) {
      throw BadRequest{file.method + " failed with these inputs: " + message_of(e), file.default_types ? kTypesHint : ""};
    }
  }
  recording = nullptr;
  return recorder.finish(output);
}

}  // namespace memest::plugin
