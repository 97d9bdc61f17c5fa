#include "torch/script_file.h"

#include <ATen/ATen.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include <torch/version.h>

#include <functional>
#include <set>

namespace memest::plugin {
namespace {
using c10::IValue;
using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;

/// Each constant tensor of a module's methods, in an order that two loads of a file have in common.
void each_constant(const torch::jit::Module& root, const std::function<void(Node*)>& f) {
  std::function<void(Block*)> in_block = [&](Block* block) {
    for (Node* n : block->nodes()) {
      if (n->kind() == torch::jit::prim::Constant && n->hasAttribute(torch::jit::attr::value) &&
          n->kindOf(torch::jit::attr::value) == torch::jit::AttributeKind::t)
        f(n);
      for (Block* inner : n->blocks()) in_block(inner);
    }
  };
  std::set<const torch::jit::Function*> seen;
  for (const torch::jit::Module& m : root.modules())
    for (const torch::jit::Method& method : m.get_methods())
      if (seen.insert(&method.function()).second) in_block(method.graph()->block());
}

/// Traced files compute sizes with constant tensors, so their values are needed: they are taken from a load on the CPU.
void keep_numbers(const torch::jit::Module& m, const std::string& path) {
  auto is_number = [](const at::Tensor& x) { return x.dim() == 0 || !x.is_floating_point(); };
  bool any = false;
  each_constant(m, [&](Node* n) { any |= n->t(torch::jit::attr::value).is_meta() && is_number(n->t(torch::jit::attr::value)); });
  if (!any) return;
  const torch::jit::Module real = torch::jit::load(path, c10::kCPU, /*load_debug_files=*/false);
  std::vector<at::Tensor> values;
  each_constant(real, [&](Node* n) { values.push_back(n->t(torch::jit::attr::value)); });
  std::size_t next = 0;
  each_constant(m, [&](Node* n) {
    if (next < values.size() && is_number(values[next])) n->t_(torch::jit::attr::value, values[next]);
    ++next;
  });
}

/// A traced script names the device that it was traced on.
void move_devices(const torch::jit::Module& root, c10::Device device) {
  std::function<void(Block*)> in_block = [&](Block* block) {
    for (Node* n : block->nodes()) {
      if (n->kind() == torch::jit::prim::Constant && n->output()->type()->kind() == c10::TypeKind::DeviceObjType)
        n->s_(torch::jit::attr::value, device.str());
      for (Block* inner : n->blocks()) in_block(inner);
    }
  };
  for (const torch::jit::Module& m : root.modules())
    for (const torch::jit::Method& method : m.get_methods()) in_block(method.graph()->block());
}

/// Weights of quantised modules: objects that only kernels of one CPU can read.
void find_packed(const torch::jit::Module& root, Json& list) {
  for (const auto& m : root.named_modules()) {
    const auto type = m.value.type();
    for (std::size_t i = 0; i < type->numAttributes(); ++i) {
      const IValue v = m.value._ivalue()->getSlot(i);
      if (!v.isCustomClass()) continue;
      std::int64_t bytes = 0;
      try {
        const IValue parts = torch::jit::Object(v.toObject()).run_method("unpack");
        for (const IValue& part : parts.isTuple() ? parts.toTupleRef().elements().vec() : std::vector<IValue>{parts})
          if (part.isTensor() && part.toTensor().defined()) bytes += std::int64_t(part.toTensor().nbytes());
      } catch (const std::exception&) {
      }
      list.push_back({{"path", m.name}, {"bytes", bytes}});
    }
  }
}

}  // namespace

ScriptFile load_script(const Json& request, c10::Device device) {
  const std::string path = request.at("path");
  torch::jit::setGraphExecutorOptimize(false);  // eager formulas, not the JIT's fused ones
  ScriptFile file;
  try {
    file.module = torch::jit::load(path, device, /*load_debug_files=*/false);
  } catch (const std::exception& meta) {
    try {  // quantised weights are packed by kernels of the CPU
      if (device != c10::kMeta) throw;
      file.module = torch::jit::load(path, c10::kCPU, /*load_debug_files=*/false);
    } catch (const std::exception& e) {
      throw BadRequest{"LibTorch cannot load it: " + message_of(e),
                       "the file may be damaged, or of a newer release than LibTorch " TORCH_VERSION};
    }
  }
  if (device == c10::kMeta) keep_numbers(file.module, path);
  move_devices(file.module, device);
  find_packed(file.module, file.packed);
  file.method = request.value("method", "forward");
  if (!file.module.find_method(file.method)) {
    std::string methods;
    for (const auto& m : file.module.get_methods()) methods += (methods.empty() ? "" : ", ") + m.name();
    throw BadRequest{"the file has no method '" + file.method + "'",
                     methods.empty() ? "it has none" : "it has " + methods + ": --method NAME"};
  }
  if (file.module.hasattr("training")) file.module.train(request.value("training", true));
  bool found = false;
  for (const at::Tensor& p : file.module.parameters())
    if (p.is_floating_point() && !std::exchange(found, true)) file.dtype = p.scalar_type();
  if (request.contains("dtype")) {
    file.dtype = type_named(request["dtype"]);
    auto convert = [&](at::Tensor x) {
      if (x.is_floating_point() && x.scalar_type() != file.dtype) x.set_data(x.detach().to(file.dtype));
    };
    for (const at::Tensor& p : file.module.parameters()) convert(p);
    for (const at::Tensor& b : file.module.buffers()) convert(b);
  }
  return file;
}

std::vector<IValue> make_arguments(ScriptFile& file, const Json& given, c10::Device device) {
  const c10::FunctionSchema schema = file.module.get_method(file.method).function().getSchema();
  std::string takes;
  for (std::size_t i = 1; i < schema.arguments().size(); ++i)
    takes += (i > 1 ? ", " : "") + schema.arguments()[i].type()->repr_str() + " " + schema.arguments()[i].name();
  const std::string hint = file.method + " takes (" + takes + "): --input NAME=SHAPE[:DTYPE], with NAME.0 or NAME.key for parts";
  std::set<std::string> used;
  auto find = [&](const std::string& name) -> const Json* {
    for (const Json& g : given)
      if (g["name"] == name) {
        used.insert(name);
        return &g;
      }
    return nullptr;
  };
  auto tensor = [&](const Json& g) {
    file.default_types |= !g.contains("dtype");
    const c10::ScalarType type = g.contains("dtype") ? type_named(g["dtype"]) : file.dtype;
    const auto shape = g["shape"].get<std::vector<std::int64_t>>();
    for (std::int64_t size : shape)
      if (size < 0) throw BadRequest{"the input '" + g["name"].get<std::string>() + "' has a negative size", ""};
    at::Tensor x = at::zeros(shape, at::device(device).dtype(type));
    file.inputs.push_back({g["name"], x});
    return x;
  };
  std::function<IValue(const std::string&, const c10::TypePtr&, const std::optional<IValue>&)> make =
      [&](const std::string& name, const c10::TypePtr& type, const std::optional<IValue>& otherwise) -> IValue {
    if (auto optional = type->cast<c10::OptionalType>()) {
      bool any = false;
      for (const Json& g : given) {
        const std::string n = g["name"];
        any |= n == name || n.starts_with(name + ".");
      }
      if (!any) return otherwise.value_or(IValue());
      return make(name, optional->getElementType(), {});
    }
    if (type->kind() == c10::TypeKind::TensorType) {
      if (const Json* g = find(name)) return tensor(*g);
    } else if (auto tuple = type->cast<c10::TupleType>()) {
      std::vector<IValue> items;
      for (std::size_t i = 0; i < tuple->elements().size(); ++i)
        items.push_back(make(name + "." + std::to_string(i), tuple->elements()[i], {}));
      return c10::ivalue::Tuple::create(std::move(items));
    } else if (auto list = type->cast<c10::ListType>(); list && list->getElementType()->kind() == c10::TypeKind::TensorType) {
      c10::List<at::Tensor> items;
      while (const Json* g = find(name + "." + std::to_string(items.size()))) items.push_back(tensor(*g));
      if (!items.empty() || !otherwise) return items;
    } else if (auto dict = type->cast<c10::DictType>(); dict && dict->getKeyType()->kind() == c10::TypeKind::StringType &&
                                                        dict->getValueType()->kind() == c10::TypeKind::TensorType) {
      c10::Dict<std::string, at::Tensor> items;
      for (const Json& g : given) {
        const std::string n = g["name"];
        if (!n.starts_with(name + ".")) continue;
        used.insert(n);
        items.insert(n.substr(name.size() + 1), tensor(g));
      }
      if (!items.empty() || !otherwise) return items;
    } else if (const Json* g = find(name)) {  // a number: its "shape" is its value
      const std::int64_t value = g->at("shape").size() == 1 ? g->at("shape")[0].get<std::int64_t>() : 0;
      if (type->kind() == c10::TypeKind::IntType) return value;
      if (type->kind() == c10::TypeKind::FloatType) return double(value);
      if (type->kind() == c10::TypeKind::BoolType) return value != 0;
    }
    if (otherwise) return *otherwise;
    throw BadRequest{"the input '" + name + "' (" + type->repr_str() + ") was not given", hint};
  };
  std::vector<IValue> arguments;
  for (std::size_t i = 1; i < schema.arguments().size(); ++i) {
    const c10::Argument& a = schema.arguments()[i];
    arguments.push_back(make(a.name(), a.type(), a.default_value()));
  }
  for (const Json& g : given)
    if (!used.contains(g["name"])) throw BadRequest{"the method has no input '" + g["name"].get<std::string>() + "'", hint};
  return arguments;
}

}  // namespace memest::plugin
