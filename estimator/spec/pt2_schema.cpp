#include "spec/pt2_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "base/text.h"

namespace memest::spec::pt2 {
namespace {

using Kind = JsonStream::Kind;

/// torch/_export/serde/schema.py, ScalarType; numbers of its own, not c10's.
std::optional<DType> dtype_of(std::int64_t number) {
  switch (number) {
    case 1: return DType::uint8;
    case 2: return DType::int8;
    case 3: return DType::int16;
    case 4: return DType::int32;
    case 5: return DType::int64;
    case 6: return DType::float16;
    case 7: return DType::float32;
    case 8: return DType::float64;
    case 9: return DType::complex32;
    case 10: return DType::complex64;
    case 11: return DType::complex128;
    case 12: return DType::boolean;
    case 13: return DType::bfloat16;
    case 28: return DType::uint16;
    case 29: return DType::float8_e4m3fn;
    case 30: return DType::float8_e5m2;
    case 31: return DType::float8_e4m3fn;  // ...fnuz, the same size
    case 32: return DType::float8_e5m2;
    case 33: return DType::uint8;  // float8_e8m0fnu: no arithmetic, one byte
    case 34: return DType::uint32;
    case 35: return DType::uint64;
    default: return {};
  }
}

bool identifier(std::string_view t) {
  auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  if (t.empty() || !letter(t[0])) return false;
  for (char c : t)
    if (!letter(c) && !(c >= '0' && c <= '9')) return false;
  return true;
}
std::string_view trimmed(std::string_view t) {
  while (!t.empty() && (t.front() == ' ' || t.front() == '\t')) t.remove_prefix(1);
  while (!t.empty() && (t.back() == ' ' || t.back() == '\t')) t.remove_suffix(1);
  return t;
}

/// "x, y" of "x, y = f(z)", "x" of "x += y"; empty for what assigns no local name. A keyword argument on a line of its own has no space
/// before its "=", and mostly a comma or the call's bracket after it.
std::string_view assigned_by(std::string_view line) {
  line = trimmed(line);
  const auto equals = line.find('=');
  if (equals == line.npos || equals < 1 || equals + 1 >= line.size() || line[equals + 1] == '=') return {};
  std::string_view left = line.substr(0, equals);
  if (left.find_first_of("([{\"'#") != left.npos && !left.starts_with('(')) return {};
  static constexpr std::string_view kOperators = "+-*/@%&|^<>";
  while (!left.empty() && kOperators.find(left.back()) != kOperators.npos) left.remove_suffix(1);
  if (left.empty()) return {};
  if (left.back() != ' ') {  // "y=f(x)" is a statement, "y=f(x)," and "y=f(x))" are arguments
    if (line.back() == ',' || std::count(line.begin(), line.end(), '(') != std::count(line.begin(), line.end(), ')')) return {};
  }
  if (const auto colon = left.find(':'); colon != left.npos) left = left.substr(0, colon);  // x: Tensor = ...
  left = trimmed(left);
  if (left.starts_with('(') && left.ends_with(')')) left = left.substr(1, left.size() - 2);
  for (char c : left)
    if (c == '.' || c == '[' || c == '(') return {};
  return left;
}

/// x.float(), or an x.to(...) that names the type.
bool casts_to_float(std::string_view line) {
  if (line.find(".float(") != line.npos) return true;
  for (std::size_t at = 0; (at = line.find(".to(", at)) != line.npos; at += 4) {
    std::size_t end = at + 4;
    for (int open = 1; end < line.size() && open > 0; ++end) open += line[end] == '(' ? 1 : line[end] == ')' ? -1 : 0;
    if (line.substr(at, end - at).find("torch.float") != line.npos) return true;
  }
  return false;
}

class SchemaReader {
 public:
  SchemaReader(JsonStream& json, bool (*wants)(const std::string&)) : json_(json), wants_(wants), program_(std::make_unique<Program>()) {}

  std::unique_ptr<Program> read() {
    bool version = false, module = false;
    Once once(*this);
    if (json_.peek() != Kind::object) throw json_.error("an exported program is a JSON object", "torch.export.save writes one");
    json_.object([&](std::string_view key) {
      if (key == "graph_module") {
        once("graph_module");
        graph_module();
        module = true;
      } else if (key == "schema_version") {
        once("schema_version");
        schema_version();
        version = true;
      } else if (key == "range_constraints") {
        ranges();
      } else if (key == "torch_version") {
        program_->torch_version = json_.string();
      } else if (key == "verifiers") {
        json_.array([&] {
          if (json_.string() == "ATEN") program_->decomposed = true;
        });
      } else {
        json_.skip();
      }
    });
    json_.finish();
    if (!module) throw json_.error("\"graph_module\" is missing: this is no exported program");
    if (!version) throw json_.error("\"schema_version\" is missing: this is no exported program");
    for (int value : wanted_)
      if (!program_->tensors.contains(value) && !other_.contains(value))
        throw json_.error(fmt::format("\"tensor_values\" does not describe '{}'", program_->value_names[std::size_t(value)].substr(0, 80)));
    return std::move(program_);
  }

