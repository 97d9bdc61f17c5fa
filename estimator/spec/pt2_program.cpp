#include "spec/pt2_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "base/text.h"
#include "fake/runtime.h"
#include "nn/exported.h"
#include "nn/layer.h"
#include "ops/op.h"

namespace memest::spec::pt2 {
namespace {

using nn::ExportedArgument;
using nn::ExportedFrame;
using nn::ExportedModule;
using nn::ExportedStep;
using I = std::int64_t;

constexpr std::string_view kHigherOrder = "torch.ops.higher_order.";

/// "torch.ops.aten.add.Tensor": "aten.add.Tensor"; "_operator.mul": "operator.mul".
std::string plain(const std::string& target) {
  if (target.starts_with("torch.ops.")) return target.substr(10);
  if (target.starts_with("_operator.")) return target.substr(1);
  if (target.starts_with("builtins.")) return target.substr(9);
  return target;
}
/// "aten.add.Tensor": {"aten::add", "Tensor"}.
std::pair<std::string, std::string> op_name(const std::string& name) {
  const auto first = name.find('.'), last = name.rfind('.');
  if (first == name.npos || first == last) return {};
  return {name.substr(0, first) + "::" + name.substr(first + 1, last - first - 1), name.substr(last + 1)};
}

enum class Region { none, inlined, grad_mode, autocast };
/// Higher-order ops that run a graph as it stands.
Region region_of(const std::string& target) {
  if (!target.starts_with(kHigherOrder)) return Region::none;
  const std::string_view name = std::string_view(target).substr(kHigherOrder.size());
  if (name == "wrap_with_set_grad_enabled") return Region::grad_mode;
  if (name == "wrap_with_autocast") return Region::autocast;
  if (name == "wrap" || name == "strict_mode" || name == "hints_wrapper" || name == "invoke_subgraph" || name == "run_const_graph" ||
      name == "tag_activation_checkpoint" || name == "wrap_activation_checkpoint")
    return Region::inlined;
  return Region::none;
}
std::optional<ExportedStep::Kind> looping(const std::string& target) {
  if (!target.starts_with(kHigherOrder)) return {};
  const std::string_view name = std::string_view(target).substr(kHigherOrder.size());
  if (name == "cond") return ExportedStep::Kind::cond;
  if (name == "map_impl" || name == "map") return ExportedStep::Kind::map;
  if (name == "scan") return ExportedStep::Kind::scan;
  if (name == "while_loop") return ExportedStep::Kind::while_loop;
  return {};
}
bool reads_a_number(const std::string& target) {
  return target == "torch.ops.aten.item.default" || target == "torch.ops.aten._local_scalar_dense.default";
}

/// The argument of an op that says whether it trains; empty for other ops.
std::string_view training_argument(std::string_view op) {
  static const std::map<std::string_view, std::string_view> table{
      {"aten::dropout", "train"},
      {"aten::dropout_", "train"},
      {"aten::native_dropout", "train"},
      {"aten::feature_dropout", "train"},
      {"aten::feature_dropout_", "train"},
      {"aten::alpha_dropout", "train"},
      {"aten::alpha_dropout_", "train"},
      {"aten::feature_alpha_dropout", "train"},
      {"aten::feature_alpha_dropout_", "train"},
      {"aten::batch_norm", "training"},
      {"aten::rrelu", "training"},
      {"aten::rrelu_", "training"},
      {"aten::lstm", "train"},
      {"aten::gru", "train"},
      {"aten::rnn_tanh", "train"},
      {"aten::rnn_relu", "train"},
      {"aten::scaled_dot_product_attention", "dropout_p"},
  };
  auto it = table.find(op);
  return it == table.end() ? std::string_view() : it->second;
}

/// Ops that make a tensor of a type that they are given: noise like an input, a mask.
bool is_factory(std::string_view op) {
  static constexpr std::string_view names[] = {"aten::empty",    "aten::zeros",         "aten::ones", "aten::full",
                                               "aten::rand",     "aten::randn",         "aten::new_", "aten::arange",
                                               "aten::linspace", "aten::scalar_tensor", "aten::eye",  "aten::tri"};
  return std::any_of(std::begin(names), std::end(names), [&](auto name) { return op.starts_with(name); });
}

/// The type's own name: "torch.nn.modules.linear.Linear": "Linear".
std::string short_type(const std::string& type) { return type.substr(type.rfind('.') + 1); }
/// "layers.0@1": "layers.0", called for the second time.
std::string without_call(const std::string& path) { return path.substr(0, path.find('@')); }

std::vector<std::string> identifiers(const std::string& expression) { return nn::SizeExpression(expression).symbols(); }

class Builder {
 public:
  Builder(const Program& program, const Payloads& payloads, const ReadOptions& options)
      : p_(program), payloads_(payloads), options_(options), flat_(options.graph_lifetimes) {
    joint_ = std::any_of(p_.outputs.begin(), p_.outputs.end(), [](auto& o) { return o.kind == OutputSpec::Kind::parameter_gradient; });
    if (joint_)
      model_ = std::make_unique<nn::ExportedJointModel>();
    else
      model_ = std::make_unique<nn::Model>();
  }

  std::unique_ptr<nn::Model> build() {
    if (p_.inputs.size() != p_.graph.inputs.size())
      throw Error(fmt::format("the signature lists {} inputs, the graph has {}", p_.inputs.size(), p_.graph.inputs.size()));
    bind_symbols();
    make_modules();
    make_states();
    find_mode();
    build_frames();
    tell();
    return std::move(model_);
  }

 private:
  const std::string& name_of(int value) const { return p_.value_names[std::size_t(value)]; }

  // ---- sizes
  /// The expression with the batch's symbol under its own name.
  nn::SizeExpression size(const SymInt& s) const {
    if (s.expression.empty()) return nn::SizeExpression(std::to_string(s.value));
    if (batch_symbol_.empty()) return nn::SizeExpression(s.expression);
    std::string text, word;
    auto flush = [&] {
      text += word == batch_symbol_ ? "batch" : word;
      word.clear();
    };
    for (char c : s.expression) {
      if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_') {
        word += c;
      } else {
        flush();
        text += c;
      }
    }
    flush();
    return nn::SizeExpression(text);
  }

  struct Place {
    int value;
    std::size_t dim;
  };
  /// The user's inputs that are tensors, in order.
  std::vector<int> user_tensors() const {
    std::vector<int> values;
    for (auto& spec : p_.inputs)
      if (spec.kind == InputSpec::Kind::user && spec.arg.kind == Argument::Kind::value && p_.tensors.contains(spec.arg.value))
        values.push_back(spec.arg.value);
    return values;
  }
  const TensorMeta& meta(int value) const {
    auto it = p_.tensors.find(value);
    if (it == p_.tensors.end()) throw Error(fmt::format("\"tensor_values\" does not describe '{}'", name_of(value).substr(0, 80)));
    return it->second;
  }

