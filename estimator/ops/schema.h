// Signatures as text in aten's grammar: "aten::mm(Tensor self, Tensor mat2) -> Tensor", "Linear(int in_features, int out_features, bool
// bias=True)". Ops, layers, functions and optimizers all declare their arguments so; values are matched against them in one place.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/value.h"

namespace memest {

struct Argument {
  std::string name;
  Kind kind = Kind::any;
  bool optional = false;  ///< None is a value: "int?"
  int list_size = 0;      ///< N of "int[N]": one number stands for N equal ones
  bool keyword_only = false;
  bool has_default = false;
  Value default_value;
  std::string type;  ///< as written
};

struct Schema {
  std::string name;      ///< "aten::add"
  std::string overload;  ///< "Tensor"; may be empty
  std::vector<Argument> arguments;
  std::string returns;  ///< as written, "" where none is

  /// Parses; throws Error (a bug in a record) where the text does not follow the grammar.
  static Schema parse(std::string_view text);
  std::string full_name() const { return overload.empty() ? name : name + "." + overload; }
  const Argument* find(std::string_view argument) const;
};

using KeywordArguments = std::vector<std::pair<std::string, Value>>;

/// The values in the schema's order, defaults filled in, numbers widened to lists and floats where the schema asks for them; ignored
/// arguments (device, layout, generator) are dropped. On a mismatch `problem` says what is wrong and nothing is returned.
std::optional<Values> bind_arguments(const Schema& schema, const Values& positional, const KeywordArguments& keywords,
                                     std::string& problem);

}  // namespace memest
