// An op is one record: schema, autocast policy, what it saves, where the facts stand, and the function that does it.
#pragma once
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "fake/autograd.h"
#include "fake/runtime.h"
#include "ops/schema.h"
#include "ops/value.h"

namespace memest {

/// The lists of aten/src/ATen/autocast_mode.h.
enum class Autocast {
  none,            ///< runs in its inputs' type
  lower,           ///< casts to the autocast type (lower_precision_fp)
  fp32,            ///< casts to float32
  fp32_set_dtype,  ///< gets dtype=float32 where none was given (fp32_set_opt_dtype)
  promote,         ///< casts to the widest type among its inputs
  banned,          ///< refuses to run under autocast
};
std::string_view name_of(Autocast policy);

struct OpInfo {
  const char* schema;
  Autocast autocast = Autocast::none;
  const char* saves = "";   ///< names of the saved tensors, as derivatives.yaml has them
  const char* source = "";  ///< files of PyTorch where the facts stand
};

/// The record without its types: what lists, graphs and `memest explain op` see.
class OpRecord {
 public:
  OpRecord(const OpInfo& op_info);
  virtual ~OpRecord() = default;
  OpRecord(const OpRecord&) = delete;
  const OpInfo info;
  const char* name() const { return name_.c_str(); }  ///< "aten::mm"
  const Schema& schema() const;                       ///< parsed at first use
  /// Calls it with values in the schema's order (ignored arguments left out).
  virtual Value call(Values& arguments) const = 0;
  /// Kinds of the C++ parameters, for the test that holds them against the schema.
  virtual std::vector<std::pair<Kind, bool>> parameter_kinds() const = 0;

 private:
  std::string name_;
  mutable std::unique_ptr<Schema> schema_;
};

/// Sees the calls of ops that no other op makes (ops/recorder.h).
struct CallObserver {
  virtual ~CallObserver() = default;
  virtual bool begin() = 0;  ///< false: a call within another op's
  virtual void arguments(const OpRecord& op, const Values& values) = 0;
  virtual void end(const Value& result) = 0;  ///< None for a call within another op's
  virtual void autocast_ended() = 0;          ///< the outermost context: its cache goes
};

/// All records, by name.
const std::vector<const OpRecord*>& all_ops();
/// The overloads of "aten::add"; empty where there is none.
const std::vector<const OpRecord*>& find_ops(const std::string& name);
/// The overload "aten::add.Tensor"; null where there is none.
const OpRecord* find_op(const std::string& full_name);
/// Calls the overload that the values fit; throws Error where none does. `found` false: there is no such op.
Value call_op(const std::string& name, const Values& positional, const KeywordArguments& keywords);

// ---- autocast --------------------------------------------------------------------------------------------------------
/// cached_cast (aten/src/ATen/autocast_mode.cpp): casts floating tensors, through the cache for leaves that require grad.
Tensor cached_cast(T x, DType to);
namespace detail {
inline Tensor autocast_argument(T x, DType to) { return cached_cast(x, to); }
Tensors autocast_argument(const Tensors& list, DType to);
template <class V>
V autocast_argument(const V& v, DType) {
  return v;
}
void widest(T x, DType& type);
void widest(const Tensors& list, DType& type);
template <class V>
void widest(const V&, DType&) {}
/// Whether the first argument is a floating tensor below float64.
inline bool eligible(T x) { return x && is_floating(x.dtype()) && x.dtype() != DType::float64 && !x.on_host(); }
template <class V>
bool eligible(const V&) {
  return false;
}
inline void set_dtype(std::optional<DType>& d) {
  if (!d) d = DType::float32;
}
template <class V>
void set_dtype(V&) {}

// C++ arguments to values, for observers.
template <class V>
Value boxed(const V& v) {
  return to_value(v);
}
inline Value boxed(const Scalar& s) {
  return std::visit([](auto v) { return Value(v); }, s.value);
}
template <class V>
Value boxed(const std::vector<V>& list) {
  Values items;
  for (const auto& item : list) items.push_back(boxed(V(item)));
  return make_list(std::move(items));
}
template <class V>
Value boxed(const std::optional<V>& v) {
  return v ? boxed(*v) : Value(None{});
}

inline void drop(Tensor& x) { x.reset(); }
inline void drop(Tensors& list) { list.clear(); }
template <class V>
void drop(V&) {}
}  // namespace detail

template <class Signature>
class Op;

/// Takes arguments by value and drops them when it returns, as Python does; applies the autocast policy; names the op in the trace.
template <class R, class... P>
class Op<R(P...)> final : public OpRecord {
 public:
  using Implementation = R (*)(P...);
  Op(const OpInfo& op_info, Implementation implementation) : OpRecord(op_info), implementation_(implementation), special_(&Op::special) {}