  std::string range_text(const std::string& symbol) const {
    auto it = p_.ranges.find(symbol);
    if (it == p_.ranges.end() || (!it->second.least && !it->second.most)) return "";
    const Range& r = it->second;
    const bool open = !r.most || *r.most > I{1} << 48;
    if (open) return fmt::format("{} or more", r.least.value_or(0));
    return fmt::format("{} to {}", r.least.value_or(0), *r.most);
  }
  bool in_range(const std::string& symbol, I value) const {
    auto it = p_.ranges.find(symbol);
    return it == p_.ranges.end() || ((!it->second.least || value >= *it->second.least) && (!it->second.most || value <= *it->second.most));
  }
  void check_range(const std::string& symbol, I value, const std::string& option) const {
    if (in_range(symbol, value)) return;
    throw Error(fmt::format("{} {}: the program was exported for {}", option, value, range_text(symbol)),
                "export it with other bounds (torch.export.Dim, scripts/export_pt2.py)");
  }

  void bind_symbols() {
    const std::vector<int> inputs = user_tensors();
    auto& symbols = *model_->symbols;
    // The batch is the first dimension of the first input.
    std::optional<I> hint;
    if (!inputs.empty() && !meta(inputs[0]).sizes.empty()) {
      const SymInt& first = meta(inputs[0]).sizes[0];
      if (first.expression.empty()) {
        model_->file_batch = first.value;
      } else if (identifiers(first.expression).size() == 1 && identifiers(first.expression)[0] == first.expression) {
        batch_symbol_ = first.expression;
        hint = first.hint;
      }
    }
    std::map<std::string, I> given;
    for (auto& [name, value] : options_.sizes)
      if (name != "batch") given[name] = value;
    std::vector<I> batches = options_.batches;
    overrides(given, batches);
    if (!batch_symbol_.empty()) {
      if (auto it = given.find(batch_symbol_); it != given.end() && batches.empty()) batches.push_back(it->second), given.erase(it);
      for (I batch : batches) check_range(batch_symbol_, batch, "--batch");
      if (batches.empty()) {
        // one sample, or as many as in the example where the program does not hold for one
        const I least = p_.ranges.contains(batch_symbol_) ? p_.ranges.at(batch_symbol_).least.value_or(1) : 1;
        model_->file_batch = in_range(batch_symbol_, 1) ? 1 : hint && in_range(batch_symbol_, *hint) ? *hint : least;
      } else if (options_.batches.empty()) {
        model_->file_batch = batches[0];
      }
      symbols["batch"] = batches.empty() ? model_->file_batch : batches[0];
    } else {
      for (I batch : options_.batches)
        if (model_->file_batch && batch != model_->file_batch)
          throw Error(
              fmt::format("--batch {}: the program was exported for {} samples, and for no other number", batch, model_->file_batch),
              "export it with a dynamic batch: scripts/export_pt2.py does, or dynamic_shapes of torch.export.export");
      symbols["batch"] = model_->file_batch ? model_->file_batch : 1;
    }
    bind_options(inputs, given);
    for (auto& [name, value] : given) {
      if (!is_symbol(name)) throw Error(fmt::format("--set {}: the program has no such size", name.substr(0, 80)), symbols_text());
      if (p_.ranges.contains(name)) check_range(name, value, "--set " + name + "=");
      symbols[name] = value;
    }
    for (int value : inputs) {
      auto& sizes = meta(value).sizes;
      for (std::size_t d = 0; d < sizes.size(); ++d)
        for (auto& symbol : sizes[d].expression.empty() ? std::vector<std::string>() : size(sizes[d]).symbols())
          if (!symbols.contains(symbol)) {
            const std::string range = range_text(symbol);
            throw Error(fmt::format("the size '{}' has no value: dimension {} of the input '{}'{}", symbol, d, name_of(value),
                                    range.empty() ? "" : ", " + range),
                        fmt::format("give it with --set {}=NUMBER", symbol) +
                            (sizes[d].hint ? fmt::format("; the example had {}", *sizes[d].hint) : ""));
          }
    }
    for (int value : inputs) {
      nn::InputSpec input;
      input.name = name_of(value);
      for (auto& s : meta(value).sizes) input.shape.push_back(size(s));
      input.dtype = meta(value).dtype;
      input.keep_dtype = !options_.dtype;
      model_->inputs.push_back(std::move(input));
    }
  }

  /// Sizes that options of their own name, as symbols: --seq, --image. One that is static keeps its number.
  void bind_options(const std::vector<int>& inputs, std::map<std::string, I>& given) {
    std::set<std::string> found;
    for (int value : inputs) {
      auto& sizes = meta(value).sizes;
      for (std::size_t d = 0; d < sizes.size(); ++d) {
        const std::string name = sizes.size() == 2 && d == 1 && !is_floating(meta(value).dtype) ? "seq"
                                 : sizes.size() == 4 && d == 2                                  ? "height"
                                 : sizes.size() == 4 && d == 3                                  ? "width"
                                                                                                : "";
        const auto it = given.find(name);
        if (it == given.end()) continue;
        found.insert(name);
        if (!sizes[d].expression.empty()) {
          given.try_emplace(sizes[d].expression, it->second);
        } else if (sizes[d].value != it->second) {
          throw Error(fmt::format("--{} {}: the program was exported for {}, and for no other number", name == "seq" ? "seq" : "image",
                                  it->second, sizes[d].value),
                      "export it with this dimension dynamic: scripts/export_pt2.py --dynamic");
        }
      }
    }
    for (auto& [name, option] : std::map<std::string, std::string>{{"seq", "seq"},
                                                                   {"height", "image"},
                                                                   {"width", "image"},
                                                                   {"image", "image"},
                                                                   {"src_seq", "src-seq"},
                                                                   {"tgt_seq", "tgt-seq"},
                                                                   {"classes", "classes"},
                                                                   {"images", "images"}})
      if (given.erase(name) > 0 && !found.contains(name) && !(name == "image" && found.contains("height")))
        throw Error(fmt::format("--{}: no input of the program has such a size", option), symbols_text());
  }
  bool is_symbol(const std::string& name) const {
    if (p_.ranges.contains(name)) return true;
    auto names = [&](const SymInt& s) {
      if (s.expression.empty()) return false;
      const auto list = identifiers(s.expression);
      return std::find(list.begin(), list.end(), name) != list.end();
    };
    return std::any_of(p_.tensors.begin(), p_.tensors.end(),
                       [&](auto& t) { return std::any_of(t.second.sizes.begin(), t.second.sizes.end(), names); }) ||
           std::any_of(p_.integers.begin(), p_.integers.end(), [&](auto& i) { return names(i.second); });
  }
  std::string symbols_text() const {
    std::vector<std::string> names;
    for (auto& [name, range] : p_.ranges) names.push_back(name);
    std::sort(names.begin(), names.end());
    return names.empty() ? "all of its sizes are static: it was exported without dynamic dimensions" : "its sizes are " + join(names, ", ");
  }

