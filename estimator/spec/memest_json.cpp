// The memest JSON spec (design 5.3): a list of layers, or a graph of calls.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>

#include "base/text.h"
#include "fake/runtime.h"
#include "nn/custom.h"
#include "nn/graph.h"
#include "nn/layer.h"
#include "spec/json.h"
#include "spec/reader.h"

namespace memest::spec {
namespace {

constexpr std::int64_t kMostRepeats = 100'000;
constexpr std::size_t kMostModules = 1'000'000;

class SpecReader {
 public:
  SpecReader(nn::Model& model, const ReadOptions& options) : model_(model), options_(options) {}

  void read(const Node& top) {
    top.allow({"memest_spec", "name", "description", "inputs", "defaults", "layers", "modules", "parameters", "buffers", "nodes", "keep",
               "evaluation", "tie", "loss", "source"});
    if (top.at("memest_spec").integer() != 1)
      throw top.at("memest_spec").error("memest reads version 1 of its spec, found " + top.at("memest_spec").found());
    if (top.has("name")) model_.name = top.at("name").text();
    if (top.has("loss")) model_.loss = top.at("loss").text();
    symbols(top);
    inputs(top.at("inputs"));
    if (top.has("layers") == top.has("nodes")) throw top.error("a spec has either \"layers\" or \"nodes\"");
    if (top.has("layers")) {
      const std::vector<nn::ModulePtr> inner = layers(top.at("layers"), 0);
      model_.root = std::make_shared<nn::Sequential>(inner);
      name_layers(top.at("layers"), *model_.root, inner.size());
    } else {
      model_.root = graph(top, 0);
    }
    if (top.has("tie"))
      top.at("tie").each([&](const std::string& path, const Node& to) {
        if (!model_.root->tie(path, to.text()))
          throw to.error(fmt::format("there is no parameter '{}' or no '{}'", path, to.text()),
                         "paths are those of named_parameters(), as \"head.weight\"");
      });
    bind_inputs(top);
  }

 private:
  /// A layer's record and its arguments.
  struct LayerPlan {
    const nn::LayerRecord* record;
    Values arguments;
  };

  void symbols(const Node& top) {
    auto& table = *model_.symbols;
    if (top.has("defaults")) top.at("defaults").each([&](const std::string& name, const Node& value) { table[name] = value.integer(); });
    for (auto& [name, value] : options_.sizes) table[name] = value;
  }

  nn::SizeExpression size(const Node& node) {
    if (node.json().is_number()) {
      const std::int64_t value = node.integer();
      if (value < 0) throw node.error(fmt::format("a size cannot be negative, found {}", value));
      return nn::SizeExpression(std::to_string(value));
    }
    std::string text = node.text();
    if (text.starts_with('$')) text.erase(0, 1);
    try {
      return nn::SizeExpression(text);
    } catch (Error& e) {
      throw e.within(node.where());
    }
  }

  void inputs(const Node& list) {
    list.array();
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Node input = list.at(i);
      input.allow({"name", "shape", "dtype"});
      nn::InputSpec spec;
      spec.name = input.at("name").text();
      const Node shape = input.at("shape");
      shape.array();
      for (std::size_t d = 0; d < shape.size(); ++d) spec.shape.push_back(size(shape.at(d)));
      if (input.has("dtype")) spec.dtype = dtype(input.at("dtype"));
      model_.inputs.push_back(std::move(spec));
    }
    for (auto& given : options_.inputs) {
      auto it = std::find_if(model_.inputs.begin(), model_.inputs.end(), [&](auto& input) { return input.name == given.name; });
      if (it == model_.inputs.end()) {
        std::vector<std::string> names;
        for (auto& input : model_.inputs) names.push_back(input.name);
        throw Error(fmt::format("--input: the model has no input '{}'", given.name), "its inputs are " + join(names, ", "));
      }
      it->shape.clear();
      for (auto& s : given.shape) it->shape.emplace_back(s);
      if (given.dtype) it->dtype = *given.dtype;
    }
  }