  R operator()(std::decay_t<P>... a) const {
    Runtime& rt = runtime();
    Scoped<const char*> scope(rt.op, name());
    if (rt.calls || (rt.autocast.enabled && info.autocast != Autocast::none)) return special_(*this, rt, a...);
    R result = implementation_(a...);
    (detail::drop(a), ...);
    return result;
  }

  Value call(Values& arguments) const override {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      std::tuple<std::decay_t<P>...> unboxed{Unbox<std::decay_t<P>>::from(arguments[I])...};
      arguments.clear();
      return std::apply([&](auto&... a) { return to_value((*this)(std::move(a)...)); }, unboxed);
    }
    (std::index_sequence_for<P...>{});
  }
  std::vector<std::pair<Kind, bool>> parameter_kinds() const override {
    return {{Unbox<std::decay_t<P>>::kind, Unbox<std::decay_t<P>>::optional}...};
  }

 private:
  /// Under autocast or before an observer. Called through special_, so that only the file that makes the op compiles it.
  static R special(const Op& op, Runtime& rt, std::decay_t<P>&... a) {
    const bool watched = rt.calls != nullptr;
    const bool outermost = watched && rt.calls->begin();
    if (outermost) rt.calls->arguments(op, Values{detail::boxed(a)...});
    R result = rt.autocast.enabled && op.info.autocast != Autocast::none ? op.call_autocast(rt, a...) : op.implementation_(a...);
    (detail::drop(a), ...);
    if (watched) rt.calls->end(outermost ? to_value(result) : Value(None{}));
    return result;
  }
  R call_autocast(Runtime& rt, std::decay_t<P>&... a) const {
    DType to = info.autocast == Autocast::lower ? rt.autocast.dtype : DType::float32;
    if (info.autocast == Autocast::banned)
      throw Error(std::string(name()) + " is unsafe under autocast", "use the variant that takes logits");
    auto in = std::tie(a...);
    if (info.autocast == Autocast::fp32_set_dtype) {
      Scoped<bool> off(rt.autocast.enabled, false);
      if (detail::eligible(std::get<0>(in))) (detail::set_dtype(a), ...);
      return implementation_(a...);
    }
    if (info.autocast == Autocast::promote) {
      to = rt.autocast.dtype;
      (detail::widest(a, to), ...);
    }
    std::tuple<std::decay_t<P>...> cast;
    constexpr auto count = sizeof...(P);
    [&]<std::size_t... I>(std::index_sequence<I...>) {  // right to left, as GCC evaluates the arguments of PyTorch's call
      ((std::get<count - 1 - I>(cast) = detail::autocast_argument(std::get<count - 1 - I>(in), to)), ...);
    }
    (std::index_sequence_for<P...>{});
    Scoped<bool> off(rt.autocast.enabled, false);
    return std::apply([&](auto&... v) { return implementation_(v...); }, cast);
  }
  Implementation implementation_;
  R (*special_)(const Op&, Runtime&, std::decay_t<P>&...);
};
template <class R, class... P>
Op(OpInfo, R (*)(P...)) -> Op<R(P...)>;

/// torch.autocast("cuda", dtype): casts by policy inside; the cache goes when the outermost context exits.
class AutocastContext {
 public:
  AutocastContext(bool enabled, DType dtype);
  ~AutocastContext();
  AutocastContext(const AutocastContext&) = delete;
  AutocastContext& operator=(const AutocastContext&) = delete;

 private:
  bool enabled_;
  DType dtype_;
};

}  // namespace memest