  /// --input NAME=SHAPE gives the symbols in that input's sizes.
  void overrides(std::map<std::string, I>& given, std::vector<I>& batches) {
    for (auto& override : options_.inputs) {
      std::vector<std::string> names;
      const TensorMeta* found = nullptr;
      for (int value : user_tensors()) {
        names.push_back(name_of(value));
        if (name_of(value) == override.name) found = &meta(value);
      }
      if (!found)
        throw Error(fmt::format("--input {}: the program has no such input", override.name.substr(0, 80)),
                    names.empty() ? "" : "its inputs are " + join(names, ", "));
      if (override.dtype && *override.dtype != found->dtype)
        throw Error(fmt::format("--input {}: the program was exported for {}", override.name, memest::name_of(found->dtype)));
      if (override.shape.size() != found->sizes.size())
        throw Error(fmt::format("--input {}: the program was exported for {} dimensions, {} are given", override.name, found->sizes.size(),
                                override.shape.size()));
      for (std::size_t d = 0; d < override.shape.size(); ++d) {
        const auto number = parse_int(override.shape[d]);
        const SymInt& s = found->sizes[d];
        if (!number) {
          if (override.shape[d] == "batch" && s.expression == batch_symbol_) continue;
          throw Error(fmt::format("--input {}: '{}' is no number", override.name, override.shape[d].substr(0, 40)));
        }
        if (s.expression.empty()) {
          if (*number != s.value)
            throw Error(fmt::format("--input {}: the program was exported for {} in dimension {}, and for no other number", override.name,
                                    s.value, d),
                        "export it with this dimension dynamic");
        } else if (s.expression == batch_symbol_) {
          if (batches.empty()) batches.push_back(*number);
        } else {
          given.try_emplace(s.expression, *number);
        }
      }
    }
  }

  // ---- modules
  void make_modules() {
    for (auto& call : p_.calls) types_.try_emplace(without_call(call.path), call.type);
    root_ = made_module("");
    model_->root = root_;
    modules_[""] = root_.get();
    for (auto& path : p_.modules) module_at(without_call(path));
  }
  std::shared_ptr<ExportedModule> made_module(const std::string& path) {
    auto it = types_.find(path);
    const std::string type = it == types_.end() ? "" : it->second;
    const std::string name = type.empty() ? path.empty() ? "ExportedProgram" : "Module" : short_type(type);
    if (type == "torch.nn.modules.linear.Linear") return std::make_shared<nn::ExportedLinear>(name, model_->symbols);
    if (type == "torch.nn.modules.sparse.Embedding") return std::make_shared<nn::ExportedEmbedding>(name, model_->symbols);
    return std::make_shared<ExportedModule>(name, model_->symbols);
  }
  ExportedModule* module_at(const std::string& path) {
    if (auto it = modules_.find(path); it != modules_.end()) return it->second;
    if (std::count(path.begin(), path.end(), '.') > 100) throw Error(fmt::format("the module '{}' lies too deep", path.substr(0, 80)));
    const auto dot = path.rfind('.');
    ExportedModule* parent = module_at(dot == path.npos ? "" : path.substr(0, dot));
    auto module = made_module(path);
    parent->register_module(path.substr(dot == path.npos ? 0 : dot + 1), module);
    return modules_[path] = module.get();
  }

  Tensor state(int value, bool parameter) {
    const TensorMeta& m = meta(value);
    Dims sizes;
    for (auto& s : m.sizes) {
      if (!s.expression.empty())
        throw Error(fmt::format("the {} '{}' has a dynamic size '{}'", parameter ? "parameter" : "buffer", name_of(value).substr(0, 80),
                                s.expression.substr(0, 80)));
      sizes.push_back(s.value);
    }
    const DType type = options_.dtype && is_floating(m.dtype) ? *options_.dtype : m.dtype;
    try {
      Tensor x = host_tensor(sizes, type);
      if (parameter) x->requires_grad = m.requires_grad && is_differentiable(type);
      return x;
    } catch (Error& e) {
      e.within(fmt::format("'{}'", name_of(value).substr(0, 80)));
      throw;
    }
  }

  void make_states() {
    std::map<DType, I> types;
    std::map<std::string, Tensor> by_name, by_payload;
    for (auto& spec : p_.inputs) {
      using Kind = InputSpec::Kind;
      if (spec.kind != Kind::parameter && spec.kind != Kind::buffer && spec.kind != Kind::constant) continue;
      if (spec.arg.kind != Argument::Kind::value) throw Error(fmt::format("'{}' of the signature is no tensor", spec.target.substr(0, 80)));
      Tensor x = state(spec.arg.value, spec.kind == Kind::parameter);
      if (spec.kind == Kind::parameter) {
        if (auto payload = payloads_.find(spec.target); payload != payloads_.end() && !payload->second.empty()) {
          Tensor& first = by_payload[payload->second];
          if (!first)
            first = x;
          else if (first.sizes() == x.sizes() && first.dtype() == x.dtype())
            x = first;  // tied
        }
      }
      states_[spec.arg.value] = x;
      if (spec.kind == Kind::constant) {
        root_->add_constant(x);
        continue;
      }
      if (!by_name.emplace(spec.target, x).second) throw Error(fmt::format("the signature names '{}' twice", spec.target.substr(0, 80)));
      if (is_floating(x.dtype()) && spec.kind == Kind::parameter) types[meta(spec.arg.value).dtype] += x.numel();
    }
    auto place = [&](const std::string& name, const Tensor& x, bool parameter) {
      const auto dot = name.rfind('.');
      ExportedModule* owner = module_at(dot == name.npos ? "" : name.substr(0, dot));
      const std::string last = name.substr(dot == name.npos ? 0 : dot + 1);
      if (parameter)
        owner->register_parameter(last, x);
      else
        owner->register_buffer(last, x);
    };
    for (auto& spec : p_.inputs)
      if (spec.kind == InputSpec::Kind::parameter || spec.kind == InputSpec::Kind::buffer)
        place(spec.target, by_name.at(spec.target), spec.kind == InputSpec::Kind::parameter);
    if (types.size() != 1) return;
    if (!options_.dtype)
      model_->file_dtype = types.begin()->first;
    else if (types.begin()->first != *options_.dtype)
      converted_from_ = types.begin()->first;
  }

  // ---- training or evaluation
  /// Ops that say whether they train: all of them off means that the module was exported in evaluation mode.
  void find_mode() {
    if (p_.decomposed) return;  // its ops are for one mode
    int on = 0, off = 0;
    visit_nodes(p_.graph, [&](const Node& n) {
      auto [op, overload] = op_name(plain(*n.target));
      const std::string_view flag = training_argument(op);
      if (flag.empty()) return;
      for (auto& input : n.inputs) {
        if (*input.name != flag) continue;
        if (auto* b = std::get_if<bool>(&input.arg.constant)) {
          if (op == "aten::batch_norm" && !tracks(n)) continue;
          ++(*b ? on : off);
        } else if (auto* d = std::get_if<double>(&input.arg.constant); d && *d > 0) {
          ++on;
        }
      }
    });
    exported_for_evaluation_ = on == 0 && off > 0;
    exported_for_training_ = on > 0;
  }
  void visit_nodes(const Graph& graph, const std::function<void(const Node&)>& f) const {
    for (auto& n : graph.nodes) {
      f(n);
      for (auto& input : n.inputs)
        if (input.arg.graph) visit_nodes(*input.arg.graph, f);
    }
  }
  static bool tracks(const Node& n) {  // running statistics
    for (auto& input : n.inputs)
      if (*input.name == "running_mean") return input.arg.kind == Argument::Kind::value;
    return false;
  }

