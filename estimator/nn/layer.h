// A layer that specs can name is one record: its signature in torch.nn's names and defaults, and the function that makes it.
// Functions that graphs can call are records of the same form.
#pragma once
#include <string>
#include <type_traits>
#include <vector>

#include "nn/module.h"
#include "ops/schema.h"

namespace memest::nn {

namespace detail {
template <class F>
struct CallableOf : CallableOf<decltype(&F::operator())> {};
template <class C, class R, class... P>
struct CallableOf<R (C::*)(P...) const> : CallableOf<R (*)(P...)> {};
template <class R, class... P>
struct CallableOf<R (*)(P...)> {
  template <class F>
  static R call(const F& f, Values& values) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      std::tuple<std::decay_t<P>...> unboxed{Unbox<std::decay_t<P>>::from(values[I])...};
      values.clear();
      return std::apply([&](auto&... a) { return f(std::move(a)...); }, unboxed);
    }
    (std::index_sequence_for<P...>{});
  }
  static std::vector<std::pair<Kind, bool>> kinds() { return {{Unbox<std::decay_t<P>>::kind, Unbox<std::decay_t<P>>::optional}...}; }
};
}  // namespace detail

/// What layers and functions have in common: a signature and a callable of values.
class Record {
 public:
  Record(const char* signature) : signature_(signature) {}
  virtual ~Record() = default;
  Record(const Record&) = delete;
  const Schema& schema() const;  ///< parsed at first use
  const char* signature() const { return signature_; }
  std::string name() const { return std::string(signature_, std::string(signature_).find_first_of(".(")); }
  virtual std::vector<std::pair<Kind, bool>> parameter_kinds() const = 0;

 private:
  const char* signature_;
  mutable std::unique_ptr<Schema> schema_;
};

/// "Linear(int in_features, int out_features, bool bias=True)" with `ModulePtr make(int64, int64, bool)`.
class LayerRecord : public Record {
 public:
  explicit LayerRecord(const char* signature);
  virtual ModulePtr make(Values& arguments) const = 0;
};
template <class F>
class Layer final : public LayerRecord {
 public:
  Layer(const char* signature, F f) : LayerRecord(signature), f_(std::move(f)) {}
  ModulePtr make(Values& arguments) const override { return detail::CallableOf<F>::call(f_, arguments); }
  std::vector<std::pair<Kind, bool>> parameter_kinds() const override { return detail::CallableOf<F>::kinds(); }

 private:
  F f_;
};

/// A layer made of layers: Sequential, Residual, ModuleList.
class Container {
 public:
  using Make = ModulePtr (*)(const std::vector<ModulePtr>& layers);
  Container(const char* name, const char* what, Make make);
  const char* name;
  const char* what;  ///< one line: what its forward does
  Make make;
};

/// "interpolate(Tensor input, int[]? size=None, ...)" with a function of these; several records may share a name (overloads).
class FunctionRecord : public Record {
 public:
  explicit FunctionRecord(const char* signature);
  virtual Value call(Values& arguments) const = 0;
};
template <class F>
class Function final : public FunctionRecord {
 public:
  Function(const char* signature, F f) : FunctionRecord(signature), f_(std::move(f)) {}
  Value call(Values& arguments) const override {
    using Call = detail::CallableOf<F>;
    return to_value(Call::call(f_, arguments));
  }
  std::vector<std::pair<Kind, bool>> parameter_kinds() const override { return detail::CallableOf<F>::kinds(); }

 private:
  F f_;
};

const std::vector<const LayerRecord*>& all_layers();
const std::vector<const Container*>& all_containers();
const std::vector<const FunctionRecord*>& all_functions();
const LayerRecord* find_layer(const std::string& type);
const Container* find_container(const std::string& type);
/// All names a spec's "type" may have, for messages.
std::vector<std::string> layer_names();

/// find_layer that throws Error for an unknown type, with near names.
const LayerRecord& layer_record(const std::string& type);
/// Arguments by name in the order of its signature; throws Error for unknown and missing ones.
Values bind_layer(const LayerRecord& layer, const KeywordArguments& arguments);
/// The layer of that type with these arguments.
ModulePtr make_layer(const std::string& type, const KeywordArguments& arguments);

/// Calls what graphs name: a function record, or the aten op of that name. `method`: the first argument is the object (x.view(2, 3)),
/// whose integers may stand for a list. Throws Error where nothing fits.
Value call_function(const std::string& name, const Values& arguments, const KeywordArguments& keywords, bool method = false);
bool is_function(const std::string& name);

}  // namespace memest::nn
