// A layer without parameters or state: a name and a function of its input.
#pragma once
#include <memory>
#include <utility>

#include "nn/module.h"

namespace memest::nn {

/// `F` is Tensor(T) or Value(T) (a layer that returns a tuple, as with return_indices=True).
template <class F>
class SimpleLayer final : public Module {
 public:
  SimpleLayer(const char* type, F f) : Module(type), f_(std::move(f)) {}

 protected:
  Value forward(const Values& arguments, const KeywordArguments& keywords) override {
    if (arguments.size() + keywords.size() != 1)
      throw Error(type() + " takes one input, " + std::to_string(arguments.size() + keywords.size()) + " were given");
    const Value& input = arguments.empty() ? keywords[0].second : arguments[0];
    if (!std::holds_alternative<Tensor>(input)) throw Error(type() + " takes a tensor, found " + describe(input));
    return to_value(f_(std::get<Tensor>(input)));
  }

 private:
  F f_;
};
template <class F>
ModulePtr simple_layer(const char* type, F f) {
  return std::make_shared<SimpleLayer<F>>(type, std::move(f));
}

}  // namespace memest::nn