  void tell() {
    auto& diagnostics = runtime().diagnostics;
    using Severity = Diagnostic::Severity;
    if (p_.decomposed)
      diagnostics.add(
          {Severity::warning, "decomposed-program",
           "the program was decomposed to core ATen ops (run_decompositions): its ops, what they save and what they allocate are "
           "those of another program than the module's own",
           "", "save what torch.export.export returns"});
    if (joint_)
      diagnostics.add({Severity::warning, "joint-program",
                       options_.training
                           ? "the program holds its own backward pass: it runs as one call in the forward phase, and the backward phase "
                             "takes its gradients"
                           : "the program holds its own backward pass, which is left out",
                       "", "for eager training export the module alone"});
    if (p_.major == 8 && p_.minor > kNewestMinor)
      diagnostics.add(
          {Severity::warning, "new-schema",
           fmt::format("the file's schema is 8.{}, newer than 8.{}, the last one that memest was tested with", p_.minor, kNewestMinor), "",
           ""});
    if (converted_from_)
      diagnostics.add({Severity::note, "converted-program",
                       fmt::format("the program was exported in {}: whether a cast to that type is the module's own, or to the type of "
                                   "another tensor, is told by its source line",
                                   memest::name_of(*converted_from_)),
                       "", fmt::format("export the module in {} for what it does there", memest::name_of(*options_.dtype))});
    if (options_.training && exported_for_evaluation_)
      diagnostics.add(
          {Severity::warning, "exported-for-evaluation",
           "the module was exported in evaluation mode; its batch norms and dropouts are run as model.train() would have them, but "
           "what evaluation leaves out (dropout in attention, stochastic depth) is missing",
           "", "export it after model.train()"});
    if (!options_.training && exported_for_training_)
      diagnostics.add({Severity::note, "exported-for-training",
                       "the module was exported in training mode; its batch norms and dropouts are run as model.eval() would have them", "",
                       ""});
  }

  // ---- the program as one list

  /// A node, or the begin or end of a region of nodes.
  struct Flat {
    const Node* node = nullptr;
    ExportedStep::Kind kind = ExportedStep::Kind::op;  ///< of regions: grad_mode, autocast, leave
    bool flag = false;
    DType dtype = DType::float16;
    ModuleStack stack;  ///< of regions
  };
  const ModuleStack& stack_of(const Flat& f) const {
    static const ModuleStack none;
    if (!f.node) return f.stack;
    return f.node->stack < 0 ? none : p_.stacks[std::size_t(f.node->stack)];
  }

  /// What a value stands for: another's, a constant, or itself.
  Argument resolved(const Argument& a) const {
    if (a.kind == Argument::Kind::value) {
      auto it = aliases_.find(a.value);
      return it == aliases_.end() ? a : resolved(it->second);
    }
    if (a.items.empty()) return a;
    Argument out = a;
    for (auto& item : out.items) item = resolved(item);
    return out;
  }

  void flatten(const Graph& graph, std::vector<Flat>& into, int depth) {
    if (depth > 30) throw Error("graphs nest deeper than 30 levels");
    for (auto& n : graph.nodes) {
      const Region region = region_of(*n.target);
      if (region == Region::none) {
        if (assignments_.contains(&n)) continue;
        if (reads_a_number(*n.target)) read_number(n);
        if (!n.outputs.empty() && aliases_.contains(n.outputs[0])) continue;
        Flat flat;
        flat.node = &n;
        into.push_back(std::move(flat));
        continue;
      }
      inline_region(n, region, into, depth);
    }
  }

  void inline_region(const Node& n, Region region, std::vector<Flat>& into, int depth) {
    const Graph* body = nullptr;
    std::vector<Argument> before, operands;
    for (auto& input : n.inputs) {
      if (input.arg.kind == Argument::Kind::graph && !body)
        body = input.arg.graph.get();
      else if (!body)
        before.push_back(input.arg);
      else if (input.arg.kind == Argument::Kind::list)
        for (auto& item : input.arg.items) operands.push_back(item);
      else if (input.arg.kind == Argument::Kind::value || input.name->empty())
        operands.push_back(input.arg);
    }
    const std::string where = fmt::format("node '{}' ({})", n.name, *n.target);
    if (!body) throw Error("it has no graph").within(where);
    if (operands.size() < body->inputs.size())
      throw Error(fmt::format("its graph takes {} inputs, {} are given", body->inputs.size(), operands.size())).within(where);
    for (std::size_t i = 0; i < body->inputs.size(); ++i)
      if (body->inputs[i].kind == Argument::Kind::value) aliases_[body->inputs[i].value] = operands[i];
    Flat enter;
    enter.kind = region == Region::autocast ? ExportedStep::Kind::autocast : ExportedStep::Kind::grad_mode;
    for (auto& a : before) {
      if (auto* flag = std::get_if<bool>(&a.constant)) {
        enter.flag = *flag;
        break;  // what follows: whether casts are cached
      }
      if (auto* dtype = std::get_if<DType>(&a.constant)) enter.dtype = *dtype;
    }
    const std::size_t start = into.size();
    if (region != Region::inlined) into.push_back(enter);
    flatten(*body, into, depth + 1);
    if (region != Region::inlined) {
      // The region stands in the innermost frame that all of it belongs to.
      std::optional<ModuleStack> common;
      if (n.stack >= 0 && !p_.stacks[std::size_t(n.stack)].empty()) common = p_.stacks[std::size_t(n.stack)];
      for (std::size_t i = start + 1; i < into.size(); ++i) {
        const ModuleStack& stack = stack_of(into[i]);
        if (!common) common = stack;
        std::size_t same = 0;
        while (same < std::min(common->size(), stack.size()) && (*common)[same] == stack[same]) ++same;
        common->resize(same);
      }
      into[start].stack = common.value_or(ModuleStack());
      Flat leave;
      leave.kind = ExportedStep::Kind::leave;
      leave.stack = into[start].stack;
      into.push_back(std::move(leave));
    }
    std::vector<Argument> results;
    for (auto& output : body->outputs) {
      if (output.kind == Argument::Kind::list)
        for (auto& item : output.items) results.push_back(item);
      else
        results.push_back(output);
    }
    for (std::size_t i = 0; i < n.outputs.size(); ++i) {
      if (n.outputs[i] < 0) continue;
      if (i >= results.size())
        throw Error(fmt::format("its graph gives {} values, {} are taken", results.size(), n.outputs.size())).within(where);
      aliases_[n.outputs[i]] = results[i];
    }
  }

  /// x.item(): a number that only the data knows, asked for by the name of its symbol.
  void read_number(const Node& n) {
    if (n.outputs.empty() || n.outputs[0] < 0) return;
    Argument value;
    value.constant = 1.0;
    if (auto it = p_.integers.find(n.outputs[0]); it != p_.integers.end()) {
      const SymInt& s = it->second;
      if (s.expression.empty()) {
        value.constant = s.value;
      } else {
        for (auto& symbol : identifiers(s.expression))
          if (!model_->symbols->contains(symbol)) {
            const std::string range = range_text(symbol);
            throw Error(fmt::format("the size '{}' has no value: the program reads it from its data (node '{}'){}", symbol, n.name,
                                    range.empty() ? "" : ", " + range),
                        fmt::format("give it with --set {}=NUMBER", symbol));
          }
        value.constant = size(s).evaluate(*model_->symbols);
      }
    }
    aliases_[n.outputs[0]] = value;
  }

  // ---- frames

  static void visit(const Argument& a, const std::function<void(int)>& f) {
    if (a.kind == Argument::Kind::value) f(a.value);
    for (auto& item : a.items) visit(item, f);
  }

  /// A list of nodes with what is known of its values.
  struct List {
    std::vector<Flat> nodes;
    std::vector<std::vector<Argument>> arguments;  ///< of each node: its inputs, resolved
    std::unordered_map<int, int> made, used;       ///< of a value: the node that makes it, the last one that reads it
  };

