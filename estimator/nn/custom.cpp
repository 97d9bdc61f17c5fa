#include "nn/custom.h"

#include <algorithm>
#include <span>
#include <tuple>

#include "base/error.h"
#include "base/text.h"
#include "fake/autograd.h"
#include "nn/layer.h"
#include "ops/op.h"

namespace memest::nn {
namespace {

Tensors made(const std::vector<CustomCall::Made>& wanted) {
  Tensors tensors;
  for (auto& t : wanted) tensors.push_back(empty(t.sizes, t.dtype));
  return tensors;
}

/// What an assumed op alone keeps is there by assumption; what another op saved or holds already is not.
void book_as_assumed(const Tensors& tensors) {
  for (auto& x : tensors)
    if (x->storage->category == Category::temporary) x->storage->categorize(Category::assumed);
}

/// How well an input serves as the model of the output: results before parameters, floating types before others, then the largest.
std::tuple<bool, bool, std::int64_t> rank(T x) {
  return {is_floating(x.dtype()), x->storage->category != Category::parameter && x->storage->category != Category::buffer, x.numel()};
}

class UnknownLayer final : public Module {
 public:
  UnknownLayer(const std::string& type, const std::vector<ModulePtr>& layers) : Module(type) {
    for (auto& layer : layers) register_module(std::to_string(children().size()), layer);
  }

 protected:
  Value forward(const Values& arguments, const KeywordArguments& keywords) override {
    if (children().empty()) return assume_call(type(), arguments, keywords, 1);
    Values input = arguments;
    for (auto& [name, layer] : children()) input = {layer->call(input)};
    return input.at(0);
  }
};

}  // namespace

Tensors call_custom(const CustomCall& c) {
  Scoped<const char*> named(runtime().op, c.op);
  const Category category = c.assumed ? Category::assumed : runtime().category;
  CategoryScope booked(category);
  Tensors saved;
  for (std::size_t i = 0; i < c.inputs.size(); ++i)
    if (c.saves_input[i]) saved.push_back(c.inputs[i]);
  const std::span<const Tensor> inputs(c.inputs);
  if (c.assumed && memest::detail::records(inputs)) book_as_assumed(saved);
  auto fn = node("CustomBackward", inputs, saved, [name = c.op, category, wanted = c.backward_temporaries](Backward& w, const Tensors&) {
    Scoped<const char*> op(runtime().op, name);
    CategoryScope scope(category);
    const Tensors temporaries = made(wanted);
    for (std::size_t i = 0; i < w.out.size(); ++i)
      if (w.needs(int(i))) w.out[i] = empty(w.sizes(int(i)), w.dtype(int(i)));
  });
  const Tensors outputs = made(c.outputs), temporaries = made(c.temporaries);
  Tensors kept;
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (c.outputs[i].saved) kept.push_back(outputs[i]);
  for (std::size_t i = 0; i < temporaries.size(); ++i)
    if (c.temporaries[i].saved) kept.push_back(temporaries[i]);
  fn.outputs(outputs, kept);
  return outputs;
}

Value assume_call(const std::string& name, const Values& arguments, const KeywordArguments& keywords, int outputs) {
  CustomCall call;
  call.op = runtime().trace.intern(name);
  call.assumed = true;
  for (auto& a : arguments) collect_tensors(a, call.inputs);
  for (auto& [key, a] : keywords) collect_tensors(a, call.inputs);
  if (call.inputs.empty())
    throw Error("memest does not know '" + name.substr(0, 80) + "', and without a tensor among its inputs there is nothing to assume of it",
                {}, Error::Kind::unknown);
  call.saves_input.assign(call.inputs.size(), true);
  T model = *std::max_element(call.inputs.begin(), call.inputs.end(), [](T a, T b) { return rank(a) < rank(b); });
  call.outputs.assign(std::size_t(outputs), {model.sizes(), model.dtype(), true});
  Tensors made = call_custom(call);
  if (outputs == 1) return made[0];
  Values parts(made.begin(), made.end());
  return make_tuple(std::move(parts));
}

ModulePtr unknown_layer(const std::string& type, const std::vector<ModulePtr>& layers) {
  return std::make_shared<UnknownLayer>(type, layers);
}

std::string near_functions(const std::string& name) {
  std::vector<std::string> names;
  for (auto* f : all_functions()) names.push_back(f->name());
  for (auto* op : all_ops()) names.emplace_back(op->name() + 6);  // without "aten::"
  return did_you_mean(name.substr(name.rfind('.') + 1), names);
}

void report_note(Diagnostic what) {
  if (runtime().settings.strict)
    throw Error(what.message, what.hint, Error::Kind::unknown).within(what.where.empty() ? "the model" : what.where);
  runtime().diagnostics.add(std::move(what));
}

void report_unknown(Diagnostic what, const std::string& assumption) {
  if (runtime().settings.strict) throw Error(what.message, what.hint, Error::Kind::unknown);
  what.message += "; assumed: " + assumption;
  runtime().diagnostics.add(std::move(what));
}

}  // namespace memest::nn