 private:
  /// Known keys of an object, each once.
  class Once {
   public:
    explicit Once(SchemaReader& reader) : reader_(reader) {}
    void operator()(const char* key) {
      if (!seen_.insert(key).second) throw reader_.json_.error(fmt::format("the key \"{}\" appears twice", key));
    }

   private:
    SchemaReader& reader_;
    std::set<std::string_view> seen_;
  };

  void schema_version() {
    if (json_.peek() == Kind::number) {  // torch 2.1
      program_->major = int(std::min<std::int64_t>(json_.integer(), 1000));
    } else {
      json_.object([&](std::string_view key) {
        if (key == "major")
          program_->major = int(std::min<std::int64_t>(json_.integer(), 1000));
        else if (key == "minor")
          program_->minor = int(std::min<std::int64_t>(json_.integer(), 1000));
        else
          json_.skip();
      });
    }
    if (program_->major < 1 || program_->major > 8)
      throw json_.error(
          fmt::format("the program has schema version {}.{}; memest reads 1 to 8 (torch 2.1 to 2.15)", program_->major, program_->minor),
          "export it with one of these releases");
  }

  void ranges() {
    json_.object([&](std::string_view key) {
      Range range;
      const std::string name(key);
      json_.object([&](std::string_view side) {
        std::optional<std::int64_t>* bound = side == "min_val" ? &range.least : side == "max_val" ? &range.most : nullptr;
        if (bound && json_.peek() == Kind::number) {
          const double value = json_.number();  // 2.1 wrote infinity as a large float
          if (value > -9e18 && value < 9e18) *bound = std::int64_t(value);
        } else {
          json_.skip();
        }
      });
      program_->ranges[name] = range;
    });
  }

  const std::string* word(std::string_view text) {
    auto it = program_->words.find(text);
    if (it == program_->words.end()) {
      if (program_->words.size() > 1'000'000) throw json_.error("more than a million different names");
      it = program_->words.emplace(std::string(text), std::make_unique<std::string>(text)).first;
    }
    return it->second.get();
  }

  // ---- the graph
  void graph_module() {
    Once once(*this);
    bool graph = false, signature = false;
    json_.object([&](std::string_view key) {
      if (key == "graph") {
        once("graph");
        read_graph(program_->graph, true);
        graph = true;
      } else if (key == "signature") {
        once("signature");
        read_signature();
        signature = true;
      } else if (key == "module_call_graph") {
        json_.array([&] {
          json_.object([&](std::string_view field) {
            if (field == "fqn")
              program_->modules.emplace_back(json_.string());
            else
              json_.skip();
          });
        });
      } else {
        json_.skip();
      }
    });
    if (!graph) throw json_.error("\"graph\" is missing");
    if (!signature) throw json_.error("\"signature\" is missing");
  }

  int value_of(Graph& graph, std::string_view name) {
    if (auto it = graph.names.find(name); it != graph.names.end()) return it->second;
    const int value = int(program_->value_names.size());
    graph.names.emplace(std::string(name), value);
    program_->value_names.emplace_back(name);
    return value;
  }

  void read_graph(Graph& graph, bool top) {
    if (++depth_ > 40) throw json_.error("graphs nest deeper than 40 levels");
    Graph* outer = graph_;
    graph_ = &graph;
    Once once(*this);
    bool inputs = false, nodes = false;
    json_.object([&](std::string_view key) {
      if (key == "inputs") {
        once("inputs");
        json_.array([&] {
          graph.inputs.push_back(argument());
          if (graph.inputs.back().kind == Argument::Kind::value) wanted_.insert(graph.inputs.back().value);
        });
        inputs = true;
      } else if (key == "outputs") {
        once("outputs");
        json_.array([&] { graph.outputs.push_back(argument()); });
      } else if (key == "nodes") {
        once("nodes");
        json_.array([&] { graph.nodes.push_back(node()); });
        nodes = true;
      } else if (key == "tensor_values") {
        once("tensor_values");
        const bool all = !inputs || !nodes;  // who asks for which is not known yet
        json_.object([&](std::string_view name) {
          auto it = graph.names.find(name);
          const int value = all ? value_of(graph, name) : it != graph.names.end() && wanted_.contains(it->second) ? it->second : -1;
          TensorMeta meta = tensor_meta(value >= 0);
          if (value >= 0) program_->tensors[value] = std::move(meta);
        });
      } else if (key == "sym_int_values") {
        json_.object([&](std::string_view name) {
          const int value = value_of(graph, name);
          program_->integers[value] = sym_int();
          other_.insert(value);
        });
      } else if (key == "sym_bool_values" || key == "sym_float_values" || key == "custom_obj_values") {
        json_.object([&](std::string_view name) {
          other_.insert(value_of(graph, name));
          json_.skip();
        });
      } else {
        json_.skip();
      }
    });
    if (!inputs || !nodes) throw json_.error(fmt::format("\"{}\" is missing", inputs ? "nodes" : "inputs"));
    if (!top)
      for (auto& input : graph.inputs)
        if (input.kind == Argument::Kind::value) wanted_.erase(input.value);  // operands have sizes of their own
    graph_ = outer;
    --depth_;
  }