  /// Drops the nodes that none of the results comes of.
  void prune(std::vector<Flat>& nodes, const std::vector<Argument>& results) const {
    std::set<int> needed;
    for (auto& result : results) visit(resolved(result), [&](int value) { needed.insert(value); });
    std::vector<Flat> kept;
    for (std::size_t i = nodes.size(); i-- > 0;) {
      const Node* n = nodes[i].node;
      if (n && std::none_of(n->outputs.begin(), n->outputs.end(), [&](int value) { return needed.contains(value); })) continue;
      if (n)
        for (auto& input : n->inputs) visit(resolved(input.arg), [&](int value) { needed.insert(value); });
      kept.push_back(nodes[i]);
    }
    nodes.assign(kept.rbegin(), kept.rend());
  }

  List listed(const Graph& graph, const std::vector<Argument>& results, int depth) {
    List list;
    flatten(graph, list.nodes, depth);
    if (joint_ && !options_.training) prune(list.nodes, results);
    for (auto& input : graph.inputs)
      if (input.kind == Argument::Kind::value) list.made[input.value] = -1;
    list.arguments.resize(list.nodes.size());
    auto check = [&](int value, int user, const std::string& who) {
      if (states_.contains(value)) return;
      if (!list.made.contains(value))
        throw Error(fmt::format("{} reads '{}', which no node before it makes", who, name_of(value).substr(0, 80)));
      list.used[value] = user;
    };
    for (std::size_t i = 0; i < list.nodes.size(); ++i) {
      const Node* n = list.nodes[i].node;
      if (!n) continue;
      for (auto& input : n->inputs) {
        list.arguments[i].push_back(resolved(input.arg));
        if (input.arg.kind == Argument::Kind::graph) continue;
        visit(list.arguments[i].back(), [&](int value) { check(value, int(i), fmt::format("node '{}' ({})", n->name, *n->target)); });
      }
      for (int value : n->outputs) {
        if (value < 0) continue;
        if (!list.made.emplace(value, int(i)).second) throw Error(fmt::format("two nodes make '{}'", name_of(value).substr(0, 80)));
      }
    }
    for (auto& result : results) visit(resolved(result), [&](int value) { check(value, int(list.nodes.size()), "the output"); });
    return list;
  }

  void build_frames() {
    for (auto& spec : p_.inputs) fixed_input(spec);
    std::vector<Argument> results;
    for (auto& spec : p_.outputs) {
      if (spec.kind == OutputSpec::Kind::token || (forward_only() && !is_result(spec))) continue;
      // self.buffer = value: bound where the value is made, by the module's own code
      const bool state = spec.kind == OutputSpec::Kind::buffer || spec.kind == OutputSpec::Kind::parameter;
      if (state && !flat_ && !p_.decomposed && spec.arg.kind == Argument::Kind::value)
        rebound_[spec.arg.value] = target_of(spec);
      else
        results.push_back(spec.arg);
    }
    find_assignments();
    List list = listed(p_.graph, results, 0);
    std::vector<Argument> outputs;
    auto* joint = dynamic_cast<nn::ExportedJointModel*>(model_.get());
    for (auto& spec : p_.outputs) {
      if (!is_result(spec)) continue;
      if (joint && spec.kind == OutputSpec::Kind::loss) joint->loss = outputs.size();
      outputs.push_back(resolved(spec.arg));
    }
    if (joint) joint->results = outputs.size();
    if (joint && options_.training)
      for (auto& spec : p_.outputs) {
        if (spec.kind != OutputSpec::Kind::parameter_gradient) continue;
        joint->parameters.push_back(states_.at(target_of(spec).value));
        outputs.push_back(resolved(spec.arg));
      }
    auto frame = std::make_shared<ExportedFrame>();
    FrameBuilder builder(*this, list, *frame, *root_, 0);
    builder.inputs(user_tensors());
    builder.nodes(0, list.nodes.size());
    for (auto& spec : p_.outputs) {
      using Kind = OutputSpec::Kind;
      if (forward_only()) break;
      if ((spec.kind == Kind::buffer || spec.kind == Kind::parameter || spec.kind == Kind::user_input) &&
          !rebound_.contains(spec.arg.value))
        builder.mutation(target_of(spec), resolved(spec.arg));
    }
    builder.finish(outputs);
    root_->add_frame(std::move(frame));
  }

  static bool is_result(const OutputSpec& spec) { return spec.kind == OutputSpec::Kind::user || spec.kind == OutputSpec::Kind::loss; }
  /// Inference of a joint program leaves out its backward pass.
  bool forward_only() const { return joint_ && !options_.training; }

  /// 2.12 and later write self.buffer = value as a copy at the program's end, which no line of the module asks for: its name tells.
  void find_assignments() {
    if (flat_ || p_.decomposed) return;
    for (auto& n : p_.graph.nodes) {
      if (*n.target != "torch.ops.aten.copy_.default" || !n.name.starts_with("copy__default") || n.inputs.size() < 2) continue;
      const Argument &to = n.inputs[0].arg, &value = n.inputs[1].arg;
      if (to.kind != Argument::Kind::value || value.kind != Argument::Kind::value || !states_.contains(to.value)) continue;
      rebound_[value.value] = to;
      assignments_.insert(&n);
    }
  }

  /// Inputs that are no tensors have one value.
  void fixed_input(const InputSpec& spec) {
    if (spec.kind != InputSpec::Kind::user || spec.arg.kind != Argument::Kind::value || p_.tensors.contains(spec.arg.value)) return;
    if (auto it = p_.integers.find(spec.arg.value); it != p_.integers.end()) {
      Argument a;
      a.constant = it->second.expression.empty() ? Value(it->second.value) : Value(None{});
      if (!it->second.expression.empty()) {
        try {
          a.constant = size(it->second).evaluate(*model_->symbols);
        } catch (Error& e) {
          e.within(fmt::format("input '{}'", name_of(spec.arg.value)));
          throw;
        }
      }
      aliases_[spec.arg.value] = a;
    }
  }

  Argument target_of(const OutputSpec& spec) const {
    Argument a;
    a.kind = Argument::Kind::value;
    if (spec.kind == OutputSpec::Kind::user_input) {
      for (int value : user_tensors())
        if (name_of(value) == spec.target) a.value = value;
    } else {
      for (auto& input : p_.inputs)
        if (input.target == spec.target && (input.kind == InputSpec::Kind::buffer || input.kind == InputSpec::Kind::parameter))
          a.value = input.arg.value;
    }
    if (a.value < 0) throw Error(fmt::format("the signature changes '{}', which the program does not have", spec.target.substr(0, 80)));
    return a;
  }

  /// Writes the steps of one frame.
  class FrameBuilder {
   public:
    FrameBuilder(Builder& b, const List& list, ExportedFrame& frame, ExportedModule& module, std::size_t depth)
        : b_(b), list_(list), frame_(frame), module_(module), depth_(depth) {}

    void inputs(const std::vector<int>& values) {
      for (int value : values) frame_.inputs.push_back(slot(value));
    }

