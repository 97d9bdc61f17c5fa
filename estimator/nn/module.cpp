#include "nn/module.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "fake/autograd.h"
#include "fake/runtime.h"
#include "nn/adapter.h"
#include "nn/moved.h"
#include "ops/copy.h"

namespace memest::nn {

Value Module::call(const Values& arguments, const KeywordArguments& keywords) {
  return wrapper_ ? wrapper_(*this, arguments, keywords) : call_unwrapped(arguments, keywords);
}

Value Module::call_unwrapped(const Values& arguments, const KeywordArguments& keywords) {
  Runtime& rt = runtime();
  Scoped<ModuleId> scope(rt.module, entered_ ? id_ : rt.module);
  try {
    return forward(arguments, keywords);
  } catch (Error& e) {
    if (!e.has_place()) e.within("module " + (path_.empty() ? std::string("(the model itself)") : path_) + " (" + type_ + ")");
    throw;
  }
}

Tensor Module::operator()(T input) { return Unbox<Tensor>::from(call({to_value(input)})); }

void Module::register_parameter(std::string name, Tensor p) { parameters_.emplace_back(std::move(name), std::move(p)); }
void Module::register_buffer(std::string name, Tensor b) { buffers_.emplace_back(std::move(name), std::move(b)); }
void Module::new_parameter(std::string name, const Dims& sizes, bool wanted) {
  if (!wanted) return register_parameter(std::move(name), {});
  for (std::int64_t s : sizes)
    if (s < 0) throw Error(type_ + ": its " + name + " would have the sizes " + to_string(sizes));
  Tensor p = host_tensor(sizes, runtime().default_dtype);
  p->requires_grad = true;
  register_parameter(std::move(name), std::move(p));
}
void Module::new_buffer(std::string name, const Dims& sizes, DType dtype, bool wanted) {
  register_buffer(std::move(name), wanted ? host_tensor(sizes, dtype) : Tensor());
}

bool Module::has_child(const std::string& name) const {
  return std::any_of(children_.begin(), children_.end(), [&](auto& child) { return child.first == name; });
}

ModulePtr Module::find_shared(const std::string& path) {
  // A child's own name may hold dots where a spec flattened its hierarchy: the longest name that fits wins.
  for (auto& [name, child] : children_)
    if (name == path) return child;
  for (auto& [name, child] : children_)
    if (path.size() > name.size() && path.starts_with(name) && path[name.size()] == '.')
      if (auto found = child->find_shared(path.substr(name.size() + 1))) return found;
  return nullptr;
}
Module* Module::find(const std::string& path) { return path.empty() ? this : find_shared(path).get(); }

bool Module::tie(const std::string& path, const std::string& to) {
  auto place = [this](const std::string& full) -> Tensor* {
    const auto dot = full.rfind('.');
    Module* owner = find(dot == std::string::npos ? "" : full.substr(0, dot));
    if (!owner) return nullptr;
    for (auto& [name, p] : owner->parameters_)
      if (name == full.substr(dot == std::string::npos ? 0 : dot + 1)) return &p;
    return nullptr;
  };
  Tensor *a = place(path), *b = place(to);
  if (!a || !b) return false;
  if (!((*a).sizes() == (*b).sizes()))
    throw Error("tie: " + path + " has the sizes " + to_string((*a).sizes()) + ", " + to + " has " + to_string((*b).sizes()));
  *a = *b;
  return true;
}

void Module::visit(const std::string& path, const std::function<void(const std::string&, Module&)>& f,
                   std::unordered_set<const Module*>& seen) {
  if (!seen.insert(this).second) return;
  f(path, *this);
  for (auto& [name, child] : children_) child->visit(path.empty() ? name : path + "." + name, f, seen);
}

namespace {
using Named = std::vector<std::pair<std::string, Tensor>>;
}

std::vector<std::pair<std::string, Tensor>> Module::named_parameters() {
  Named all;
  std::unordered_set<const Module*> seen;
  std::unordered_set<const TensorImpl*> known;
  visit(
      "",
      [&](const std::string& path, Module& m) {
        for (auto& [name, p] : m.parameters_) {
          if (!p || !known.insert(p.get()).second) continue;
          all.emplace_back(path.empty() ? name : path + "." + name, p);
        }
      },
      seen);
  return all;
}
std::vector<std::pair<std::string, Tensor>> Module::named_buffers() {
  Named all;
  std::unordered_set<const Module*> seen;
  visit(
      "",
      [&](const std::string& path, Module& m) {
        for (auto& [name, b] : m.buffers_)
          if (b) all.emplace_back(path.empty() ? name : path + "." + name, b);
      },
      seen);
  return all;
}
Tensors Module::parameters() {
  Tensors list;
  for (auto& [name, p] : named_parameters()) list.push_back(p);
  return list;
}

void Module::to_device(MemoryFormat format) {
  auto* linear = dynamic_cast<Adaptable*>(this);  // of peft: the layer itself is the first child, its adapters follow
  if (!linear)
    for (auto& [name, child] : children_) child->to_device(format);
  auto move = [&](Tensor& x, Category category) {
    if (!x || !x->storage->host) return;
    Runtime& rt = runtime();
    CategoryScope scope(category);
    Scoped<ModuleId> module(rt.module, entered_ ? id_ : rt.module);
    if (format == MemoryFormat::channels_last && x.dim() == 5)
      throw Error("required rank 4 tensor to use channels_last format: " + type_ + " has a tensor of sizes " + to_string(x.sizes()));
    Tensor moved = ops::to_device(x, x.dim() == 4 ? format : MemoryFormat::preserve);
    x->strides = moved.strides();
    x->storage = moved->storage;
  };
  for (auto& [name, p] : parameters_) {
    if (linear && linear->quantized() && &p == &parameters_[0].second && p->storage->host) {
      Scoped<ModuleId> module(runtime().module, entered_ ? id_ : runtime().module);
      linear->quantized()->load(p, false, linear->transposed());
    } else {
      move(p, Category::parameter);
    }
  }
  for (auto& [name, b] : buffers_) move(b, Category::buffer);
  if (linear && !linear->adapters_follow)
    for (auto& [name, child] : children_) child->to_device(format);
  if (auto* hook = dynamic_cast<AfterMove*>(this)) hook->moved();
}

void Module::train(bool mode) {
  std::unordered_set<const Module*> seen;
  visit(
      "", [mode](const std::string&, Module& m) { m.training = mode; }, seen);
}

void Module::enter_trace(const std::string& path) {
  struct Step {
    static void into(Module& m, const std::string& own, ModuleId parent) {
      if (m.entered_) return;
      m.entered_ = true;
      m.path_ = own;
      Runtime& rt = runtime();
      if (own.empty()) rt.trace.modules[0].type = m.type_;
      m.id_ = own.empty() ? 0 : rt.add_module(own, m.type_, parent);
      for (auto& [name, child] : m.children_) into(*child, own.empty() ? name : own + "." + name, m.id_);
    }
  };
  Step::into(*this, path, 0);
}

Value UnaryModule::forward(const Values& arguments, const KeywordArguments& keywords) {
  if (arguments.size() + keywords.size() != 1)
    throw Error(type() + " takes one input, " + std::to_string(arguments.size() + keywords.size()) + " were given");
  const Value& input = arguments.empty() ? keywords[0].second : arguments[0];
  if (!std::holds_alternative<Tensor>(input)) throw Error(type() + " takes a tensor, found " + describe(input));
  return to_value(forward(std::get<Tensor>(input)));
}

Sequential::Sequential(const std::vector<ModulePtr>& layers) : Sequential() {
  for (auto& layer : layers) append(layer);
}
void Sequential::append(ModulePtr layer) { register_module(std::to_string(children().size()), std::move(layer)); }
Tensor Sequential::forward(T x) {
  Tensor input = x;
  for (auto& [name, layer] : children()) input = (*layer)(input);
  return input;
}

ModuleList::ModuleList(const std::vector<ModulePtr>& layers, std::string type) : Module(std::move(type)) {
  for (auto& layer : layers) append(layer);
}
void ModuleList::append(ModulePtr layer) { register_module(std::to_string(children().size()), std::move(layer)); }
Value ModuleList::forward(const Values&, const KeywordArguments&) {
  throw Error(type() + " has no forward of its own", "call its modules by path, as \"down.0\"");
}

}  // namespace memest::nn
