#include "nn/graph.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "fake/autograd.h"
#include "nn/layer.h"

namespace memest::nn {
namespace {

/// Recursive descent over "a + b * (c // 2)"; as Python, // rounds down.
class ExpressionReader {
 public:
  ExpressionReader(std::string_view text, const Symbols* symbols, std::vector<std::string>* names)
      : text_(text), symbols_(symbols), names_(names) {}
  std::int64_t read() {
    const std::int64_t value = sum(0);
    skip();
    if (at_ != text_.size()) throw bad();
    return value;
  }

 private:
  Error bad() const {
    return Error(fmt::format("'{}' is no size: names, integers, + - * // % and parentheses are allowed", text_.substr(0, 80)));
  }
  void skip() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(std::string_view sign) {
    skip();
    if (!text_.substr(at_).starts_with(sign)) return false;
    at_ += sign.size();
    return true;
  }
  std::int64_t sum(int depth) {
    std::int64_t value = product(depth);
    for (;;) {
      if (take("+"))
        value = checked_add(value, product(depth));
      else if (take("-"))
        value = checked_add(value, checked_mul(-1, product(depth)));
      else
        return value;
    }
  }
  std::int64_t product(int depth) {
    std::int64_t value = factor(depth);
    for (;;) {
      if (take("//") || take("/"))
        value = divided(value, factor(depth), false);
      else if (take("%"))
        value = divided(value, factor(depth), true);
      else if (take("*"))
        value = checked_mul(value, factor(depth));
      else
        return value;
    }
  }
  std::int64_t divided(std::int64_t a, std::int64_t b, bool remainder) const {
    if (!symbols_) return 1;  // only the form is checked
    if (b == 0) throw Error(fmt::format("'{}' divides by zero", text_));
    if (b == -1) return remainder ? 0 : checked_mul(a, -1);
    std::int64_t quotient = a / b;
    if (a % b != 0 && (a < 0) != (b < 0)) --quotient;
    return remainder ? a - quotient * b : quotient;
  }
  std::int64_t factor(int depth) {
    if (depth > 100) throw bad();
    skip();
    if (take("-")) return checked_mul(-1, factor(depth + 1));
    if (take("(")) {
      const std::int64_t value = sum(depth + 1);
      if (!take(")")) throw bad();
      return value;
    }
    const std::size_t start = at_;
    auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
    auto digit = [](char c) { return c >= '0' && c <= '9'; };
    if (at_ < text_.size() && digit(text_[at_])) {
      while (at_ < text_.size() && digit(text_[at_])) ++at_;
      auto value = parse_int(text_.substr(start, at_ - start));
      if (!value) throw bad();
      return *value;
    }
    while (at_ < text_.size() && (letter(text_[at_]) || digit(text_[at_]) || text_[at_] == '.')) ++at_;
    if (at_ == start) throw bad();
    const std::string name(text_.substr(start, at_ - start));
    if ((name == "max" || name == "min") && take("(")) {
      std::int64_t value = sum(depth + 1);
      while (take(",")) {
        const std::int64_t other = sum(depth + 1);
        value = name == "max" ? std::max(value, other) : std::min(value, other);
      }
      if (!take(")")) throw bad();
      return value;
    }
    if (names_) names_->push_back(name);
    if (!symbols_) return 1;
    auto it = symbols_->find(name);
    if (it == symbols_->end()) {
      std::vector<std::string> known;
      for (auto& [symbol, value] : *symbols_) known.push_back(symbol);
      throw Error(fmt::format("the size '{}' has no value", name),
                  fmt::format("give it with --set {}=NUMBER or in the spec's \"defaults\"", name));
    }
    return it->second;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  const Symbols* symbols_;
  std::vector<std::string>* names_;
};

/// The slots of an argument in the order in which Python lets go of them after the call: lists and tuples from their end.
void visit_slots(const GraphArgument& argument, const std::function<void(int)>& f) {
  if (argument.form == GraphArgument::Form::value) f(argument.slot);
  for (std::size_t i = argument.items.size(); i-- > 0;) visit_slots(argument.items[i], f);
}

/// Those of all that a node reads.
void visit_slots(const GraphNode& n, const std::function<void(int)>& f) {
  for (auto& a : n.args) visit_slots(a, f);
  for (auto& [key, a] : n.kwargs) visit_slots(a, f);
  if (!n.custom) return;
  for (auto* list : {&n.custom->outputs, &n.custom->temporaries, &n.custom->backward_temporaries})
    for (auto& made : *list) {
      if (made.like >= 0) f(made.like);
      for (auto& size : made.shape) visit_slots(size, f);
    }
}

/// The i of a node getitem(value, i), where that is a constant that counts from the start; else -1.
std::int64_t part_taken(const GraphNode& n) {
  if (n.op != GraphNode::Op::call_function || !n.target.ends_with("getitem") || n.args.size() != 2) return -1;
  auto* i = std::get_if<std::int64_t>(&n.args[1].constant);
  return n.args[1].form == GraphArgument::Form::constant && i ? *i : -1;
}

}  // namespace

void visit_values(const GraphArgument& argument, const std::function<void(int)>& f) {
  if (argument.form == GraphArgument::Form::value) f(argument.slot);
  for (auto& item : argument.items) visit_values(item, f);
}

SizeExpression::SizeExpression(std::string text) : text_(std::move(text)) { ExpressionReader(text_, nullptr, nullptr).read(); }
std::int64_t SizeExpression::evaluate(const Symbols& symbols) const { return ExpressionReader(text_, &symbols, nullptr).read(); }
std::vector<std::string> SizeExpression::symbols() const {
  std::vector<std::string> names;
  ExpressionReader(text_, nullptr, &names).read();
  return names;
}

int GraphProgram::slot_of(const std::string& name) { return slots_.try_emplace(name, int(slots_.size())).first->second; }

std::size_t GraphProgram::placeholders() const {
  return std::size_t(std::count_if(nodes_.begin(), nodes_.end(), [](auto& n) { return n.op == GraphNode::Op::placeholder; }));
}

void GraphProgram::finish() {
  if (nodes_.empty() || nodes_.back().op != GraphNode::Op::output) throw Error("a graph ends with a node whose op is \"output\"");
  std::vector<bool> assigned(slots_.size(), false);
  std::vector<std::string> names(slots_.size());
  for (auto& [name, slot] : slots_) names[std::size_t(slot)] = name;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    GraphNode& n = nodes_[i];
    auto known = [&](int slot) {
      if (!assigned[std::size_t(slot)]) {
        std::vector<std::string> before;
        for (std::size_t s = 0; s < assigned.size(); ++s)
          if (assigned[s]) before.push_back(names[s]);
        Error e(fmt::format("node '{}' uses '%{}', which no node before it makes", n.name, names[std::size_t(slot)]),
                did_you_mean(names[std::size_t(slot)], before));
        throw e.within(n.where);
      }
    };
    visit_slots(n, known);
    if (n.op == GraphNode::Op::output && i + 1 != nodes_.size())
      throw Error("the node after the output is never run").within(nodes_[i + 1].where);
    if ((n.op == GraphNode::Op::call_function || n.op == GraphNode::Op::call_method) && n.target.empty())
      throw Error("a call needs a target").within(n.where);
    n.slot = slot_of(n.name);
    if (std::size_t(n.slot) >= assigned.size()) assigned.resize(std::size_t(n.slot) + 1), names.resize(std::size_t(n.slot) + 1, n.name);
    assigned[std::size_t(n.slot)] = true;
  }
  find_unknown();
  // Where values die: backwards, the first use met is the last. A value whose name is assigned again later dies there instead.
  std::vector<bool> seen(slots_.size(), false);
  for (auto& name : kept_) {
    if (!slots_.contains(name)) throw Error(fmt::format("\"keep\" names '{}', which no node makes", name));
    seen[std::size_t(slots_[name])] = true;
  }
  dead_.assign(nodes_.size(), {});
  for (std::size_t i = nodes_.size(); i-- > 0;) {
    auto use = [&](int slot) {
      if (!seen[std::size_t(slot)]) {
        seen[std::size_t(slot)] = true;
        dead_[i].push_back(slot);
      }
    };
    use(nodes_[i].slot);
    visit_slots(nodes_[i], use);
  }
}

void Graph::set_program(std::shared_ptr<const GraphProgram> program) { usual_ = linked(std::move(program)); }
void Graph::set_evaluation_program(std::shared_ptr<const GraphProgram> program) { evaluation_ = linked(std::move(program)); }

Graph::Linked Graph::linked(std::shared_ptr<const GraphProgram> program) {
  Linked made{program, std::vector<Module*>(program->nodes().size(), nullptr)};
  for (std::size_t i = 0; i < made.called.size(); ++i) {
    const GraphNode& n = program->nodes()[i];
    if (n.op != GraphNode::Op::call_module) continue;
    if (!n.target.empty()) made.called[i] = find(n.target);  // "" would be the graph itself
    if (made.called[i]) continue;
    std::vector<std::string> modules;
    for (auto& [name, child] : children()) modules.push_back(name);
    Error e(fmt::format("node '{}' calls the module '{}', which the graph does not have", n.name, n.target.substr(0, 80)),
            did_you_mean(n.target, modules));
    throw e.within(n.where);
  }
  return made;
}

/// Calls that memest does not know. One whose users all take a part of it, value[0] and value[1], gives a tuple.
void GraphProgram::find_unknown() {
  constexpr int kWhole = -1, kMostParts = 64;
  std::vector<GraphNode*> maker(slots_.size(), nullptr);
  for (GraphNode& n : nodes_) {
    const std::int64_t part = part_taken(n);
    visit_slots(n, [&](int slot) {
      GraphNode* made_by = maker[std::size_t(slot)];
      if (!made_by || made_by->parts == kWhole) return;
      made_by->parts = part < 0 || part >= kMostParts ? kWhole : std::max(made_by->parts, int(part) + 1);
    });
    n.unknown = (n.op == GraphNode::Op::call_function || n.op == GraphNode::Op::call_method) && !is_function(n.target);
    n.parts = n.unknown ? 0 : 1;
    maker[std::size_t(n.slot)] = n.unknown ? &n : nullptr;
  }
  for (GraphNode& n : nodes_) n.parts = std::max(n.parts, 1);
}

Value Graph::evaluate(const GraphArgument& a, const Values& frame) const {
  switch (a.form) {
    case GraphArgument::Form::constant: return a.constant;
    case GraphArgument::Form::value: return frame[std::size_t(a.slot)];
    case GraphArgument::Form::size: return a.size->evaluate(*symbols_);
    case GraphArgument::Form::training: return training == std::get<bool>(a.constant);
    case GraphArgument::Form::slice:
      return std::make_shared<Slice>(Slice{evaluate(a.items[0], frame), evaluate(a.items[1], frame), evaluate(a.items[2], frame)});
    case GraphArgument::Form::dict: {
      auto dict = std::make_shared<Dict>();
      for (std::size_t i = 0; i < a.items.size(); ++i) dict->items.emplace_back(a.keys[i], evaluate(a.items[i], frame));
      return dict;
    }
    default: {
      Values items;
      for (auto& item : a.items) items.push_back(evaluate(item, frame));
      return a.form == GraphArgument::Form::tuple ? make_tuple(std::move(items)) : make_list(std::move(items));
    }
  }
}

Value Graph::run(std::size_t node, const Values& frame) {
  const GraphNode& n = current().program->nodes()[node];
  if (n.op == GraphNode::Op::get_attr) {
    const auto dot = n.target.rfind('.');
    Module* owner = find(dot == std::string::npos ? "" : n.target.substr(0, dot));
    const std::string last = n.target.substr(dot == std::string::npos ? 0 : dot + 1);
    if (owner) {
      for (auto& [name, p] : owner->own_parameters())
        if (name == last) return to_value(p);
      for (auto& [name, b] : owner->own_buffers())
        if (name == last) return to_value(b);
    }
    throw Error(fmt::format("the graph has no parameter or buffer '{}'", n.target));
  }
  if (n.op == GraphNode::Op::custom) return run_custom(n, frame);
  Values arguments;
  arguments.reserve(n.args.size());
  for (auto& a : n.args) arguments.push_back(evaluate(a, frame));
  KeywordArguments keywords;
  for (auto& [key, a] : n.kwargs) keywords.emplace_back(key, evaluate(a, frame));
  switch (n.op) {
    case GraphNode::Op::call_module: return current().called[node]->call(arguments, keywords);
    case GraphNode::Op::output: return arguments.empty() ? Value(None{}) : arguments[0];
    default:
      if (n.unknown) return run_unknown(n, arguments, keywords);
      return call_function(n.target, arguments, keywords, n.op == GraphNode::Op::call_method);
  }
}

Value Graph::run_custom(const GraphNode& n, const Values& frame) const {
  CustomCall call;
  const std::string name = n.target.empty() ? n.name : n.target;
  call.op = runtime().trace.intern(name);
  auto visit = [&](int slot) {
    const std::size_t before = call.inputs.size();
    collect_tensors(frame[std::size_t(slot)], call.inputs);
    call.saves_input.resize(call.inputs.size(), call.inputs.size() > before && n.custom->saved_slots.contains(slot));
  };
  for (auto& a : n.args) visit_values(a, visit);
  for (auto& [key, a] : n.kwargs) visit_values(a, visit);
  auto made = [&](const std::vector<CustomOp::Made>& list) {
    std::vector<CustomCall::Made> tensors;
    for (auto& m : list) tensors.push_back(described(m, call.inputs, frame));
    return tensors;
  };
  call.outputs = made(n.custom->outputs);
  call.temporaries = made(n.custom->temporaries);
  call.backward_temporaries = made(n.custom->backward_temporaries);
  const Tensors outputs = call_custom(call);
  if (outputs.size() == 1) return outputs[0];
  return make_tuple(Values(outputs.begin(), outputs.end()));
}

/// The sizes and the type of a tensor that a custom op makes.
CustomCall::Made Graph::described(const CustomOp::Made& m, const Tensors& inputs, const Values& frame) const {
  try {
    CustomCall::Made made{{}, inputs.empty() ? runtime().default_dtype : inputs[0].dtype(), m.saved};
    if (m.like >= 0) {
      const Value& v = frame[std::size_t(m.like)];
      if (!std::holds_alternative<Tensor>(v)) throw Error("\"like\" names a tensor, found " + memest::describe(v));
      made.sizes = std::get<Tensor>(v).sizes();
      made.dtype = std::get<Tensor>(v).dtype();
    }
    for (auto& size : m.shape) made.sizes.push_back(Unbox<std::int64_t>::from(evaluate(size, frame)));
    for (std::int64_t size : made.sizes)
      if (size < 0) throw Error("the sizes " + to_string(made.sizes) + " are negative");
    made.sizes.numel();
    if (m.dtype) made.dtype = *m.dtype;
    return made;
  } catch (Error& e) {
    throw e.within(m.where);
  }
}

Value Graph::run_unknown(const GraphNode& n, const Values& arguments, const KeywordArguments& keywords) const {
  const char* kind = n.op == GraphNode::Op::call_method ? "method" : "function";
  const std::string target = n.target.substr(0, 80), near = near_functions(target);
  report_unknown({Diagnostic::Severity::warning, "unknown-op",
                  fmt::format("node '{}' calls the {} '{}', which memest does not know", n.name, kind, target), n.where,
                  near + (near.empty() ? "" : " or ") + "describe it in the spec: \"op\": \"custom\" with its \"outputs\""},
                 fmt::format("it returns {} like its largest input and saves its inputs and what it returns",
                             n.parts == 1 ? "a tensor" : fmt::format("{} tensors", n.parts)));
  return assume_call(n.target, arguments, keywords, n.parts);
}

Value Graph::forward(const Values& arguments, const KeywordArguments& keywords) {
  const GraphProgram& program = *current().program;
  Values frame(program.slots());
  std::size_t next = 0;
  for (std::size_t i = 0; i < program.nodes().size(); ++i) {
    const GraphNode& n = program.nodes()[i];
    Value result;
    if (n.op == GraphNode::Op::placeholder) {
      const Value* given = next < arguments.size() ? &arguments[next] : nullptr;
      for (auto& [key, v] : keywords)
        if (key == n.name) given = &v;
      if (!given) {
        if (n.args.empty())
          throw Error(fmt::format("the graph's input '{}' was not given: it takes {}, {} were given", n.name, program.placeholders(),
                                  arguments.size()))
              .within(n.where);
        result = evaluate(n.args[0], frame);  // a default
      } else {
        result = *given;
      }
      ++next;
    } else {
      try {
        result = run(i, frame);
      } catch (Error& e) {
        e.within(fmt::format("node '{}' ({})", n.name, n.where));
        throw;
      }
      if (n.op == GraphNode::Op::output) return result;
    }
    // The call's operands go first, then the name is bound, and with that its old value goes.
    bool unused = false;
    for (int slot : program.dead(i)) {
      if (slot == n.slot)
        unused = true;
      else
        frame[std::size_t(slot)] = None{};
    }
    frame[std::size_t(n.slot)] = unused ? Value(None{}) : std::move(result);
  }
  return None{};
}

}  // namespace memest::nn
