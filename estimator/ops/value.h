// A Python value as graphs and specs hold it: what boxed ops, layers and functions take and return.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "fake/tensor.h"

namespace memest {

struct List;
struct Slice;
struct Dict;
struct None {
  bool operator==(const None&) const = default;
};
struct Ellipsis {
  bool operator==(const Ellipsis&) const = default;
};

/// Lists and dictionaries are shared by their copies, as in Python.
using Value = std::variant<None, Tensor, bool, std::int64_t, double, std::string, DType, std::shared_ptr<List>, std::shared_ptr<Slice>,
                           Ellipsis, std::shared_ptr<Dict>, MemoryFormat>;
using Values = std::vector<Value>;

struct List {
  Values items;
  bool is_tuple = false;
};
struct Slice {
  Value start, stop, step;
};
struct Dict {
  std::vector<std::pair<std::string, Value>> items;  ///< in order of insertion
  Value* find(const std::string& key) {
    for (auto& [name, value] : items)
      if (name == key) return &value;
    return nullptr;
  }
};

/// A Python number as an aten Scalar.
struct Scalar {
  std::variant<std::int64_t, double, bool> value = std::int64_t{0};
  Scalar() = default;
  Scalar(int v) : value(std::int64_t{v}) {}
  Scalar(std::int64_t v) : value(v) {}
  Scalar(double v) : value(v) {}
  Scalar(bool v) : value(v) {}
  double to_double() const {
    return std::visit([](auto v) { return double(v); }, value);
  }
  /// The type of a tensor made of it (c10::Scalar::type, with the default dtype for floats).
  DType dtype() const { return value.index() == 0 ? DType::int64 : value.index() == 1 ? DType::float32 : DType::boolean; }
};

using TensorList = std::vector<Tensor>;

inline bool is_none(const Value& v) { return std::holds_alternative<None>(v); }
inline Value make_list(Values items) { return std::make_shared<List>(List{std::move(items), false}); }
inline Value make_tuple(Values items) { return std::make_shared<List>(List{std::move(items), true}); }
Value list_of(const Dims& dims);
Value list_of(const Tensors& tensors);
/// "Tensor float32[2, 3]", "int 3", "list of 2", for messages.
std::string describe(const Value& v);
/// Each tensor in the value, lists searched.
void collect_tensors(const Value& v, Tensors& into);

// ---- C++ results to values
inline Value to_value(Value v) { return v; }
inline Value to_value(Tensor t) { return t ? Value(std::move(t)) : Value(None{}); }
inline Value to_value(bool v) { return v; }
inline Value to_value(std::int64_t v) { return v; }
inline Value to_value(double v) { return v; }
inline Value to_value(std::string v) { return v; }
inline Value to_value(DType v) { return v; }
inline Value to_value(const Dims& dims) { return list_of(dims); }
inline Value to_value(const Tensors& tensors) { return list_of(tensors); }
template <class... A>
Value to_value(std::tuple<A...> t) {
  return std::apply([](auto&... v) { return make_tuple({to_value(std::move(v))...}); }, t);
}

// ---- values to C++ arguments; the schema match has checked the kinds
template <class A>
struct Unbox;

/// The kind of an argument, as a schema writes it.
enum class Kind {
  tensor,
  tensor_list,
  int_,
  int_list,
  float_,
  float_list,
  bool_,
  bool_list,
  scalar,
  dtype,
  string,
  memory_format,
  any,
  ignored
};

[[noreturn]] void unbox_error(const Value& v, Kind wanted);

template <>
struct Unbox<Tensor> {
  static constexpr Kind kind = Kind::tensor;
  static constexpr bool optional = true;  // an undefined tensor
  static Tensor from(const Value& v) {
    if (is_none(v)) return {};
    if (auto* t = std::get_if<Tensor>(&v)) return *t;
    if (auto* i = std::get_if<std::int64_t>(&v); i) return wrapped_number(DType::int64);
    if (auto* d = std::get_if<double>(&v); d) return wrapped_number(DType::float32);
    if (auto* b = std::get_if<bool>(&v); b) return wrapped_number(DType::boolean);
    unbox_error(v, kind);
  }
};
template <>
struct Unbox<std::int64_t> {
  static constexpr Kind kind = Kind::int_;
  static constexpr bool optional = false;
  static std::int64_t from(const Value& v) {
    if (auto* i = std::get_if<std::int64_t>(&v)) return *i;
    if (auto* b = std::get_if<bool>(&v)) return *b;
    unbox_error(v, kind);
  }
};
template <>
struct Unbox<double> {
  static constexpr Kind kind = Kind::float_;
  static constexpr bool optional = false;
  static double from(const Value& v) {
    if (auto* d = std::get_if<double>(&v)) return *d;
    if (auto* i = std::get_if<std::int64_t>(&v)) return double(*i);
    if (auto* b = std::get_if<bool>(&v)) return *b;
    unbox_error(v, kind);
  }
};
template <>
struct Unbox<bool> {
  static constexpr Kind kind = Kind::bool_;
  static constexpr bool optional = false;
  static bool from(const Value& v) {
    if (auto* b = std::get_if<bool>(&v)) return *b;
    if (auto* i = std::get_if<std::int64_t>(&v)) return *i != 0;
    unbox_error(v, kind);
  }
};
template <>
struct Unbox<std::string> {
  static constexpr Kind kind = Kind::string;
  static constexpr bool optional = false;
  static std::string from(const Value& v) {
    if (auto* s = std::get_if<std::string>(&v)) return *s;
    unbox_error(v, kind);
  }
};
template <>
struct Unbox<DType> {
  static constexpr Kind kind = Kind::dtype;
  static constexpr bool optional = false;
  static DType from(const Value& v) {
    if (auto* d = std::get_if<DType>(&v)) return *d;
    unbox_error(v, kind);
  }
};
template <>
struct Unbox<MemoryFormat> {
  static constexpr Kind kind = Kind::memory_format;
  static constexpr bool optional = false;
  static MemoryFormat from(const Value& v) {
    if (auto* m = std::get_if<MemoryFormat>(&v)) return *m;
    unbox_error(v, kind);
  }
};
template <>
struct Unbox<Scalar> {
  static constexpr Kind kind = Kind::scalar;
  static constexpr bool optional = false;
  static Scalar from(const Value& v) {
    if (auto* i = std::get_if<std::int64_t>(&v)) return *i;
    if (auto* d = std::get_if<double>(&v)) return *d;
    if (auto* b = std::get_if<bool>(&v)) return *b;
    unbox_error(v, kind);
  }
};
template <>
struct Unbox<Dims> {
  static constexpr Kind kind = Kind::int_list;
  static constexpr bool optional = false;
  static Dims from(const Value& v);
};
template <>
struct Unbox<std::vector<double>> {
  static constexpr Kind kind = Kind::float_list;
  static constexpr bool optional = false;
  static std::vector<double> from(const Value& v);
};
template <>
struct Unbox<std::vector<bool>> {
  static constexpr Kind kind = Kind::bool_list;
  static constexpr bool optional = false;
  static std::vector<bool> from(const Value& v);
};
template <>
struct Unbox<Tensors> {
  static constexpr Kind kind = Kind::tensor_list;
  static constexpr bool optional = false;
  static Tensors from(const Value& v);
};
template <>
struct Unbox<Value> {
  static constexpr Kind kind = Kind::any;
  static constexpr bool optional = true;
  static Value from(const Value& v) { return v; }
};
template <class A>
struct Unbox<std::optional<A>> {
  static constexpr Kind kind = Unbox<A>::kind;
  static constexpr bool optional = true;
  static std::optional<A> from(const Value& v) {
    if (is_none(v)) return {};
    return Unbox<A>::from(v);
  }
};

}  // namespace memest
