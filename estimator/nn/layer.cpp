#include "nn/layer.h"

#include <fmt/format.h>

#include <mutex>
#include <unordered_map>

#include "base/error.h"
#include "base/text.h"
#include "nn/custom.h"
#include "ops/op.h"

namespace memest::nn {
namespace {

template <class R>
std::vector<const R*>& registered() {
  static std::vector<const R*> records;
  return records;
}

const std::unordered_map<std::string, std::vector<const FunctionRecord*>>& functions_by_name() {
  static const auto* table = [] {
    auto* names = new std::unordered_map<std::string, std::vector<const FunctionRecord*>>;
    for (auto* f : registered<FunctionRecord>()) (*names)[f->name()].push_back(f);
    return names;
  }();
  return *table;
}

/// "torch.nn.functional.relu", "F.relu", "operator.add", "torch.Tensor.add": the last part; "torch.fft.rfft": fft_rfft, as aten names it.
std::string bare(const std::string& name) {
  if (name.find('.') == name.npos) return name;
  for (const char* module : {"fft", "linalg"})
    if (const std::string prefix = fmt::format("torch.{}.", module); name.starts_with(prefix))
      return fmt::format("{}_{}", module, name.substr(prefix.size()));
  for (const char* prefix : {"torch.nn.functional.", "torch.Tensor.", "torch._C._nn.", "torch._C.", "torch.special.", "torch.", "F.",
                             "operator.", "_operator.", "math."})
    if (name.starts_with(prefix)) return bare(name.substr(std::string_view(prefix).size()));
  return name;
}

/// x.view(2, 3) for x.view([2, 3]), torch.zeros(2, 3) for torch.zeros([2, 3]): the integers after the object, or all of a function's whose
/// first argument is "size", fill the schema's list of them.
std::optional<Values> gathered(const Schema& schema, const Values& arguments, bool method) {
  const std::size_t before = method ? 1 : 0;
  if (arguments.size() <= before) return {};
  std::size_t list = before;
  while (list < schema.arguments.size() && schema.arguments[list].kind == Kind::ignored) ++list;
  if (list >= schema.arguments.size() || schema.arguments[list].kind != Kind::int_list) return {};
  if (!method && schema.arguments[list].name != "size") return {};
  Values ints(arguments.begin() + std::ptrdiff_t(before), arguments.end());
  for (auto& v : ints)
    if (!std::holds_alternative<std::int64_t>(v)) return {};
  Values packed(arguments.begin(), arguments.begin() + std::ptrdiff_t(before));
  packed.push_back(make_list(std::move(ints)));
  return packed;
}

}  // namespace

const Schema& Record::schema() const {
  static std::mutex mutex;  // estimates in two threads share the records
  const std::lock_guard lock(mutex);
  if (!schema_) schema_ = std::make_unique<Schema>(Schema::parse(signature_));
  return *schema_;
}
LayerRecord::LayerRecord(const char* signature) : Record(signature) { registered<LayerRecord>().push_back(this); }
FunctionRecord::FunctionRecord(const char* signature) : Record(signature) { registered<FunctionRecord>().push_back(this); }
Container::Container(const char* container_name, const char* description, Make maker)
    : name(container_name), what(description), make(maker) {
  registered<Container>().push_back(this);
}

const std::vector<const LayerRecord*>& all_layers() { return registered<LayerRecord>(); }
const std::vector<const Container*>& all_containers() { return registered<Container>(); }
const std::vector<const FunctionRecord*>& all_functions() { return registered<FunctionRecord>(); }

const LayerRecord* find_layer(const std::string& type) {
  static const auto* table = [] {
    auto* names = new std::unordered_map<std::string, const LayerRecord*>;
    for (auto* layer : registered<LayerRecord>()) names->emplace(layer->name(), layer);
    return names;
  }();
  auto it = table->find(type);
  return it == table->end() ? nullptr : it->second;
}
const Container* find_container(const std::string& type) {
  for (auto* c : registered<Container>())
    if (type == c->name) return c;
  return nullptr;
}
std::vector<std::string> layer_names() {
  std::vector<std::string> names{"Graph"};
  for (auto* c : all_containers()) names.emplace_back(c->name);
  for (auto* l : all_layers()) names.push_back(l->name());
  return names;
}

const LayerRecord& layer_record(const std::string& type) {
  const LayerRecord* layer = find_layer(type);
  if (!layer) throw Error(fmt::format("memest knows no layer '{}'", type.substr(0, 80)), did_you_mean(type, layer_names()));
  return *layer;
}
Values bind_layer(const LayerRecord& layer, const KeywordArguments& arguments) {
  std::string problem;
  auto values = bind_arguments(layer.schema(), {}, arguments, problem);
  if (!values) throw Error(problem, "its signature is " + std::string(layer.signature()));
  return std::move(*values);
}
ModulePtr make_layer(const std::string& type, const KeywordArguments& arguments) {
  const LayerRecord& layer = layer_record(type);
  Values values = bind_layer(layer, arguments);
  return layer.make(values);
}

bool is_function(const std::string& name) { return functions_by_name().contains(bare(name)) || !find_ops("aten::" + bare(name)).empty(); }

Value call_function(const std::string& full_name, const Values& arguments, const KeywordArguments& keywords, bool method) {
  const std::string name = bare(full_name);
  std::string problem, first;
  std::vector<const char*> tried;
  auto attempt = [&](const auto* record, const char* signature, const Schema& schema) -> std::optional<Value> {
    auto bound = bind_arguments(schema, arguments, keywords, problem);
    if (!bound)
      if (auto packed = gathered(schema, arguments, method)) {
        std::string again;
        bound = bind_arguments(schema, *packed, keywords, again);
      }
    if (bound) return record->call(*bound);
    if (first.empty()) first = problem;
    tried.push_back(signature);
    return {};
  };
  // Tensor.unfold is another op than F.unfold: a method is the tensor's own before it is a function.
  if (method)
    for (auto* op : find_ops("aten::" + name))
      if (auto result = attempt(op, op->info.schema, op->schema())) return *result;
  if (auto it = functions_by_name().find(name); it != functions_by_name().end())
    for (auto* f : it->second)
      if (auto result = attempt(f, f->signature(), f->schema())) return *result;
  if (!method)
    for (auto* op : find_ops("aten::" + name))
      if (auto result = attempt(op, op->info.schema, op->schema())) return *result;
  if (!tried.empty()) throw Error(first, fmt::format("{} takes {}", name, tried[0]));
  throw Error(fmt::format("memest knows no {} '{}'", method ? "method" : "function", name.substr(0, 80)), near_functions(name));
}

}  // namespace memest::nn
