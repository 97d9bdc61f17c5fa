#include "ops/value.h"

#include <fmt/format.h>

#include "base/error.h"

namespace memest {

Value list_of(const Dims& dims) {
  Values items;
  for (std::int64_t d : dims) items.emplace_back(d);
  return make_list(std::move(items));
}
Value list_of(const Tensors& tensors) {
  Values items;
  for (auto& t : tensors) items.push_back(to_value(t));
  return make_list(std::move(items));
}

std::string describe(const Value& v) {
  struct {
    std::string operator()(None) const { return "None"; }
    std::string operator()(const Tensor& t) const { return "Tensor " + describe(t); }
    std::string operator()(bool b) const { return b ? "True" : "False"; }
    std::string operator()(std::int64_t i) const { return fmt::format("int {}", i); }
    std::string operator()(double d) const { return fmt::format("float {}", d); }
    std::string operator()(const std::string& s) const { return "'" + s.substr(0, 60) + "'"; }
    std::string operator()(DType t) const { return std::string(name_of(t)); }
    std::string operator()(const std::shared_ptr<List>& l) const {
      return fmt::format("{} of {}", l->is_tuple ? "tuple" : "list", l->items.size());
    }
    std::string operator()(const std::shared_ptr<Slice>&) const { return "slice"; }
    std::string operator()(Ellipsis) const { return "..."; }
    std::string operator()(const std::shared_ptr<Dict>& d) const { return fmt::format("dict of {}", d->items.size()); }
    std::string operator()(MemoryFormat) const { return "memory format"; }
  } visitor;
  return std::visit(visitor, v);
}

void collect_tensors(const Value& v, Tensors& into) {
  if (auto* t = std::get_if<Tensor>(&v)) into.push_back(*t);
  if (auto* l = std::get_if<std::shared_ptr<List>>(&v))
    for (auto& item : (*l)->items) collect_tensors(item, into);
  if (auto* d = std::get_if<std::shared_ptr<Dict>>(&v))
    for (auto& [name, item] : (*d)->items) collect_tensors(item, into);
}

void unbox_error(const Value& v, Kind wanted) {
  static constexpr const char* names[] = {"a tensor",  "a list of tensors", "an integer",    "a list of integers",
                                          "a number",  "a list of numbers", "true or false", "a list of booleans",
                                          "a number",  "a dtype",           "a text",        "a memory format",
                                          "any value", "any value"};
  throw Error(fmt::format("expected {}, found {}", names[int(wanted)], describe(v)));
}

namespace {
const Values* items_of(const Value& v) {
  auto* l = std::get_if<std::shared_ptr<List>>(&v);
  return l ? &(*l)->items : nullptr;
}
}  // namespace

Dims Unbox<Dims>::from(const Value& v) {
  auto* items = items_of(v);
  if (!items) {
    if (std::holds_alternative<std::int64_t>(v)) return {std::get<std::int64_t>(v)};
    unbox_error(v, kind);
  }
  Dims dims;
  for (auto& item : *items) dims.push_back(Unbox<std::int64_t>::from(item));
  return dims;
}
std::vector<double> Unbox<std::vector<double>>::from(const Value& v) {
  auto* items = items_of(v);
  if (!items) return {Unbox<double>::from(v)};
  std::vector<double> out;
  for (auto& item : *items) out.push_back(Unbox<double>::from(item));
  return out;
}
std::vector<bool> Unbox<std::vector<bool>>::from(const Value& v) {
  auto* items = items_of(v);
  if (!items) unbox_error(v, kind);
  std::vector<bool> out;
  for (auto& item : *items) out.push_back(Unbox<bool>::from(item));
  return out;
}
Tensors Unbox<Tensors>::from(const Value& v) {
  auto* items = items_of(v);
  if (!items) {
    if (std::holds_alternative<Tensor>(v)) return {std::get<Tensor>(v)};
    unbox_error(v, kind);
  }
  Tensors out;
  for (auto& item : *items) out.push_back(Unbox<Tensor>::from(item));
  return out;
}

}  // namespace memest
