#include "ops/op.h"

#include <algorithm>

#include <fmt/format.h>

#include <mutex>
#include <unordered_map>

#include "base/text.h"
#include "ops/ops.h"

namespace memest {
namespace {

std::vector<const OpRecord*>& registered() {
  static std::vector<const OpRecord*> ops;
  return ops;
}

const std::unordered_map<std::string, std::vector<const OpRecord*>>& by_name() {
  static const auto* table = [] {
    auto* names = new std::unordered_map<std::string, std::vector<const OpRecord*>>;
    names->reserve(registered().size() * 2);
    for (auto* op : registered()) (*names)[op->name()].push_back(op);
    // A number stands for a tensor only where nothing else fits: before, an int is a dimension, as in max(x, -1), or a Scalar, as in pow(x,
    // 2) and pow(2, x).
    for (auto& [name, overloads] : *names)
      std::stable_partition(overloads.begin(), overloads.end(), [](auto* op) {
        const std::string_view schema(op->info.schema);
        return schema.find(" self, int dim") != schema.npos || schema.find(" self, Scalar exponent") != schema.npos ||
               schema.find(" self, int[1]? dim, bool unbiased") != schema.npos || schema.find("(Scalar self, ") != schema.npos;
      });
    return names;
  }();
  return *table;
}

std::string name_in(const char* schema) {
  const std::string_view text(schema);
  return std::string(text.substr(0, text.find_first_of(".(", text.find("::") + 2)));
}

}  // namespace

std::string_view name_of(Autocast policy) {
  static constexpr std::string_view names[] = {"none", "lower", "fp32", "fp32 (dtype argument)", "promote", "banned"};
  return names[int(policy)];
}

OpRecord::OpRecord(const OpInfo& op_info) : info(op_info), name_(name_in(op_info.schema)) { registered().push_back(this); }

const Schema& OpRecord::schema() const {
  static std::mutex mutex;  // estimates in two threads share the records
  const std::lock_guard lock(mutex);
  if (!schema_) schema_ = std::make_unique<Schema>(Schema::parse(info.schema));
  return *schema_;
}

const std::vector<const OpRecord*>& all_ops() { return registered(); }

const std::vector<const OpRecord*>& find_ops(const std::string& name) {
  static const std::vector<const OpRecord*> none;
  auto it = by_name().find(name);
  return it == by_name().end() ? none : it->second;
}

const OpRecord* find_op(const std::string& full_name) {
  const auto dot = full_name.find('.');
  std::string overload = dot == std::string::npos ? "" : full_name.substr(dot + 1);
  if (overload == "default") overload.clear();
  for (auto* op : find_ops(full_name.substr(0, dot)))
    if (op->schema().overload == overload) return op;
  return nullptr;
}

Value call_op(const std::string& name, const Values& positional, const KeywordArguments& keywords) {
  auto& overloads = find_ops(name);
  if (overloads.empty()) {
    std::vector<std::string> names;
    for (auto* op : all_ops()) names.push_back(op->name());
    throw Error(fmt::format("memest knows no op {}", name), did_you_mean(name, names));
  }
  std::string problem, first;
  for (auto* op : overloads) {
    if (auto bound = bind_arguments(op->schema(), positional, keywords, problem)) return op->call(*bound);
    if (first.empty()) first = problem;
  }
  throw Error(first, overloads.size() > 1 ? fmt::format("none of the {} overloads of {} fits", overloads.size(), name)
                                          : std::string(overloads[0]->info.schema));
}

Tensor cached_cast(T x, DType to) {
  if (!x || !is_floating(x.dtype()) || x.dtype() == to || x.dtype() == DType::float64 || x.on_host()) return x;
  Runtime& rt = runtime();
  AutocastState& mode = rt.autocast;
  const bool cacheable =
      to == mode.dtype && x.dtype() == DType::float32 && x->requires_grad && !x->grad_fn && !x->base && mode.cache_enabled;
  if (!cacheable) return ops::to_copy(x, to);
  auto& cached = mode.cache[x.get()];
  if (!cached) {
    CategoryScope category(Category::autocast_cache);
    GradMode grad(true);  // a cast made under no_grad serves calls with grad, too (2.15, asked of it)
    cached = ops::to_copy(x, to);
  }
  return cached;
}

namespace detail {
Tensors autocast_argument(const Tensors& list, DType to) {
  Tensors out;
  for (auto& x : list) out.push_back(cached_cast(x, to));
  return out;
}
void widest(T x, DType& type) {
  if (x && is_floating(x.dtype()) && x.dtype() != DType::float64 && x.dtype() == DType::float32) type = DType::float32;
}
void widest(const Tensors& list, DType& type) {
  for (auto& x : list) widest(x, type);
}
}  // namespace detail

AutocastContext::AutocastContext(bool enabled, DType dtype) : enabled_(runtime().autocast.enabled), dtype_(runtime().autocast.dtype) {
  auto& mode = runtime().autocast;
  mode.enabled = enabled;
  mode.dtype = dtype;
  ++mode.nesting;
}
AutocastContext::~AutocastContext() {
  auto& mode = runtime().autocast;
  mode.enabled = enabled_;
  mode.dtype = dtype_;
  if (--mode.nesting > 0) return;
  mode.cache.clear();
  if (runtime().calls) runtime().calls->autocast_ended();
}

}  // namespace memest