    void nodes(std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end;) {
        const ModuleStack& stack = b_.stack_of(list_.nodes[i]);
        if (b_.flat_ || stack.size() <= depth_ + 1) {
          step(i);
          ++i;
          continue;
        }
        const int called = stack[depth_ + 1];
        std::size_t stop = i + 1;
        while (stop < end) {
          const ModuleStack& next = b_.stack_of(list_.nodes[stop]);
          if (next.size() <= depth_ + 1 || next[depth_ + 1] != called) break;
          ++stop;
        }
        call(called, i, stop);
        i = stop;
      }
    }

    void mutation(const Argument& target, const Argument& value, bool rebinds = false) {
      ExportedStep s;
      s.kind = ExportedStep::Kind::mutate;
      s.target = "copy_";
      s.where = "a mutation of the signature";
      s.arguments = {argument(target), argument(value)};
      s.flag = rebinds;
      add(std::move(s), nullptr);
    }

    /// The frame returns these: a value, or a tuple where there are several.
    void finish(const std::vector<Argument>& outputs) {
      if (outputs.size() == 1) {
        frame_.output = argument(outputs[0]);
      } else {
        frame_.output.form = ExportedArgument::Form::list;
        for (auto& output : outputs) frame_.output.items.push_back(argument(output));
      }
      frame_.slots = int(slots_.size());
      lifetimes();
    }

   private:
    int slot(int value) { return slots_.try_emplace(value, int(slots_.size())).first->second; }

    ExportedArgument argument(const Argument& a) {
      ExportedArgument out;
      switch (a.kind) {
        case Argument::Kind::constant: out.constant = a.constant; break;
        case Argument::Kind::value:
          if (auto it = b_.states_.find(a.value); it != b_.states_.end()) {
            out.constant = it->second;
          } else {
            auto found = slots_.find(a.value);
            if (found == slots_.end()) throw Error(fmt::format("'{}' has no value", b_.name_of(a.value).substr(0, 80)));
            out.form = ExportedArgument::Form::value;
            out.slot = found->second;
          }
          break;
        case Argument::Kind::list:
          out.form = ExportedArgument::Form::list;
          for (auto& item : a.items) out.items.push_back(argument(item));
          break;
        case Argument::Kind::dict:
          out.form = ExportedArgument::Form::dict;
          out.keys = a.keys;
          for (auto& item : a.items) out.items.push_back(argument(item));
          break;
        case Argument::Kind::graph: throw Error("a graph is no argument of an op");
      }
      return out;
    }

    void add(ExportedStep s, const Statement* statement) {
      frame_.steps.push_back(std::move(s));
      statements_.push_back(statement);
    }

    /// The line of this frame that a node belongs to. Exports of Dynamo (strict=True) leave out the forwards of torch.nn's own layers.
    const Statement* statement(const Node& n) const {
      const std::size_t depth = n.stack < 0 ? 0 : b_.p_.stacks[std::size_t(n.stack)].size();
      const bool aligned = !b_.flat_ && depth > depth_ && n.statements.size() + 1 >= depth && n.statements.size() > depth_;
      return aligned ? &n.statements[depth_] : nullptr;
    }

    void call(int called, std::size_t begin, std::size_t end) {
      ExportedModule* module = b_.module_at(without_call(b_.p_.calls[std::size_t(called)].path));
      // What the called module reads of this frame's values are its arguments, what others read of its values its results.
      std::vector<int> given, taken;
      std::set<int> seen;
      ExportedStep s;
      s.kind = ExportedStep::Kind::call;
      s.module = module;
      for (std::size_t i = begin; i < end; ++i) {
        for (auto& a : list_.arguments[i])
          visit(a, [&](int value) {
            if (b_.states_.contains(value) || list_.made.at(value) >= int(begin) || !seen.insert(value).second) return;
            given.push_back(value);
          });
        if (const Node* n = list_.nodes[i].node)
          for (int value : n->outputs) {
            auto used = value < 0 ? list_.used.end() : list_.used.find(value);
            if (used != list_.used.end() && used->second >= int(end)) taken.push_back(value);
          }
      }
      auto frame = std::make_shared<ExportedFrame>();
      FrameBuilder inner(b_, list_, *frame, *module, depth_ + 1);
      inner.inputs(given);
      inner.nodes(begin, end);
      std::vector<Argument> results;
      for (int value : taken) {
        Argument a;
        a.kind = Argument::Kind::value;
        a.value = value;
        results.push_back(a);
        s.outputs.push_back(slot(value));
      }
      inner.finish(results);
      if (taken.empty()) s.outputs.clear();
      s.frame = module->add_frame(std::move(frame));
      for (int value : given) {
        ExportedArgument a;
        a.form = ExportedArgument::Form::value;
        a.slot = slot(value);
        s.arguments.push_back(a);
      }
      s.target = module->type();
      const Statement* line = nullptr;
      for (std::size_t i = begin; i < end && !line; ++i)
        if (list_.nodes[i].node) line = statement(*list_.nodes[i].node);
      add(std::move(s), line);
    }

    void step(std::size_t index) {
      const Flat& flat = list_.nodes[index];
      ExportedStep s;
      if (!flat.node) {
        s.kind = flat.kind;
        s.flag = flat.flag;
        s.dtype = flat.dtype;
        return add(std::move(s), nullptr);
      }
      const Node& n = *flat.node;
      s.where = fmt::format("node '{}' ({})", n.name.substr(0, 100), n.target->substr(0, 100));
      if (b_.flat_ && n.stack >= 0 && !b_.p_.stacks[std::size_t(n.stack)].empty())
        s.module = b_.module_at(without_call(b_.p_.calls[std::size_t(b_.p_.stacks[std::size_t(n.stack)].back())].path));
      const std::vector<Argument>& given = list_.arguments[index];
      if (auto kind = looping(*n.target)) {
        higher_order(n, *kind, given, s);
      } else {
        operation(n, given, s);
      }
      for (int value : n.outputs) s.outputs.push_back(value < 0 ? -1 : slot(value));
      s.list = n.list;
      add(std::move(s), statement(n));
      for (int value : n.outputs)
        if (auto it = b_.rebound_.find(value); value >= 0 && it != b_.rebound_.end()) {
          Argument made;
          made.kind = Argument::Kind::value;
          made.value = value;
          mutation(it->second, made, true);
        }
    }

    void operation(const Node& n, const std::vector<Argument>& given, ExportedStep& s) {
      const std::string name = plain(*n.target);
      s.target = name;
      auto by_name = [&] {
        for (std::size_t i = 0; i < given.size(); ++i) {
          if (given[i].kind == Argument::Kind::graph) continue;
          ExportedArgument a = argument(given[i]);
          follow_precision(n, s.target, *n.inputs[i].name, a);
          if (n.inputs[i].name->empty())
            s.arguments.push_back(std::move(a));
          else
            s.keywords.emplace_back(*n.inputs[i].name, std::move(a));
        }
      };
      auto in_order = [&] {
        for (auto& a : given)
          if (a.kind != Argument::Kind::graph) s.arguments.push_back(argument(a));
      };
      if (nn::is_exported_builtin(name)) {
        s.kind = ExportedStep::Kind::builtin;
        return in_order();
      }
      if (name.starts_with("operator.") || name.starts_with("math.")) {
        if (nn::is_function(name)) {
          s.kind = ExportedStep::Kind::function;
          return in_order();
        }
      }
      const auto [op, overload] = op_name(name);
      if (!op.empty())
        if (const OpRecord* record = find_op(op + "." + overload)) {
          s.kind = ExportedStep::Kind::op;
          s.record = record;
          if (bound(n, given, *record, s)) return;
          s.arguments.clear();
          s.keywords.clear();
        }
      if (!op.empty() && !find_ops(op).empty()) {
        s.kind = ExportedStep::Kind::overloads;
        s.target = op;
        return by_name();
      }
      s.kind = ExportedStep::Kind::unknown;
      for (int value : n.outputs) {
        if (value < 0) continue;
        if (!b_.p_.tensors.contains(value)) continue;
        const TensorMeta& m = b_.meta(value);
        nn::ExportedTensor made;
        made.dtype = m.dtype;
        for (auto& size : m.sizes) made.sizes.push_back(b_.size(size));
        s.made.push_back(std::move(made));
      }
      in_order();
    }