  TensorMeta tensor_meta(bool keep) {
    TensorMeta meta;
    bool sizes = false, dtype = false, nested = false;
    json_.object([&](std::string_view key) {
      if (key == "meta" && json_.peek() == Kind::object) {  // torch 2.1
        meta = tensor_meta_body(keep, sizes, dtype);
        nested = true;
      } else {
        meta_field(key, meta, keep, sizes, dtype);
      }
    });
    if (!nested && (!sizes || !dtype)) throw json_.error("a tensor needs \"dtype\" and \"sizes\"");
    return meta;
  }
  TensorMeta tensor_meta_body(bool keep, bool& sizes, bool& dtype) {
    TensorMeta meta;
    json_.object([&](std::string_view key) { meta_field(key, meta, keep, sizes, dtype); });
    return meta;
  }
  void meta_field(std::string_view key, TensorMeta& meta, bool keep, bool& sizes, bool& dtype) {
    if (key == "dtype") {
      meta.dtype = scalar_type();
      dtype = true;
    } else if (key == "sizes") {
      json_.array([&] {
        SymInt size = sym_int();
        if (size.expression.empty() && size.value < 0) throw json_.error(fmt::format("a size of {} is negative", size.value));
        if (keep) {
          meta.sizes.push_back(std::move(size));
          if (meta.sizes.size() > 64) throw json_.error("a tensor has at most 64 dimensions");
        }
      });
      sizes = true;
    } else if (key == "requires_grad") {
      meta.requires_grad = json_.boolean();
    } else {
      json_.skip();
    }
  }

  DType scalar_type() {
    if (json_.peek() == Kind::string) {  // very old files hold names
      const std::string name = lower(json_.string());
      if (auto type = dtype_from(name)) return *type;
      throw json_.error(fmt::format("unknown dtype '{}'", name.substr(0, 40)));
    }
    const std::int64_t number = json_.integer();
    if (auto type = dtype_of(number)) return *type;
    throw json_.error(fmt::format("unknown dtype {}: 1 to 13 and 28 to 35 are known", number));
  }
  static std::string lower(std::string_view text) {
    std::string out(text);
    for (char& c : out)
      if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
    return out;
  }

  SymInt sym_int() {
    SymInt size;
    if (json_.peek() == Kind::number) {
      size.value = json_.integer();
      return size;
    }
    bool found = false;
    json_.object([&](std::string_view tag) {
      found = true;
      if (tag == "as_int") {
        size.value = json_.integer();
      } else if (tag == "as_expr") {
        std::string problem, hint;
        if (json_.peek() == Kind::string) {
          size.expression = size_expression(json_.string());
          return;
        }
        json_.object([&](std::string_view key) {
          if (key == "expr_str") {
            try {
              size.expression = size_expression(json_.string());
            } catch (Error& e) {
              problem = e.message();
              hint = e.hint();
            }
          } else if (key == "hint" && json_.peek() == Kind::object) {
            json_.object([&](std::string_view kind) {
              if (kind == "as_int")
                size.hint = json_.integer();
              else
                json_.skip();
            });
          } else {
            json_.skip();
          }
        });
        if (!problem.empty()) {  // the example's value is better than nothing
          if (!size.hint) throw json_.error(problem, hint);
          size.value = *size.hint;
        }
        if (problem.empty() && size.expression.empty()) throw json_.error("an expression needs \"expr_str\"");
      } else {
        throw json_.error(fmt::format("'{}' is no kind of size: as_int or as_expr", tag.substr(0, 40)));
      }
    });
    if (!found) throw json_.error("a size is {\"as_int\": N} or {\"as_expr\": ...}");
    return size;
  }

