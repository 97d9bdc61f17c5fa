#include "run/checkpointed.h"

#include <cmath>
#include <set>
#include <utility>

#include "base/text.h"
#include "fake/checkpoint.h"

namespace memest::run {
namespace {

/// torch.utils.checkpoint.checkpoint_sequential: equal segments, the last one takes the rest and is not checkpointed.
Tensor checkpoint_sequential(const std::vector<std::pair<std::string, nn::ModulePtr>>& functions, std::int64_t segments, T input,
                             const Checkpointing& c) {
  const std::int64_t count = std::int64_t(functions.size());
  if (segments > count || segments < 1)
    throw Error("--checkpoint: the model has " + std::to_string(count) + " top-level layers, " + std::to_string(segments) +
                " segments were asked for");
  auto run = [&functions](std::int64_t start, std::int64_t end) {
    return [&functions, start, end](const Tensors& inputs) {
      Tensor x = inputs[0];
      for (std::int64_t i = start; i < end; ++i) x = (*functions[std::size_t(i)].second)(x);
      return Tensors{x};
    };
  };
  const std::int64_t size = count / segments;
  Tensor x = input;
  std::int64_t end = 0;
  for (std::int64_t start = 0; start < size * (segments - 1); start += size) {
    end = start + size;
    x = c.reentrant ? checkpoint_reentrant(run(start, end), {x})[0] : checkpoint(run(start, end), {x}, c.keep)[0];
  }
  return run(end, count)({x})[0];
}

/// The positional arguments of a call with its tensors taken out, and put back.
class TensorArguments {
 public:
  explicit TensorArguments(const Values& arguments) : arguments_(arguments) {
    for (auto& a : arguments_)
      if (auto* x = std::get_if<Tensor>(&a)) tensors_.push_back(*x), a = Tensor();
  }
  Tensors take() { return std::exchange(tensors_, {}); }
  Values with(const Tensors& tensors) const {
    Values given = arguments_;
    std::size_t next = 0;
    for (auto& a : given)
      if (std::holds_alternative<Tensor>(a)) a = tensors[next++];
    return given;
  }

 private:
  Values arguments_;
  Tensors tensors_;
};

/// checkpoint(module, *arguments, **keywords, use_reentrant=False): the region holds the keywords, the checkpoint the tensors.
Value checkpointed_call(nn::Module& module, const Values& arguments, const KeywordArguments& keywords, const Checkpointing& c) {
  TensorArguments given(arguments);
  const Tensors inputs = given.take();
  Value result;
  auto first = std::make_shared<Value*>(&result);  // the recomputation's result is nobody's
  Region region = [&module, given, keywords, first](const Tensors& tensors) {
    Value value = module.call_unwrapped(given.with(tensors), keywords);
    if (*first) **first = std::move(value);
    return Tensors{};
  };
  checkpoint(std::move(region), inputs, c.keep);
  *first = nullptr;
  return result;
}

/// CheckpointFunction.apply: the tensors among the positional arguments are the node's inputs, the tensors of the result its outputs.
Value checkpointed_reentrant_call(nn::Module& module, const Values& arguments, const KeywordArguments& keywords) {
  if (!keywords.empty())
    throw Error("Unexpected keyword arguments: " + keywords[0].first, "the reentrant form takes none; leave ,reentrant out");
  TensorArguments given(arguments);
  const Tensors inputs = given.take();
  Region region = [&module, given](const Tensors& tensors) {
    Tensors outputs;
    collect_tensors(module.call_unwrapped(given.with(tensors)), outputs);
    return outputs;
  };
  Tensors outputs = checkpoint_reentrant(std::move(region), inputs);
  return outputs.size() == 1 ? Value(outputs[0]) : list_of(outputs);
}

void wrap(nn::Module& module, const Checkpointing& c) {
  module.wrap([c](nn::Module& m, const Values& arguments, const KeywordArguments& keywords) {
    return c.reentrant ? checkpointed_reentrant_call(m, arguments, keywords) : checkpointed_call(m, arguments, keywords, c);
  });
}

/// Modules below this one whose path fits, outermost first: what lies inside one is not wrapped again.
void wrap_matching(nn::Module& module, const std::string& path, const Checkpointing& c, std::set<const nn::Module*>& seen,
                   std::vector<std::string>& paths, int& wrapped) {
  for (auto& [name, child] : module.children()) {
    const std::string own = path.empty() ? name : path + "." + name;
    if (!seen.insert(child.get()).second) continue;
    paths.push_back(own);
    if (glob_match(c.pattern, own)) {
      wrap(*child, c);
      ++wrapped;
    } else {
      wrap_matching(*child, own, c, seen, paths, wrapped);
    }
  }
}

}  // namespace

void wrap_checkpointed(nn::Model& model, const Checkpointing& c) {
  using Where = Checkpointing::Where;
  if (c.where != Where::modules && c.where != Where::every) return;
  if (model.checkpoints_itself())
    throw Error("--checkpoint " + c.text() + ": a model of transformers checkpoints its layers itself", "use --checkpoint full");
  if (c.where == Where::every) {
    if (model.root->type() != "Sequential")
      throw Error("--checkpoint " + c.text() + " needs a model that is a list of layers", "checkpoint parts by name with modules=GLOB");
    for (std::size_t i = 0; i < model.root->children().size(); i += std::size_t(c.count)) wrap(*model.root->children()[i].second, c);
    return;
  }
  std::set<const nn::Module*> seen;
  std::vector<std::string> paths;
  int wrapped = 0;
  wrap_matching(*model.root, "", c, seen, paths, wrapped);
  if (wrapped == 0) throw Error("--checkpoint " + c.text() + ": no module of the model has such a path", did_you_mean(c.pattern, paths));
}

nn::Outcome run_checkpointed(nn::Model& model, const Checkpointing& c, const Tensors& batch) {
  using Where = Checkpointing::Where;
  if (c.where == Where::none || c.where == Where::modules || c.where == Where::every ||
      (c.where == Where::full && model.checkpoints_itself()))
    return model.forward(batch);
  if (model.root->type() != "Sequential" || batch.size() != 1)
    throw Error("--checkpoint " + c.text() + " needs a model that is a list of layers", "checkpoint parts by name with modules=GLOB");
  const std::int64_t count = std::int64_t(model.root->children().size());
  const std::int64_t segments = c.where == Where::full       ? count
                                : c.where == Where::segments ? c.count
                                                             : std::max<std::int64_t>(1, std::llround(std::sqrt(double(count))));
  return {checkpoint_sequential(model.root->children(), segments, batch[0], c), {}};
}

}  // namespace memest::run