    /// The arguments in the record's order; false where the record lacks one of them.
    bool bound(const Node& n, const std::vector<Argument>& given, const OpRecord& record, ExportedStep& s) {
      const Schema& schema = record.schema();
      const std::string_view flag = training_argument(record.name());
      std::vector<const Argument*> by_position(schema.arguments.size(), nullptr);
      for (std::size_t i = 0; i < given.size(); ++i) {
        const std::string& name = *n.inputs[i].name;
        bool found = false;
        for (std::size_t k = 0; k < schema.arguments.size() && !found; ++k) {
          const std::string_view own = schema.arguments[k].name;
          if (own == name || (own.size() == name.size() + 1 && own[0] == '_' && own.substr(1) == name))
            by_position[k] = &given[i], found = true;
        }
        if (!found && name != "device" && name != "layout" && name != "pin_memory" && name != "generator" && name != "non_blocking")
          return false;
      }
      std::size_t last = 0;
      for (std::size_t k = 0; k < by_position.size(); ++k)
        if (by_position[k] && !schema.arguments[k].keyword_only) last = k + 1;
      for (std::size_t k = 0; k < by_position.size(); ++k) {
        const memest::Argument& own = schema.arguments[k];
        if (own.kind == memest::Kind::ignored) continue;
        ExportedArgument a;
        if (by_position[k]) {
          a = argument(*by_position[k]);
          if (!flag.empty() && own.name == flag) trains(n, a);
          // the exporter switches cuDNN off while it traces; the module itself runs with it
          if (own.name == "cudnn_enabled" && !b_.flat_ && std::holds_alternative<bool>(a.constant)) a.constant = true;
          follow_precision(n, record.name(), own.name, a);
        } else if (own.keyword_only || k >= last) {
          continue;
        } else if (own.has_default) {
          a.constant = own.default_value;
        } else {
          return false;
        }
        if (own.keyword_only)
          s.keywords.emplace_back(own.name, std::move(a));
        else
          s.arguments.push_back(std::move(a));
      }
      return true;
    }

    /// A type that the program holds may be the model's own (x.to(y.dtype)) or one that its code names (x.float()): the source line tells.
    /// The model's own is the one that --precision gives. Without a line, tensors that are made have it, and casts stay.
    void follow_precision(const Node& n, std::string_view op, std::string_view name, ExportedArgument& a) const {
      if (name != "dtype" || !b_.converted_from_) return;
      auto* type = std::get_if<DType>(&a.constant);
      if (!type || *type != *b_.converted_from_) return;
      const Statement* line = n.statements.empty() ? nullptr : &n.statements.back();
      const bool cast = op == "aten::to" || op == "aten::_to_copy";
      const bool named = !line ? !is_factory(op) : cast ? line->casts : line->floats;
      if (!named) a.constant = *b_.options_.dtype;
    }

    /// A training flag follows the mode of the run.
    void trains(const Node& n, ExportedArgument& a) const {
      if (a.form != ExportedArgument::Form::constant || b_.p_.decomposed) return;
      if (auto* on = std::get_if<bool>(&a.constant)) {
        if (*n.target == "torch.ops.aten.batch_norm.default" && !tracks(n)) return;  // the batch's own statistics in both modes
        if (!*on && !b_.exported_for_evaluation_) return;                            // frozen
        a.form = ExportedArgument::Form::training;
        a.constant = true;
      } else if (std::holds_alternative<double>(a.constant)) {
        a.form = ExportedArgument::Form::training;
      }
    }

    void higher_order(const Node& n, ExportedStep::Kind kind, const std::vector<Argument>& given, ExportedStep& s) {
      s.kind = kind;
      s.target = plain(*n.target);
      std::vector<ExportedArgument> lists;
      for (auto& a : given) {
        if (a.kind == Argument::Kind::graph) {
          s.bodies.push_back(b_.body(*a.graph, module_, depth_));
        } else if (a.kind == Argument::Kind::list || a.kind == Argument::Kind::value || !s.bodies.size()) {
          lists.push_back(argument(a));
        }
      }
      const std::size_t wanted = kind == ExportedStep::Kind::cond || kind == ExportedStep::Kind::while_loop ? 2 : 1;
      if (s.bodies.size() != wanted) throw Error(fmt::format("it takes {} graphs, {} are given", wanted, s.bodies.size())).within(s.where);
      auto spread = [&](const ExportedArgument& a) {
        if (a.form == ExportedArgument::Form::list)
          for (auto& item : a.items) s.arguments.push_back(item);
        else
          s.arguments.push_back(a);
      };
      ExportedArgument none;
      none.form = ExportedArgument::Form::list;
      if (kind == ExportedStep::Kind::map) {
        lists.insert(lists.begin(), none);
        while (lists.size() < 3) lists.push_back(none);
        s.arguments = {lists[0], lists[1], lists[2]};
      } else if (kind == ExportedStep::Kind::scan) {
        while (lists.size() < 3) lists.push_back(none);
        s.arguments = {lists[0], lists[1], lists.back()};
      } else {
        if (kind == ExportedStep::Kind::cond) {
          s.flag = true;
          const bool by_data = !lists.empty() && !std::holds_alternative<bool>(lists[0].constant);
          if (by_data)
            runtime().diagnostics.add({Diagnostic::Severity::warning, "data-dependent",
                                       fmt::format("node '{}' takes a branch as its data says; assumed: the first", n.name), "", ""});
        }
        for (auto& a : lists) spread(a);
      }
      for (auto& body : s.bodies)
        if (kind == ExportedStep::Kind::cond && body->inputs.size() + 1 != s.arguments.size())
          throw Error(fmt::format("its graph takes {} inputs, {} are given", body->inputs.size(), s.arguments.size() - 1)).within(s.where);
    }

    using Locals = std::map<std::string, std::vector<int>>;  // name -> slots

    /// A statement's last step: its results get the names, and what had them is let go.
    void bind(Locals& names, int assigned_names, int step, std::vector<int>& held) const {
      const auto& assigned = b_.p_.assigned[std::size_t(assigned_names)];
      const auto& made = frame_.steps[std::size_t(step)].outputs;
      std::vector<int> outputs;
      std::copy_if(made.begin(), made.end(), std::back_inserter(outputs), [](int slot) { return slot >= 0; });
      for (std::size_t k = 0; k < assigned.size(); ++k) {
        std::vector<int> now;
        if (assigned.size() == 1)
          now = outputs;
        else if (k < made.size() && made[k] >= 0)
          now = {made[k]};
        auto& old = names[assigned[k]];
        for (int slot : old) held[std::size_t(slot)] = std::max(held[std::size_t(slot)], step);
        old = now;
      }
    }
    /// The names go after this step.
    static void release(const Locals& names, int step, std::vector<int>& held) {
      for (auto& [name, slots] : names)
        for (int slot : slots) held[std::size_t(slot)] = std::max(held[std::size_t(slot)], step);
    }