  // ---- arguments
  Argument constant(memest::Value value) {
    Argument a;
    a.constant = std::move(value);
    return a;
  }
  Argument named(int value) {
    Argument a;
    a.kind = Argument::Kind::value;
    a.value = value;
    return a;
  }
  /// {"name": "x"}
  Argument tensor() {
    int value = -1;
    json_.object([&](std::string_view key) {
      if (key == "name")
        value = value_of(*graph_, json_.string());
      else
        json_.skip();
    });
    if (value < 0) throw json_.error("a tensor needs its \"name\"");
    return named(value);
  }
  double real() {
    if (json_.peek() != Kind::string) return json_.number();
    const std::string text(json_.string());
    if (text == "Infinity" || text == "inf") return std::numeric_limits<double>::infinity();
    if (text == "-Infinity" || text == "-inf") return -std::numeric_limits<double>::infinity();
    if (text == "NaN" || text == "nan") return std::numeric_limits<double>::quiet_NaN();
    throw json_.error(fmt::format("'{}' is no number", text.substr(0, 40)));
  }
  template <class F>
  Argument list(F item) {
    Argument a;
    a.kind = Argument::Kind::list;
    json_.array([&] { a.items.push_back(item()); });
    return a;
  }
  /// {"as_name": "s0"} or {"as_int": 3}
  Argument symbol() {
    Argument a;
    one_tag([&](std::string_view tag) {
      if (tag == "as_name")
        a = named(value_of(*graph_, json_.string()));
      else if (tag == "as_int")
        a.constant = json_.integer();
      else if (tag == "as_float")
        a.constant = real();
      else if (tag == "as_bool")
        a.constant = json_.boolean();
      else
        throw unknown_tag(tag);
    });
    return a;
  }
  Argument optional_tensor() {
    Argument a;
    one_tag([&](std::string_view tag) {
      if (tag == "as_tensor")
        a = tensor();
      else if (tag == "as_none")
        json_.skip();
      else
        throw unknown_tag(tag);
    });
    return a;
  }
  Error unknown_tag(std::string_view tag) {
    return json_.error(fmt::format("'{}' is no kind of argument that memest knows", tag.substr(0, 60)));
  }
  template <class F>
  void one_tag(F f) {
    int tags = 0;
    json_.object([&](std::string_view tag) {
      // a union as it was written before 2.2 has its other members as null
      if (json_.peek() == Kind::null) return json_.null();
      if (++tags > 1) throw json_.error("an argument is of one kind");
      f(tag);
    });
    if (tags == 0) throw json_.error("an argument has a kind, as {\"as_int\": 3}");
  }

  Argument argument() {
    if (++depth_ > 60) throw json_.error("arguments nest deeper than 60 levels");
    Argument a;
    one_tag([&](std::string_view tag) { a = tagged(tag); });
    --depth_;
    return a;
  }

  Argument tagged(std::string_view tag) {
    if (tag == "as_tensor") return tensor();
    if (tag == "as_int") return constant(json_.integer());
    if (tag == "as_ints") return list([&] { return constant(json_.integer()); });
    if (tag == "as_bool") return constant(json_.boolean());
    if (tag == "as_float") return constant(real());
    if (tag == "as_none") {
      json_.skip();
      return {};
    }
    if (tag == "as_tensors") return list([&] { return tensor(); });
    if (tag == "as_sym_int" || tag == "as_sym_float" || tag == "as_sym_bool") return symbol();
    if (tag == "as_sym_ints" || tag == "as_sym_floats" || tag == "as_sym_bools") return list([&] { return symbol(); });
    if (tag == "as_floats") return list([&] { return constant(real()); });
    if (tag == "as_bools") return list([&] { return constant(json_.boolean()); });
    if (tag == "as_string") return constant(std::string(json_.string()));
    if (tag == "as_strings") return list([&] { return constant(std::string(json_.string())); });
    if (tag == "as_scalar_type") return constant(scalar_type());
    if (tag == "as_memory_format") return constant(memory_format());
    if (tag == "as_layout") {
      json_.skip();
      return constant(std::string("layout"));
    }
    if (tag == "as_device") {
      json_.skip();
      return constant(std::string("device"));
    }
    if (tag == "as_optional_tensor") return optional_tensor();
    if (tag == "as_optional_tensors") return list([&] { return optional_tensor(); });
    if (tag == "as_nested_tensors") return list([&] { return list([&] { return tensor(); }); });
    if (tag == "as_int_lists") return list([&] { return list([&] { return constant(json_.integer()); }); });
    if (tag == "as_graph") return subgraph();
    if (tag == "as_custom_obj") return tensor();
    if (tag == "as_token") return tensor();
    if (tag == "as_operator") return constant(std::string(json_.string()));
    if (tag == "as_complex") {
      json_.skip();
      return constant(0.0);
    }
    if (tag == "as_string_to_argument") {
      Argument a;
      a.kind = Argument::Kind::dict;
      json_.object([&](std::string_view key) {
        a.keys.emplace_back(key);
        a.items.push_back(argument());
      });
      return a;
    }
    throw unknown_tag(tag);
  }

