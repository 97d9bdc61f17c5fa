#include "ops/schema.h"

#include <fmt/format.h>

#include <limits>

#include "base/error.h"
#include "base/text.h"

namespace memest {
namespace {

std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\n')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\n')) s.remove_suffix(1);
  return s;
}

/// Splits at commas outside brackets and quotes.
std::vector<std::string_view> split_arguments(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  char quote = 0;
  std::size_t start = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (quote) {
      if (c == quote) quote = 0;
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == '(' || c == '[') {
      ++depth;
    } else if (c == ')' || c == ']') {
      --depth;
    } else if (c == ',' && depth == 0) {
      if (auto part = trim(text.substr(start, i - start)); !part.empty()) parts.push_back(part);
      start = i + 1;
    }
  }
  return parts;
}

Value parse_default(std::string_view text, const Argument& argument) {
  auto bad = [&] { return Error(fmt::format("schema: default '{}' of {}", text, argument.name)); };
  if (text == "None") return None{};
  if (text == "True") return true;
  if (text == "False") return false;
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  if (text == "Mean") return std::int64_t{1};
  if (text == "contiguous_format") return MemoryFormat::contiguous;
  if (text == "long") return DType::int64;
  if (text.size() >= 2 && (text.front() == '\'' || text.front() == '"')) return std::string(text.substr(1, text.size() - 2));
  if (text.front() == '[') {
    Values items;
    for (auto part : split_arguments(text.substr(1, text.size() - 2))) items.push_back(parse_default(part, argument));
    return make_list(std::move(items));
  }
  if (auto i = parse_int(text)) return argument.kind == Kind::float_ ? Value(double(*i)) : Value(*i);
  if (auto d = parse_number(text)) return *d;
  throw bad();
}

void parse_type(std::string_view type, Argument& a) {
  a.type = std::string(type);
  if (type.ends_with('?')) {
    a.optional = true;
    type.remove_suffix(1);
  }
  if (auto paren = type.find('('); paren != std::string_view::npos) {  // Tensor(a!)
    const auto close = type.find(')');
    a.type = std::string(type.substr(0, paren)) + std::string(type.substr(close + 1));
    std::string bare = a.type;
    parse_type(bare, a);
    return;
  }
  bool list = false;
  if (type.ends_with(']')) {
    list = true;
    const auto open = type.rfind('[');
    a.list_size = int(parse_int(type.substr(open + 1, type.size() - open - 2)).value_or(0));
    type = type.substr(0, open);
    if (type.ends_with('?')) type.remove_suffix(1);
  }
  struct {
    std::string_view name;
    Kind one, many;
  } static constexpr kinds[] = {{"Tensor", Kind::tensor, Kind::tensor_list},      {"int", Kind::int_, Kind::int_list},
                                {"SymInt", Kind::int_, Kind::int_list},           {"float", Kind::float_, Kind::float_list},
                                {"bool", Kind::bool_, Kind::bool_list},           {"Scalar", Kind::scalar, Kind::any},
                                {"ScalarType", Kind::dtype, Kind::any},           {"str", Kind::string, Kind::any},
                                {"MemoryFormat", Kind::memory_format, Kind::any}, {"Any", Kind::any, Kind::any},
                                {"Layout", Kind::ignored, Kind::ignored},         {"Device", Kind::ignored, Kind::ignored},
                                {"Generator", Kind::ignored, Kind::ignored}};
  for (auto& k : kinds)
    if (k.name == type) {
      a.kind = list ? k.many : k.one;
      return;
    }
  throw Error(fmt::format("schema: unknown type '{}'", type));
}

bool is_number(const Value& v) {
  return std::holds_alternative<std::int64_t>(v) || std::holds_alternative<double>(v) || std::holds_alternative<bool>(v);
}
bool is_int(const Value& v) { return std::holds_alternative<std::int64_t>(v) || std::holds_alternative<bool>(v); }

template <class Check>
bool all_items(const Value& v, Check check) {
  auto* l = std::get_if<std::shared_ptr<List>>(&v);
  if (!l) return false;
  for (auto& item : (*l)->items)
    if (!check(item)) return false;
  return true;
}

/// Whether the value can be the argument; widens numbers in place.
bool convert(const Argument& a, Value& v) {
  if (is_none(v)) return a.optional || a.kind == Kind::any || a.kind == Kind::ignored;
  switch (a.kind) {
    case Kind::tensor: return std::holds_alternative<Tensor>(v) || is_number(v);
    case Kind::tensor_list: return all_items(v, [](auto& i) { return std::holds_alternative<Tensor>(i) || is_none(i); });
    case Kind::int_: return is_int(v);
    case Kind::float_:
      if (is_int(v)) v = Unbox<double>::from(v);
      return std::holds_alternative<double>(v);
    case Kind::bool_: return std::holds_alternative<bool>(v) || std::holds_alternative<std::int64_t>(v);
    case Kind::scalar: return is_number(v);
    case Kind::dtype: return std::holds_alternative<DType>(v);
    case Kind::string: return std::holds_alternative<std::string>(v);
    case Kind::memory_format: return std::holds_alternative<MemoryFormat>(v);
    case Kind::int_list:  // a number stands for a list, True and False do not
      if (std::holds_alternative<std::int64_t>(v)) {
        if (!a.list_size) return false;
        v = make_list(Values(std::size_t(a.list_size), v));
        return true;
      }
      return all_items(v, is_int);
    case Kind::float_list:
      if (is_number(v)) {
        if (!a.list_size) return false;
        v = make_list(Values(std::size_t(a.list_size), v));
        return true;
      }
      return all_items(v, is_number);
    case Kind::bool_list: return all_items(v, is_int);
    case Kind::any:
    case Kind::ignored: return true;
  }
  return false;
}