    /// Names of functions that this forward calls hold until the function returns. Steps are of one call where the lines that led there are
    /// the same; the function's first line, come back to, is the next call. False where no step has so many levels.
    bool hold_locals_of_helpers(std::size_t level, std::vector<int>& held) const {
      const int count = int(frame_.steps.size());
      auto at = [&](int step) -> const HelperLine* {
        const Statement* line = statements_[std::size_t(step)];
        return line && line->helpers.size() > level ? &line->helpers[level] : nullptr;
      };
      auto same_way = [&](int a, int b) {
        const Statement &x = *statements_[std::size_t(a)], &y = *statements_[std::size_t(b)];
        for (std::size_t k = 0; k < level; ++k)
          if (x.helpers[k].function != y.helpers[k].function || x.helpers[k].number != y.helpers[k].number) return false;
        return x.line == y.line && x.helpers[level].function == y.helpers[level].function;
      };
      bool any = false;
      for (int begin = 0, end; begin < count; begin = end) {
        end = begin + 1;
        if (!at(begin)) continue;
        any = true;
        const int first = at(begin)->number;
        while (end < count && at(end) && same_way(begin, end) && (at(end)->number > first || at(end)->number == at(end - 1)->number)) ++end;
        Locals names;
        for (int i = begin; i < end; ++i)
          if (at(i)->names >= 0 && (i + 1 == end || at(i + 1)->number != at(i)->number)) bind(names, at(i)->names, i, held);
        release(names, end - 1, held);
      }
      return any;
    }

    /// Where values die: after their last use, and no sooner than the name that holds them is bound again or the frame returns.
    void lifetimes() {
      const int count = int(frame_.steps.size());
      constexpr int kNever = 1 << 30;
      std::vector<int> last(std::size_t(frame_.slots), -1);
      auto use = [&](const ExportedArgument& a, int step) {
        auto visit_slots = [&](auto& self, const ExportedArgument& x) -> void {
          if (x.form == ExportedArgument::Form::value) last[std::size_t(x.slot)] = step;
          for (auto& item : x.items) self(self, item);
        };
        visit_slots(visit_slots, a);
      };
      for (int i = 0; i < count; ++i) {
        ExportedStep& s = frame_.steps[std::size_t(i)];
        for (int slot : s.outputs)
          if (slot >= 0) last[std::size_t(slot)] = i;
        for (auto& a : s.arguments) use(a, i);
        for (auto& [key, a] : s.keywords) use(a, i);
      }
      use(frame_.output, kNever);
      std::vector<int> held(last);
      Locals names;
      for (int i = 0; i < count; ++i) {
        const Statement* line = statements_[std::size_t(i)];
        if (!line || line->names < 0) continue;
        const Statement* next = i + 1 < count ? statements_[std::size_t(i) + 1] : nullptr;
        if (next && next->line == line->line) continue;  // not the statement's last call
        bind(names, line->names, i, held);
      }
      release(names, kNever, held);
      for (std::size_t level = 0; hold_locals_of_helpers(level, held); ++level) {
      }
      for (int i = 0; i < count; ++i) {
        ExportedStep& s = frame_.steps[std::size_t(i)];
        auto visit_slots = [&](auto& self, const ExportedArgument& x) -> void {
          if (x.form == ExportedArgument::Form::value && held[std::size_t(x.slot)] == i) {
            s.dead.push_back(x.slot);
            held[std::size_t(x.slot)] = kNever;
          }
          for (std::size_t k = x.items.size(); k-- > 0;) self(self, x.items[k]);
        };
        for (auto& a : s.arguments) visit_slots(visit_slots, a);
        for (auto& [key, a] : s.keywords) visit_slots(visit_slots, a);
        for (int& slot : s.outputs)
          if (slot >= 0 && held[std::size_t(slot)] == i) slot = -1;
      }
      // names that were bound again
      std::vector<std::vector<int>> later(frame_.steps.size());
      for (int slot = 0; slot < frame_.slots; ++slot)
        if (held[std::size_t(slot)] != kNever && held[std::size_t(slot)] >= 0) later[std::size_t(held[std::size_t(slot)])].push_back(slot);
      for (std::size_t i = 0; i < later.size(); ++i)
        for (int slot : later[i]) {
          auto& outputs = frame_.steps[i].outputs;
          if (std::find(outputs.begin(), outputs.end(), slot) == outputs.end()) frame_.steps[i].dead.push_back(slot);
        }
    }

    Builder& b_;
    const List& list_;
    ExportedFrame& frame_;
    ExportedModule& module_;
    std::size_t depth_;
    std::unordered_map<int, int> slots_;
    std::vector<const Statement*> statements_;  ///< of each step
  };

  /// The graph of a higher-order op as a frame of its own.
  std::shared_ptr<ExportedFrame> body(const Graph& graph, ExportedModule& module, std::size_t depth) {
    auto list = std::make_unique<List>(listed(graph, graph.outputs, int(depth) + 1));
    auto frame = std::make_shared<ExportedFrame>();
    FrameBuilder builder(*this, *list, *frame, module, depth);
    std::vector<int> inputs;
    for (auto& input : graph.inputs) inputs.push_back(input.kind == Argument::Kind::value ? input.value : -1);
    builder.inputs(inputs);
    builder.nodes(0, list->nodes.size());
    std::vector<Argument> outputs;
    for (auto& output : graph.outputs) {
      const Argument a = resolved(output);
      if (a.kind == Argument::Kind::list)
        outputs.insert(outputs.end(), a.items.begin(), a.items.end());
      else
        outputs.push_back(a);
    }
    builder.finish(outputs);
    return frame;
  }

  const Program& p_;
  const Payloads& payloads_;
  const ReadOptions& options_;
  std::unique_ptr<nn::Model> model_;
  bool flat_;
  bool joint_ = false;  ///< it holds its own backward pass
  std::string batch_symbol_;
  std::map<std::string, std::string> types_;  ///< of modules, by path
  std::shared_ptr<ExportedModule> root_;
  std::map<std::string, ExportedModule*> modules_;
  std::unordered_map<int, Tensor> states_;  ///< parameters, buffers and constants by value
  std::unordered_map<int, Argument> aliases_;
  std::unordered_map<int, Argument> rebound_;  ///< values that become a buffer: which
  std::set<const Node*> assignments_;          ///< nodes that do no more than that
  std::optional<DType> converted_from_;        ///< of the parameters, where --precision gives them another type
  bool exported_for_evaluation_ = false, exported_for_training_ = false;
};

}  // namespace

bool knows_target(const std::string& target) {
  if (region_of(target) != Region::none || looping(target) || reads_a_number(target)) return true;
  const std::string name = plain(target);
  if (nn::is_exported_builtin(name) || ((name.starts_with("operator.") || name.starts_with("math.")) && nn::is_function(name))) return true;
  return !find_ops(op_name(name).first).empty();
}

std::unique_ptr<nn::Model> build(const Program& program, const Payloads& payloads, const ReadOptions& options) {
  return Builder(program, payloads, options).build();
}

}  // namespace memest::spec::pt2