  MemoryFormat memory_format() {
    static constexpr const char* names[] = {"", "contiguousformat", "channelslast", "channelslast3d", "preserveformat"};
    static constexpr MemoryFormat formats[] = {MemoryFormat::preserve, MemoryFormat::contiguous, MemoryFormat::channels_last,
                                               MemoryFormat::channels_last_3d, MemoryFormat::preserve};
    if (json_.peek() == Kind::string) {
      const std::string name = lower(json_.string());
      for (std::size_t i = 1; i < 5; ++i)
        if (name == names[i]) return formats[i];
      throw json_.error(fmt::format("unknown memory format '{}'", name.substr(0, 40)));
    }
    const std::int64_t number = json_.integer();
    if (number < 1 || number > 4) throw json_.error(fmt::format("unknown memory format {}", number));
    return formats[std::size_t(number)];
  }

  Argument subgraph() {
    Argument a;
    a.kind = Argument::Kind::graph;
    json_.object([&](std::string_view key) {
      if (key == "graph") {
        a.graph = std::make_shared<Graph>();
        read_graph(*a.graph, false);
      } else {
        json_.skip();
      }
    });
    if (!a.graph) throw json_.error("an argument as_graph needs its \"graph\"");
    return a;
  }

  // ---- nodes
  Node node() {
    Node n;
    json_.object([&](std::string_view key) {
      if (key == "target") {
        if (json_.peek() == Kind::object)
          json_.object([&](std::string_view field) {  // before 2.1
            if (field == "name")
              n.target = word(json_.string());
            else
              json_.skip();
          });
        else
          n.target = word(json_.string());
      } else if (key == "inputs") {
        json_.array([&] { n.inputs.push_back(named_argument()); });
      } else if (key == "outputs") {
        json_.array([&] {
          Argument a = argument();
          if (a.kind == Argument::Kind::list && n.outputs.empty()) n.list = true;
          if (n.list && a.kind != Argument::Kind::list) throw json_.error("a node gives a list or several values, not both");
          if (a.kind == Argument::Kind::list) {
            for (auto& item : a.items) n.outputs.push_back(item.kind == Argument::Kind::value ? item.value : -1);
          } else {
            n.outputs.push_back(a.kind == Argument::Kind::value ? a.value : -1);
          }
        });
      } else if (key == "metadata") {
        metadata(n);
      } else if (key == "name" && json_.peek() == Kind::string) {
        n.name = json_.string();
      } else {
        json_.skip();
      }
    });
    if (!n.target || n.target->empty()) throw json_.error("a node needs a \"target\"");
    if (n.name.empty()) {
      n.name = *n.target;
      for (int value : n.outputs)
        if (value >= 0) {
          n.name = program_->value_names[std::size_t(value)];
          break;
        }
    }
    if (wants_(*n.target))
      for (int value : n.outputs)
        if (value >= 0) wanted_.insert(value);
    return n;
  }

  NamedArgument named_argument() {
    NamedArgument named{nullptr, {}};
    bool given = false;
    json_.object([&](std::string_view key) {
      if (key == "name") {
        if (json_.peek() == Kind::null)
          json_.null();
        else
          named.name = word(json_.string());
      } else if (key == "arg") {
        named.arg = argument();
        given = true;
      } else {
        json_.skip();
      }
    });
    if (!given) throw json_.error("an input of a node has an \"arg\"");
    if (!named.name) named.name = word("");
    return named;
  }

  void metadata(Node& n) {
    json_.object([&](std::string_view key) {
      if (key == "nn_module_stack" && json_.peek() == Kind::string)
        n.stack = stack(json_.string());
      else if (key == "stack_trace" && json_.peek() == Kind::string)
        n.statements = statements(json_.string());
      else
        json_.skip();
    });
  }

  /// "key,path,type;key,path,type": commas and semicolons count outside brackets.
  int stack(std::string_view text) {
    if (auto it = stacks_.find(text); it != stacks_.end()) return it->second;
    ModuleStack stack;
    std::vector<std::string> parts(1);
    int brackets = 0;
    auto entry = [&] {
      if (parts.size() < 3) return;
      std::string type = parts.back();
      // "net.1" names the call in 2.6 to 2.15, "L['self'].net[1]" in older releases
      std::string key = parts[0];
      const std::string identity = key + "\n" + parts[1];
      auto [it, made] = calls_.try_emplace(identity, int(program_->calls.size()));
      if (made) program_->calls.push_back({std::move(key), parts[1], std::move(type)});
      stack.push_back(it->second);
    };
    for (char c : text) {
      if (c == '[' || c == '(') ++brackets;
      if (c == ']' || c == ')') --brackets;
      if (c == ';' && brackets <= 0) {
        entry();
        parts.assign(1, "");
      } else if (c == ',' && brackets <= 0) {
        parts.emplace_back();
      } else {
        parts.back().push_back(c);
      }
    }
    entry();
    const int index = int(program_->stacks.size());
    program_->stacks.push_back(std::move(stack));
    stacks_.emplace(std::string(text), index);
    return index;
  }

