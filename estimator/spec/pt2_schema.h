// The JSON of an exported program (torch/_export/serde/schema.py, schema 1 of torch 2.1 to 8.20 of 2.15) as plain records.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "ops/value.h"
#include "spec/json_stream.h"

namespace memest::spec::pt2 {

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view t) const { return std::hash<std::string_view>{}(t); }
};
using Numbered = std::unordered_map<std::string, int, TextHash, std::equal_to<>>;

/// A size: a number, or an expression over symbols in the grammar of nn::SizeExpression.
struct SymInt {
  std::int64_t value = 0;
  std::string expression;            ///< empty where the number is known
  std::optional<std::int64_t> hint;  ///< its value in the example with which the program was exported
};

struct TensorMeta {
  DType dtype = DType::float32;
  bool requires_grad = false;
  std::vector<SymInt> sizes;
};

struct Graph;

/// Values have numbers of their own, unique in the file; those of a graph inside another are its own.
struct Argument {
  enum class Kind { constant, value, list, dict, graph };
  Kind kind = Kind::constant;
  int value = -1;
  memest::Value constant;
  std::vector<Argument> items;
  std::vector<std::string> keys;
  std::shared_ptr<Graph> graph;
};

struct NamedArgument {
  const std::string* name;
  Argument arg;
};

/// A line of the eager program, at the depth of its place in a node's stack trace.
/// A line of a function that a forward calls.
struct HelperLine {
  std::uint64_t function = 0;  ///< a hash of file and name
  int number = 0;
  int names = -1;  ///< as in Statement
};

struct Statement {
  std::uint64_t line = 0;           ///< a hash of file and line
  int names = -1;                   ///< the names it assigns: in Program::assigned; -1 for none
  bool casts = false;               ///< it casts to float32 by name: x.float(), x.to(torch.float32)
  bool floats = false;              ///< it names that type
  std::vector<HelperLine> helpers;  ///< on the way to the next forward, outermost first, where the export kept them
};

/// A call of a module, as nn_module_stack has it.
struct ModuleCall {
  std::string key, path, type;
};
using ModuleStack = std::vector<int>;  ///< of Program::calls, outermost first

struct Node {
  const std::string* target = nullptr;
  std::string name;
  std::vector<NamedArgument> inputs;
  std::vector<int> outputs;  ///< values; -1 for None
  bool list = false;         ///< the only output is a list of these
  int stack = -1;            ///< of Program::stacks
  std::vector<Statement> statements;
};

struct Graph {
  std::vector<Argument> inputs, outputs;
  std::vector<Node> nodes;
  Numbered names;
};

struct InputSpec {
  enum class Kind { user, parameter, buffer, constant, custom_object, token, fixed };
  Kind kind = Kind::user;
  Argument arg;
  std::string target;  ///< of parameters, buffers and constants: the name in the module
};
struct OutputSpec {
  enum class Kind { user, loss, buffer, parameter, parameter_gradient, input_gradient, user_input, token };
  Kind kind = Kind::user;
  Argument arg;
  std::string target;
};

struct Range {
  std::optional<std::int64_t> least, most;
};

struct Program {
  Graph graph;
  std::vector<InputSpec> inputs;
  std::vector<OutputSpec> outputs;
  std::map<std::string, Range> ranges;  ///< of symbols, by name
  std::vector<std::string> modules;     ///< paths, in the order of named_modules()
  int major = 0, minor = 0;
  std::string torch_version;
  bool decomposed = false;  ///< its verifiers say that it went through run_decompositions()

  std::vector<std::string> value_names;  ///< by value
  std::map<int, TensorMeta> tensors;     ///< of the values whose sizes somebody may ask for
  std::map<int, SymInt> integers;        ///< of integers among the values
  std::vector<ModuleStack> stacks;
  std::vector<ModuleCall> calls;
  std::vector<std::vector<std::string>> assigned;
  std::map<std::string, std::unique_ptr<std::string>, std::less<>> words;  ///< targets and argument names, once each
};

/// The newest minor version of schema 8 that memest has met.
inline constexpr int kNewestMinor = 20;

/// Throws Error that says where the text does not follow the schema. `wants` says of which ops the outputs' sizes are kept.
std::unique_ptr<Program> read_program(JsonStream& json, bool (*wants)(const std::string& target));

/// A sympy expression as srepr writes it ("Mul(Integer(2), Symbol('s0', integer=True))") or as text ("2*s0"), in the grammar of
/// nn::SizeExpression. Throws Error that names what it does not know.
std::string size_expression(std::string_view text);

}  // namespace memest::spec::pt2