/// Python's other names of an argument: torch.sum(input, axis=1, keepdims=True).
std::string_view canonical(const Schema& schema, std::string_view name) {
  static constexpr std::pair<std::string_view, std::string_view> aliases[] = {{"input", "self"}, {"axis", "dim"},  {"keepdims", "keepdim"},
                                                                              {"x", "self"},     {"mat1", "self"}, {"dims", "dim"},
                                                                              {"dim", "dims"},   {"x2", "other"}};
  if (schema.find(name)) return name;
  for (auto& [alias, real] : aliases)
    if (alias == name && schema.find(real)) return real;
  return name;
}

bool ignored_name(std::string_view name) {
  return name == "device" || name == "layout" || name == "generator" || name == "pin_memory" || name == "non_blocking" || name == "out";
}

}  // namespace

const Argument* Schema::find(std::string_view argument) const {
  for (auto& a : arguments)
    if (a.name == argument) return &a;
  return nullptr;
}

Schema Schema::parse(std::string_view text) {
  Schema schema;
  const auto open = text.find('('), gap = text.rfind(") ->");
  const auto arrow = gap == std::string_view::npos ? gap : gap + 2;
  const auto close = gap == std::string_view::npos ? text.rfind(')') : gap;
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) throw Error(fmt::format("schema: '{}'", text));
  std::string_view head = text.substr(0, open);
  const auto colon = head.find("::");
  const auto dot = head.find('.', colon == std::string_view::npos ? 0 : colon);
  schema.name = std::string(head.substr(0, dot));
  if (dot != std::string_view::npos) schema.overload = std::string(head.substr(dot + 1));
  if (arrow != std::string_view::npos) schema.returns = std::string(trim(text.substr(arrow + 2)));
  bool keyword_only = false;
  for (auto part : split_arguments(text.substr(open + 1, close - open - 1))) {
    if (part == "*") {
      keyword_only = true;
      continue;
    }
    Argument a;
    a.keyword_only = keyword_only;
    std::string_view fallback;
    std::size_t equals = std::string_view::npos;
    for (std::size_t i = 0, depth = 0; i < part.size(); ++i) {
      if (part[i] == '(' || part[i] == '[')
        ++depth;
      else if (part[i] == ')' || part[i] == ']')
        --depth;
      else if (part[i] == '=' && depth == 0) {
        equals = i;
        break;
      }
    }
    if (equals != std::string_view::npos) {
      fallback = trim(part.substr(equals + 1));
      part = trim(part.substr(0, equals));
    }
    const auto space = part.rfind(' ');
    if (space == std::string_view::npos) throw Error(fmt::format("schema: argument '{}' in '{}'", part, text));
    a.name = std::string(part.substr(space + 1));
    parse_type(trim(part.substr(0, space)), a);
    if (equals != std::string_view::npos) {
      a.has_default = true;
      a.default_value = parse_default(fallback, a);
    }
    if (ignored_name(a.name) && a.name != "out") a.kind = Kind::ignored;
    schema.arguments.push_back(std::move(a));
  }
  return schema;
}

std::optional<Values> bind_arguments(const Schema& schema, const Values& positional, const KeywordArguments& keywords,
                                     std::string& problem) {
  const auto& arguments = schema.arguments;
  std::vector<const Value*> given(arguments.size(), nullptr);
  std::size_t next = 0;
  for (auto& v : positional) {
    while (next < arguments.size() && arguments[next].kind == Kind::ignored) ++next;
    if (next >= arguments.size() || arguments[next].keyword_only) {
      problem = fmt::format("{} takes {} arguments, {} were given", schema.name, next, positional.size());
      return {};
    }
    given[next++] = &v;
  }
  std::vector<std::string> names;
  for (auto& [keyword, v] : keywords) {
    const std::string_view name = canonical(schema, keyword);
    bool found = false;
    for (std::size_t i = 0; i < arguments.size() && !found; ++i)
      if (arguments[i].name == name) {
        if (given[i]) {
          problem = fmt::format("{} was given '{}' twice", schema.name, keyword);
          return {};
        }
        given[i] = &v;
        found = true;
      }
    if (!found && !ignored_name(keyword)) {
      for (auto& a : arguments)
        if (a.kind != Kind::ignored) names.push_back(a.name);
      std::string near = did_you_mean(keyword, names);
      problem =
          fmt::format("{} has no '{}'; {}", schema.name, keyword.substr(0, 60), near.empty() ? "it takes " + join(names, ", ") : near);
      return {};
    }
  }
  Values bound;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    auto& a = arguments[i];
    if (a.kind == Kind::ignored) continue;
    Value v;
    if (given[i]) {
      v = *given[i];
      if (!convert(a, v)) {
        problem = fmt::format("'{}' of {} takes {}, found {}", a.name, schema.name, a.type, describe(*given[i]));
        return {};
      }
    } else if (a.has_default) {
      v = a.default_value;
      if (!is_none(v)) convert(a, v);
    } else {
      problem = fmt::format("{} needs '{}' ({})", schema.name, a.name, a.type);
      return {};
    }
    bound.push_back(std::move(v));
  }
  return bound;
}

}  // namespace memest