  /// "image" also sets "height" and "width" and the other way round, where only one of them is a symbol of the spec.
  void bind_inputs(const Node& top) {
    std::vector<std::string> used;
    for (auto& input : model_.inputs)
      for (auto& s : input.shape)
        for (auto& name : s.symbols()) used.push_back(name);
    for (auto& [name, value] : options_.sizes) {
      const bool known = name == "batch" || name == "image" || name == "height" || name == "width" || name == "seq";
      if (!known && std::find(used.begin(), used.end(), name) == used.end() && !(top.has("defaults") && top.at("defaults").has(name)))
        unknown_.push_back(name);
    }
    if (!unknown_.empty()) {
      const std::string option = unknown_[0] == "src_seq" ? "--src-seq" : unknown_[0] == "tgt_seq" ? "--tgt-seq" : "--set " + unknown_[0];
      throw Error(option + ": the spec has no such size", did_you_mean(unknown_[0], used));
    }
    for (std::size_t i = 0; i < model_.inputs.size(); ++i) {
      try {
        const Dims sizes = model_.inputs[i].sizes(*model_.symbols);
        for (std::int64_t s : sizes)
          if (s < 0) throw Error(fmt::format("the size {} is negative", to_string(sizes)));
        sizes.numel();
      } catch (Error& e) {
        throw e.within(fmt::format("/inputs/{}", i));
      }
    }
  }

  DType dtype(const Node& node) {
    const std::string name = node.text();
    auto type = dtype_from(name);
    if (!type) {
      std::vector<std::string> names;
      for (int i = 0; i < kDTypeCount; ++i) names.emplace_back(name_of(DType(i)));
      throw node.error(fmt::format("unknown dtype '{}'", name.substr(0, 60)), did_you_mean(name, names));
    }
    return *type;
  }

  /// Layers in order; "repeat" makes independent copies, which a container of its own groups unless it stands in a list.
  std::vector<nn::ModulePtr> layers(const Node& list, int depth) {
    list.array();
    std::vector<nn::ModulePtr> made;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Node node = list.at(i);
      node.object();
      std::int64_t repeat = 1;
      if (node.has("repeat")) {
        repeat = node.at("repeat").integer();
        if (repeat < 1 || repeat > kMostRepeats)
          throw node.at("repeat").error(fmt::format("repeat must be 1 to {}, found {}", grouped(kMostRepeats), repeat));
      }
      for (std::int64_t r = 0; r < repeat; ++r) made.push_back(layer(node, depth));
    }
    return made;
  }