  /// The names that a line assigns, in Program::assigned; -1 for none.
  int names_of(std::string_view line) {
    const std::string_view names = assigned_by(line);
    if (names.empty()) return -1;
    auto it = assigned_.find(names);
    if (it == assigned_.end()) {
      std::vector<std::string> list;
      bool plain = true;
      for (auto& part : split(names, ',')) {
        list.emplace_back(trimmed(part));
        plain = plain && (identifier(list.back()) || list.back().empty());
      }
      if (!list.empty() && list.back().empty()) list.pop_back();
      it = assigned_.emplace(std::string(names), plain && !list.empty() ? int(program_->assigned.size()) : -1).first;
      if (it->second >= 0) program_->assigned.push_back(std::move(list));
    }
    return it->second;
  }

  /// The line of a function outside PyTorch: `File "net.py", line 48, in helper`.
  std::optional<HelperLine> helper(std::string_view head, std::string_view line) {
    const auto comma = head.rfind(", in "), number = head.rfind(", line ", comma);
    if (comma == head.npos || number == head.npos || head.find("/torch/") != head.npos) return {};
    const auto at = parse_int(head.substr(number + 7, comma - number - 7));
    if (!at || *at < 0 || *at > std::numeric_limits<int>::max()) return {};
    const std::hash<std::string_view> hash;
    return HelperLine{hash(head.substr(0, number)) * 31 + hash(head.substr(comma)), int(*at), names_of(line)};
  }

  /// The places in functions named forward, outermost first.
  std::vector<Statement> statements(std::string_view text) {
    std::vector<Statement> found;
    while (!text.empty()) {
      const auto start = text.find("File \"");
      if (start == text.npos) break;
      text.remove_prefix(start);
      const auto end = text.find('\n');
      const std::string_view head = text.substr(0, end);
      std::string_view line;
      text = end == text.npos ? std::string_view() : text.substr(end + 1);
      if (!trimmed(text).starts_with("File \"")) {
        const auto next = text.find('\n');
        line = text.substr(0, next);
        text = next == text.npos ? std::string_view() : text.substr(next + 1);
      }
      if (head.find("torch/_dynamo/") != head.npos) continue;
      if (!head.ends_with(", in forward")) {
        if (found.empty()) continue;
        if (const auto called = helper(head, line)) found.back().helpers.push_back(*called);
        continue;
      }
      Statement s;
      s.line = std::hash<std::string_view>{}(head);
      s.casts = casts_to_float(line);
      s.floats = s.casts || line.find("torch.float") != line.npos;
      s.names = names_of(line);
      found.push_back(s);
    }
    return found;
  }

  // ---- the signature
  void read_signature() {
    graph_ = &program_->graph;
    // torch 2.1: dictionaries from names to names
    std::map<std::string, std::string> parameters, buffers, mutated, gradients;
    std::vector<std::string> user_outputs;
    std::string loss;
    bool old = false;
    auto names = [&](std::map<std::string, std::string>& into) {
      old = true;
      json_.object([&](std::string_view key) {
        std::string name(key);
        into[name] = json_.string();
      });
    };
    json_.object([&](std::string_view key) {
      if (key == "input_specs") {
        json_.array([&] { program_->inputs.push_back(input_spec()); });
      } else if (key == "output_specs") {
        json_.array([&] { program_->outputs.push_back(output_spec()); });
      } else if (key == "inputs_to_parameters") {
        names(parameters);
      } else if (key == "inputs_to_buffers") {
        names(buffers);
      } else if (key == "buffers_to_mutate") {
        names(mutated);
      } else if (key == "user_outputs") {
        json_.array([&] { user_outputs.emplace_back(json_.string()); });
      } else if (key == "backward_signature" && json_.peek() == Kind::object) {
        json_.object([&](std::string_view field) {
          if (field == "loss_output" && json_.peek() == Kind::string)
            loss = json_.string();
          else if (field == "gradients_to_parameters")
            names(gradients);
          else
            json_.skip();
        });
      } else {
        json_.skip();
      }
    });
    if (!old) return;
    graph_ = &program_->graph;
    for (auto& input : program_->graph.inputs) {
      InputSpec spec;
      spec.arg = input;
      if (input.kind == Argument::Kind::value) {
        const std::string& name = program_->value_names[std::size_t(input.value)];
        if (auto it = parameters.find(name); it != parameters.end()) spec.kind = InputSpec::Kind::parameter, spec.target = it->second;
        if (auto it = buffers.find(name); it != buffers.end()) spec.kind = InputSpec::Kind::buffer, spec.target = it->second;
      }
      program_->inputs.push_back(std::move(spec));
    }
    for (auto& output : program_->graph.outputs) {
      OutputSpec spec;
      spec.arg = output;
      if (output.kind == Argument::Kind::value) {
        const std::string& name = program_->value_names[std::size_t(output.value)];
        if (auto it = mutated.find(name); it != mutated.end()) spec.kind = OutputSpec::Kind::buffer, spec.target = it->second;
        if (auto it = gradients.find(name); it != gradients.end())
          spec.kind = OutputSpec::Kind::parameter_gradient, spec.target = it->second;
        if (name == loss) spec.kind = OutputSpec::Kind::loss;
      }
      program_->outputs.push_back(std::move(spec));
    }
  }