  /// The "name" of a layer stands for its number in its container's paths, as in nn.Sequential(OrderedDict(...)).
  void name_layers(const Node& list, nn::Module& container, std::size_t count) {
    if (container.children().size() != count) return;  // a container that groups its layers in one of its own
    std::size_t at = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Node node = list.at(i);
      const std::int64_t repeat = node.has("repeat") ? node.at("repeat").integer() : 1;
      if (node.has("name")) {
        const std::string name = node.at("name").text();
        if (repeat != 1) throw node.at("name").error("a layer that is repeated has no name of its own");
        if (name.empty() || name.find('.') != std::string::npos)
          throw node.at("name").error("a layer's name has no dots, found '" + name.substr(0, 80) + "'");
        if (name != std::to_string(at) && container.has_child(name))
          throw node.at("name").error("two layers are named '" + name.substr(0, 80) + "'");
        container.rename_child(at, name);
      }
      at += std::size_t(repeat);
    }
  }

  nn::ModulePtr layer(const Node& node, int depth) {
    if (++modules_ > kMostModules) throw node.error(fmt::format("the model has more than {} modules", grouped(std::int64_t(kMostModules))));
    const std::string type = node.at("type").text();
    if (type == "Graph") return graph(node, depth + 1);
    if (auto* container = nn::find_container(type)) {
      node.allow({"type", "layers", "repeat", "name"});
      std::vector<nn::ModulePtr> inner = layers(node.at("layers"), depth + 1);
      nn::ModulePtr made = container->make(inner);
      name_layers(node.at("layers"), *made, inner.size());
      return made;
    }
    if (!nn::find_layer(type) && !node.has("nodes")) return unknown_layer(node, type, depth);
    try {
      auto [plan, is_new] = plans_.try_emplace(&node.json());
      if (is_new) plan->second = layer_plan(type, node);
      Values arguments = plan->second.arguments;
      return plan->second.record->make(arguments);
    } catch (Error& e) {
      throw e.has_place() ? e : e.within(nn::find_layer(type) ? node.where() : node.at("type").where());
    }
  }

  LayerPlan layer_plan(const std::string& type, const Node& node) {
    KeywordArguments arguments;
    node.each([&](const std::string& key, const Node& value) {
      if (key != "type" && key != "repeat" && key != "name") arguments.emplace_back(key, constant(value));
    });
    const nn::LayerRecord& record = nn::layer_record(type);
    return {&record, nn::bind_layer(record, arguments)};
  }

  nn::ModulePtr unknown_layer(const Node& node, const std::string& type, int depth) {
    const bool holds_layers = node.has("layers");
    const std::string near = did_you_mean(type, nn::layer_names());
    try {
      nn::report_unknown({Diagnostic::Severity::warning, "unknown-layer", fmt::format("memest knows no layer '{}'", type.substr(0, 80)),
                          node.at("type").where(), near},
                         holds_layers ? "it has no parameters of its own and runs its layers one after another"
                                      : "it has no parameters, returns a tensor like its largest input, and saves both");
    } catch (Error& e) {
      throw e.within(node.at("type").where());
    }
    const std::vector<nn::ModulePtr> inner = holds_layers ? layers(node.at("layers"), depth + 1) : std::vector<nn::ModulePtr>();
    nn::ModulePtr made = nn::unknown_layer(type, inner);
    if (holds_layers) name_layers(node.at("layers"), *made, inner.size());
    return made;
  }

  /// A constant of a layer's arguments: sizes may be symbols.
  Value constant(const Node& node) {
    nn::GraphArgument a = argument(node, nullptr);
    return evaluated(a, node);
  }
  Value evaluated(const nn::GraphArgument& a, const Node& node) {
    using Form = nn::GraphArgument::Form;
    if (a.form == Form::constant) return a.constant;
    if (a.form == Form::size) {
      try {
        return a.size->evaluate(*model_.symbols);
      } catch (Error& e) {
        throw e.within(node.where());
      }
    }
    Values items;
    for (auto& item : a.items) items.push_back(evaluated(item, node));
    if (a.form == Form::dict) {
      auto dict = std::make_shared<Dict>();
      for (std::size_t i = 0; i < items.size(); ++i) dict->items.emplace_back(a.keys[i], items[i]);
      return dict;
    }
    return a.form == Form::tuple ? make_tuple(std::move(items)) : make_list(std::move(items));
  }

  nn::GraphArgument argument(const Node& node, nn::GraphProgram* graph) {
    using Form = nn::GraphArgument::Form;
    const Json& j = node.json();
    nn::GraphArgument a;
    if (j.is_null()) {
      a.constant = None{};
    } else if (j.is_boolean()) {
      a.constant = j.get<bool>();
    } else if (j.is_number_integer()) {
      a.constant = node.integer();
    } else if (j.is_number()) {
      a.constant = j.get<double>();
    } else if (j.is_string()) {
      std::string text = j.get<std::string>();
      const bool doubled = text.size() >= 2 && text[0] == text[1];
      if (text.starts_with('%') && !doubled && graph) {
        a.form = Form::value;
        if (!graph->has_name(text.substr(1))) {
          std::vector<std::string> names;
          for (auto& [name, slot] : graph->names()) names.push_back(name);
          throw node.error(fmt::format("'{}' refers to a value that no node before makes", text.substr(0, 80)),
                           did_you_mean(text.substr(1), names));
        }
        a.slot = graph->slot_of(text.substr(1));
      } else if ((text == "$training" || text == "$not_training") && graph) {
        a.form = Form::training;
        a.constant = text == "$training";
      } else if (text.starts_with('$') && !doubled) {
        a.form = Form::size;
        try {
          a.size = std::make_shared<nn::SizeExpression>(text.substr(1));
        } catch (Error& e) {
          throw e.within(node.where());
        }
      } else {
        if ((text.starts_with('%') || text.starts_with('$')) && doubled) text.erase(0, 1);
        a.constant = text;
      }
    } else if (j.is_array()) {
      a.form = Form::list;
      for (std::size_t i = 0; i < node.size(); ++i) a.items.push_back(argument(node.at(i), graph));
    } else if (node.has("tuple")) {
      const Node items = node.at("tuple");
      items.array();
      a.form = Form::tuple;
      for (std::size_t i = 0; i < items.size(); ++i) a.items.push_back(argument(items.at(i), graph));
    } else if (node.has("slice")) {
      const Node items = node.at("slice");
      if (items.array().size() != 3) throw items.error("a slice has three parts: start, stop, step");
      a.form = Form::slice;
      for (std::size_t i = 0; i < 3; ++i) a.items.push_back(argument(items.at(i), graph));
    } else if (node.has("ellipsis")) {
      a.constant = Ellipsis{};
    } else if (node.has("dtype")) {
      a.constant = dtype(node.at("dtype"));
    } else if (node.has("float")) {
      const std::string text = node.at("float").text();
      if (text == "inf")
        a.constant = std::numeric_limits<double>::infinity();
      else if (text == "-inf")
        a.constant = -std::numeric_limits<double>::infinity();
      else if (text == "nan")
        a.constant = std::numeric_limits<double>::quiet_NaN();
      else
        throw node.error("\"float\" is inf, -inf or nan");
    } else if (node.has("memory_format")) {
      const std::string text = node.at("memory_format").text();
      if (text == "contiguous_format")
        a.constant = MemoryFormat::contiguous;
      else if (text == "channels_last")
        a.constant = MemoryFormat::channels_last;
      else if (text == "channels_last_3d")
        a.constant = MemoryFormat::channels_last_3d;
      else if (text == "preserve_format")
        a.constant = MemoryFormat::preserve;
      else
        throw node.error("\"memory_format\" is contiguous_format, channels_last, channels_last_3d or preserve_format");
    } else if (node.has("type") && !graph) {  // a layer as another's argument
      a.form = Form::dict;
      node.each([&](const std::string& key, const Node& value) {
        a.keys.push_back(key);
        a.items.push_back(argument(value, graph));
      });
    } else if (node.has("dict")) {
      a.form = Form::dict;
      node.at("dict").each([&](const std::string& key, const Node& value) {
        a.keys.push_back(key);
        a.items.push_back(argument(value, graph));
      });
    } else {
      throw node.error(
          "an object here is one of {\"tuple\": [...]}, {\"slice\": [a, b, c]}, {\"ellipsis\": true}, {\"dtype\": ...}, {\"float\": "
          "\"inf\"}, {\"memory_format\": ...}, {\"dict\": {...}}");
    }
    return a;
  }

  nn::ModulePtr graph(const Node& node, int depth) {
    auto made = std::make_shared<nn::Graph>(model_.symbols);
    if (depth > 0) node.allow({"type", "inputs", "modules", "parameters", "buffers", "nodes", "keep", "evaluation", "repeat", "name"});
    if (node.has("modules"))
      node.at("modules").each([&](const std::string& name, const Node& value) { made->register_module(name, layer(value, depth)); });
    auto tensors = [&](const char* key, Category category) {
      if (!node.has(key)) return;
      node.at(key).each([&](const std::string& name, const Node& value) {
        value.allow({"shape", "dtype", "requires_grad", "keep_dtype"});
        Dims sizes;
        const Node shape = value.at("shape");
        shape.array();
        for (std::size_t d = 0; d < shape.size(); ++d) {
          try {
            sizes.push_back(size(shape.at(d)).evaluate(*model_.symbols));
          } catch (Error& e) {
            throw e.has_place() ? e : e.within(shape.at(d).where());
          }
        }
        DType type = value.has("dtype") ? dtype(value.at("dtype")) : DType::float32;
        const bool kept = value.has("keep_dtype") && value.at("keep_dtype").boolean();
        if (type == DType::float32 && !kept) type = runtime().default_dtype;
        Tensor x;
        try {
          x = host_tensor(sizes, type);
        } catch (Error& e) {
          throw e.within(value.where());
        }
        if (category == Category::parameter) {
          x->requires_grad = !value.has("requires_grad") || value.at("requires_grad").boolean();
          made->register_parameter(name, x);
        } else {
          made->register_buffer(name, x);
        }
      });
    };
    tensors("parameters", Category::parameter);
    tensors("buffers", Category::buffer);
    made->set_program(program_of(node));
    if (node.has("evaluation")) {
      const Node evaluation = node.at("evaluation");
      evaluation.allow({"nodes", "keep"});
      made->set_evaluation_program(program_of(evaluation));
    }
    return made;
  }

  /// Read once where a layer is repeated.
  std::shared_ptr<const nn::GraphProgram> program_of(const Node& node) {
    auto& program = programs_[&node.json()];
    if (!program) program = read_program(node);
    return program;
  }
  std::shared_ptr<const nn::GraphProgram> read_program(const Node& node) {
    auto program = std::make_shared<nn::GraphProgram>();
    const Node nodes = node.at("nodes");
    nodes.array();
    for (std::size_t i = 0; i < nodes.size(); ++i) program->add(graph_node(nodes.at(i), *program));
    if (node.has("keep")) {
      const Node keep = node.at("keep");
      keep.array();
      for (std::size_t i = 0; i < keep.size(); ++i) program->keep(keep.at(i).text());
    }
    try {
      program->finish();
    } catch (Error& e) {
      throw e.has_place() ? e : e.within(nodes.where());
    }
    return program;
  }

  nn::GraphNode graph_node(const Node& node, nn::GraphProgram& program) {
    node.allow({"name", "op", "target", "args", "kwargs", "outputs", "saved", "temporaries", "backward_temporaries"});
    static constexpr std::pair<const char*, nn::GraphNode::Op> kOps[] = {{"placeholder", nn::GraphNode::Op::placeholder},
                                                                         {"call_module", nn::GraphNode::Op::call_module},
                                                                         {"call_function", nn::GraphNode::Op::call_function},
                                                                         {"call_method", nn::GraphNode::Op::call_method},
                                                                         {"get_attr", nn::GraphNode::Op::get_attr},
                                                                         {"output", nn::GraphNode::Op::output},
                                                                         {"custom", nn::GraphNode::Op::custom}};
    nn::GraphNode n;
    n.where = node.where();
    n.name = node.at("name").text();
    const std::string op = node.at("op").text();
    auto it = std::find_if(std::begin(kOps), std::end(kOps), [&](auto& entry) { return op == entry.first; });
    if (it == std::end(kOps)) {
      std::vector<std::string> names;
      for (auto& [name, value] : kOps) names.emplace_back(name);
      throw node.at("op").error(fmt::format("unknown op '{}'", op.substr(0, 60)), "allowed: " + join(names, ", "));
    }
    n.op = it->second;
    if (node.has("target")) n.target = node.at("target").text();
    if (node.has("args")) {
      const Node args = node.at("args");
      args.array();
      for (std::size_t i = 0; i < args.size(); ++i) n.args.push_back(argument(args.at(i), &program));
    }
    if (node.has("kwargs"))
      node.at("kwargs").each([&](const std::string& key, const Node& value) {
        if (key != "device") n.kwargs.emplace_back(key, argument(value, &program));
      });
    if (n.op == nn::GraphNode::Op::custom)
      n.custom = custom(node, n, program);
    else
      for (const char* key : {"outputs", "saved", "temporaries", "backward_temporaries"})
        if (node.has(key)) throw node.at(key).error(fmt::format("\"{}\" belongs to a node whose op is \"custom\"", key));
    program.slot_of(n.name);
    return n;
  }

  // ---- ops that a spec describes: {"op": "custom", "args": ["%x"], "outputs": [{"shape": ["$batch", 8]}], "saved": ["%x", "%y"]}

  /// Names under which "saved" may know a tensor that the op makes.
  using MadeNames = std::map<std::string, nn::CustomOp::Made*>;

  nn::CustomOp::Made made_tensor(const Node& node, std::string where, nn::GraphProgram& graph) {
    node.allow({"name", "shape", "like", "dtype"});
    nn::CustomOp::Made made;
    made.where = std::move(where);
    if (node.has("shape") == node.has("like")) throw node.error("a tensor has either a \"shape\" or is \"like\" an input");
    if (node.has("like")) {
      const nn::GraphArgument like = argument(node.at("like"), &graph);
      if (like.form != nn::GraphArgument::Form::value) throw node.at("like").error("\"like\" names a value, as \"%x\"");
      made.like = like.slot;
    } else {
      const Node shape = node.at("shape");
      shape.array();
      for (std::size_t d = 0; d < shape.size(); ++d) made.shape.push_back(made_size(shape.at(d), graph));
    }
    if (node.has("dtype")) made.dtype = dtype(node.at("dtype"));
    return made;
  }
  /// A size: a number, an expression over symbols, or an integer of the graph ("%n").
  nn::GraphArgument made_size(const Node& node, nn::GraphProgram& graph) {
    if (node.json().is_string() && node.text().starts_with('%')) return argument(node, &graph);
    nn::GraphArgument a;
    a.form = nn::GraphArgument::Form::size;
    a.size = std::make_shared<nn::SizeExpression>(size(node));
    return a;
  }
  std::vector<nn::CustomOp::Made> made_tensors(const Node& node, const char* key, nn::GraphProgram& graph) {
    std::vector<nn::CustomOp::Made> list;
    if (!node.has(key)) return list;
    const Node tensors = node.at(key);
    tensors.array();
    for (std::size_t i = 0; i < tensors.size(); ++i) list.push_back(made_tensor(tensors.at(i), fmt::format("{}/{}", key, i), graph));
    return list;
  }
  void name_tensors(const Node& node, const char* key, std::vector<nn::CustomOp::Made>& list, MadeNames& names) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Node tensors = node.at(key), tensor = tensors.at(i);
      if (!tensor.has("name")) continue;
      const std::string name = tensor.at("name").text();
      if (!names.emplace(name, &list[i]).second)
        throw tensor.at("name").error(fmt::format("two tensors of the op are named '{}'", name.substr(0, 80)));
    }
  }
  std::shared_ptr<const nn::CustomOp> custom(const Node& node, const nn::GraphNode& n, nn::GraphProgram& graph) {
    auto op = std::make_shared<nn::CustomOp>();
    op->outputs = made_tensors(node, "outputs", graph);
    op->temporaries = made_tensors(node, "temporaries", graph);
    op->backward_temporaries = made_tensors(node, "backward_temporaries", graph);
    if (op->outputs.empty())
      throw(node.has("outputs") ? node.at("outputs") : node).error("a custom op has \"outputs\": the tensors it makes");
    MadeNames names;
    name_tensors(node, "outputs", op->outputs, names);
    name_tensors(node, "temporaries", op->temporaries, names);
    if (op->outputs.size() == 1) names.emplace(n.name, &op->outputs[0]);
    std::map<std::string, int> inputs;
    for (auto& [name, slot] : graph.names()) inputs.emplace(name, slot);
    std::set<int> arguments;
    for (auto& a : n.args) nn::visit_values(a, [&](int slot) { arguments.insert(slot); });
    for (auto& [key, a] : n.kwargs) nn::visit_values(a, [&](int slot) { arguments.insert(slot); });
    std::erase_if(inputs, [&](auto& input) { return !arguments.contains(input.second); });
    if (!node.has("saved")) {  // as of an op that memest does not know: all inputs and outputs
      op->saved_slots = arguments;
      for (auto& made : op->outputs) made.saved = true;
      return op;
    }
    const Node saved = node.at("saved");
    saved.array();
    for (std::size_t i = 0; i < saved.size(); ++i) save(saved.at(i), *op, inputs, names);
    return op;
  }
  /// An input ("%x"), or a tensor that the op makes by its name; the only output has the node's. An input comes before an output of its
  /// name.
  void save(const Node& node, nn::CustomOp& op, const std::map<std::string, int>& inputs, const MadeNames& names) {
    std::string name = node.text();
    const bool value = name.starts_with('%');
    if (value) name.erase(0, 1);
    if (auto input = inputs.find(name); input != inputs.end() && (value || !names.contains(name))) {
      op.saved_slots.insert(input->second);
    } else if (auto made = names.find(name); made != names.end()) {
      made->second->saved = true;
    } else {
      std::vector<std::string> known;
      for (auto& [input_name, slot] : inputs) known.push_back("%" + input_name);
      for (auto& [made_name, tensor] : names) known.push_back(made_name);
      const std::string near = did_you_mean(node.text(), known);
      throw node.error(fmt::format("'{}' is no input of the op and no tensor that it makes", node.text().substr(0, 80)),
                       near.empty() ? "there are " + join(known, ", ") : near);
    }
  }

  nn::Model& model_;
  const ReadOptions& options_;
  std::size_t modules_ = 0;
  std::vector<std::string> unknown_;
  // What is read once where a layer is repeated.
  std::unordered_map<const Json*, LayerPlan> plans_;
  std::unordered_map<const Json*, std::shared_ptr<const nn::GraphProgram>> programs_;
};

class MemestJson final : public Reader {
 public:
  MemestJson() : Reader("memest-spec") {}
  bool recognises(const std::string& path, const std::string& head) const override {
    const auto first = head.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
    const bool json = first != std::string::npos && (head[first] == '{' || head[first] == '[');
    return json && (head.find("\"memest_spec\"") != std::string::npos || !looks_like_hf_config(path, head));
  }
  std::unique_ptr<nn::Model> read(const std::string& path, const ReadOptions& options) const override {
    auto model = std::make_unique<nn::Model>();
    model->kind = name;
    const Json json = parse_json(read_file(path));
    Node top(json);
    if (!top.json().is_object()) throw top.error("a spec is a JSON object, found " + top.found());
    if (!top.has("memest_spec")) throw top.error("this is no memest spec: \"memest_spec\" is missing");
    SpecReader(*model, options).read(top);
    return model;
  }
};
const MemestJson reader;

}  // namespace
}  // namespace memest::spec