  /// The argument of a spec: {"name": ...} for a tensor, or any argument.
  Argument spec_argument() {
    Argument a;
    bool given = false;
    json_.object([&](std::string_view key) {
      if (key == "name") {
        a = named(value_of(program_->graph, json_.string()));
        given = true;
      } else if (key == "class_fqn") {
        json_.skip();
      } else if (json_.peek() == Kind::null) {
        json_.null();
      } else {
        a = tagged(key);
        given = true;
      }
    });
    if (!given) throw json_.error("an argument of the signature is empty");
    return a;
  }

  InputSpec input_spec() {
    InputSpec spec;
    one_tag([&](std::string_view tag) {
      static constexpr std::pair<const char*, InputSpec::Kind> kinds[] = {{"user_input", InputSpec::Kind::user},
                                                                          {"parameter", InputSpec::Kind::parameter},
                                                                          {"buffer", InputSpec::Kind::buffer},
                                                                          {"tensor_constant", InputSpec::Kind::constant},
                                                                          {"custom_obj", InputSpec::Kind::custom_object},
                                                                          {"token", InputSpec::Kind::token},
                                                                          {"constant_input", InputSpec::Kind::fixed}};
      bool known = false;
      for (auto& [name, kind] : kinds)
        if (tag == name) spec.kind = kind, known = true;
      if (!known) throw json_.error(fmt::format("'{}' is no kind of input that memest knows", tag.substr(0, 60)));
      bool given = spec.kind == InputSpec::Kind::fixed;
      json_.object([&](std::string_view key) {
        if (key == "arg") {
          spec.arg = spec_argument();
          given = true;
        } else if (key == "parameter_name" || key == "buffer_name" || key == "tensor_constant_name" || key == "name") {
          spec.target = json_.string();
        } else {
          json_.skip();
        }
      });
      if (!given) throw json_.error("an input of the signature needs its \"arg\"");
    });
    return spec;
  }

  OutputSpec output_spec() {
    OutputSpec spec;
    one_tag([&](std::string_view tag) {
      static constexpr std::pair<const char*, OutputSpec::Kind> kinds[] = {{"user_output", OutputSpec::Kind::user},
                                                                           {"loss_output", OutputSpec::Kind::loss},
                                                                           {"buffer_mutation", OutputSpec::Kind::buffer},
                                                                           {"parameter_mutation", OutputSpec::Kind::parameter},
                                                                           {"gradient_to_parameter", OutputSpec::Kind::parameter_gradient},
                                                                           {"gradient_to_user_input", OutputSpec::Kind::input_gradient},
                                                                           {"user_input_mutation", OutputSpec::Kind::user_input},
                                                                           {"token", OutputSpec::Kind::token}};
      bool known = false, given = false;
      for (auto& [name, kind] : kinds)
        if (tag == name) spec.kind = kind, known = true;
      if (!known) throw json_.error(fmt::format("'{}' is no kind of output that memest knows", tag.substr(0, 60)));
      json_.object([&](std::string_view key) {
        if (key == "arg") {
          spec.arg = spec_argument();
          given = true;
        } else if (key == "parameter_name" || key == "buffer_name" || key == "user_input_name") {
          spec.target = json_.string();
        } else {
          json_.skip();
        }
      });
      if (!given) throw json_.error("an output of the signature needs its \"arg\"");
    });
    return spec;
  }

  JsonStream& json_;
  bool (*wants_)(const std::string&);
  std::unique_ptr<Program> program_;
  Graph* graph_ = nullptr;
  std::set<int> wanted_;  ///< values whose sizes are kept
  std::set<int> other_;   ///< values that are no tensors
  Numbered stacks_, calls_, assigned_;
  int depth_ = 0;
};

// ---- expressions

/// Recursive descent over Name(argument, ...), quoted names and numbers.
class ExpressionReader {
 public:
  explicit ExpressionReader(std::string_view text) : text_(text) {}
  std::string read() {
    std::string out = expression(0);
    space();
    if (at_ != text_.size()) throw bad();
    return out;
  }

 private:
  Error bad() const { return Error(fmt::format("'{}' is no expression over sizes that memest can read", text_.substr(0, 80))); }
  void space() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(char c) {
    space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::string token() {
    space();
    const std::size_t start = at_;
    auto inside = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
    };
    while (at_ < text_.size() && inside(text_[at_])) ++at_;
    return std::string(text_.substr(start, at_ - start));
  }
  std::string quoted() {
    space();
    const char quote = at_ < text_.size() ? text_[at_] : 0;
    if (quote != '\'' && quote != '"') throw bad();
    const auto end = text_.find(quote, at_ + 1);
    if (end == text_.npos) throw bad();
    const std::string name(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    if (!identifier(name)) throw bad();
    return name;
  }

  std::string expression(int depth) {
    if (depth > 60) throw bad();
    const std::string name = token();
    if (name.empty()) throw bad();
    if (parse_int(name)) return name;
    if (!take('(')) throw bad();
    if (name == "Symbol") {
      const std::string symbol = quoted();
      while (take(',')) {  // assumptions: positive=True
        if (token().empty() || !take('=') || token().empty()) throw bad();
      }
      if (!take(')')) throw bad();
      return symbol;
    }
    std::vector<std::string> a;
    if (!take(')')) {
      do a.push_back(expression(depth + 1));
      while (take(','));
      if (!take(')')) throw bad();
    }
    return applied(name, a);
  }

  std::string applied(const std::string& name, const std::vector<std::string>& a) {
    auto joined = [&](const char* sign) { return "(" + join(a, sign) + ")"; };
    if (name == "Integer" && a.size() == 1) return a[0];
    if (name == "Rational" && a.size() == 2) return "(" + a[0] + "/" + a[1] + ")";
    if (name == "Add" && !a.empty()) return joined(" + ");
    if (name == "Mul" && !a.empty()) {
      // a fraction divides the whole product
      std::vector<std::string> factors, divisors;
      for (auto& f : a) {
        const auto slash = f.find('/');
        if (slash != f.npos && f.find_first_of(" (", 1) == f.npos) {
          factors.push_back(f.substr(1, slash - 1));
          divisors.push_back(f.substr(slash + 1, f.size() - slash - 2));
        } else {
          factors.push_back(f);
        }
      }
      std::string product = "(" + join(factors, " * ") + ")";
      for (auto& d : divisors) product = "(" + product + " // " + d + ")";
      return product;
    }
    if (name == "Pow" && a.size() == 2) {
      const auto power = parse_int(a[1]);
      if (power && *power >= 0 && *power <= 16) {
        std::string product = "1";
        for (std::int64_t i = 0; i < *power; ++i) product += " * " + a[0];
        return "(" + product + ")";
      }
    }
    if ((name == "FloorDiv" || name == "CleanDiv" || name == "IntTrueDiv") && a.size() == 2) return joined(" // ");
    if (name == "CeilDiv" && a.size() == 2) return "(-((-" + a[0] + ") // " + a[1] + "))";
    if ((name == "Mod" || name == "PythonMod") && a.size() == 2) return joined(" % ");
    if ((name == "Max" || name == "Min") && !a.empty()) return (name == "Max" ? "max(" : "min(") + join(a, ", ") + ")";
    if ((name == "Identity" || name == "TruncToInt" || name == "FloorToInt" || name == "ToFloat") && a.size() == 1) return a[0];
    throw Error(fmt::format("the size is an expression with '{}', which memest does not know", name.substr(0, 40)));
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::string size_expression(std::string_view text) {
  if (text.size() > 10'000) throw Error("an expression of more than 10,000 characters");
  // srepr is made of calls; a plain text is a symbol or an arithmetic expression
  const auto open = text.find('(');
  const bool srepr = open != text.npos && open > 0 && identifier(text.substr(0, open));
  if (!srepr && !parse_int(text)) {
    std::string plain(text);
    for (std::size_t i = 0; (i = plain.find("**", i)) != plain.npos;)
      throw Error(fmt::format("'{}' is no expression over sizes that memest can read", text.substr(0, 80)));
    return plain;
  }
  return ExpressionReader(text).read();
}

std::unique_ptr<Program> read_program(JsonStream& json, bool (*wants)(const std::string& target)) {
  return SchemaReader(json, wants).read();
}

}  // namespace memest::spec::pt2
