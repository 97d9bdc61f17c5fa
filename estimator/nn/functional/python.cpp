// What graphs call that is Python's own: operators on numbers and lists, getitem, and the methods of tensors that make no op.
#include <fmt/format.h>

#include <cmath>

#include "nn/layer.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

bool is_tensor(const Value& v) { return std::holds_alternative<Tensor>(v); }
bool is_number(const Value& v) {
  return std::holds_alternative<I>(v) || std::holds_alternative<double>(v) || std::holds_alternative<bool>(v);
}
const Values* items_of(const Value& v) {
  auto* l = std::get_if<std::shared_ptr<List>>(&v);
  return l ? &(*l)->items : nullptr;
}

Error unfit(const char* sign, const Value& a, const Value& b) {
  return Error(fmt::format("unsupported operands for {}: {} and {}", sign, describe(a), describe(b)));
}

I floor_divided(I a, I b) {
  if (b == 0) throw Error("integer division by zero");
  if (b == -1) return checked_mul(a, -1);
  return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

/// a sign b: the aten op where one is a tensor, else Python's arithmetic.
template <class Ints, class Floats>
Value arithmetic(const char* sign, const char* op, const Value& a, const Value& b, Ints ints, Floats floats) {
  if (is_tensor(a) || is_tensor(b)) return call_op(op, {a, b}, {});
  if (!is_number(a) || !is_number(b)) throw unfit(sign, a, b);
  if (std::holds_alternative<double>(a) || std::holds_alternative<double>(b))
    return Value(floats(Unbox<double>::from(a), Unbox<double>::from(b)));
  return Value(ints(Unbox<I>::from(a), Unbox<I>::from(b)));
}

Value plus(const Value& a, const Value& b) {
  if (auto* x = items_of(a); x)
    if (auto* y = items_of(b); y) {
      Values joined = *x;
      joined.insert(joined.end(), y->begin(), y->end());
      return (*std::get_if<std::shared_ptr<List>>(&a))->is_tuple ? make_tuple(std::move(joined)) : make_list(std::move(joined));
    }
  return arithmetic("+", "aten::add", a, b, checked_add, [](double x, double y) { return x + y; });
}
Value minus(const Value& a, const Value& b) {
  if (is_number(a) && is_tensor(b)) return call_op("aten::rsub", {b, a}, {});
  return arithmetic(
      "-", "aten::sub", a, b, [](I x, I y) { return checked_add(x, checked_mul(-1, y)); }, [](double x, double y) { return x - y; });
}
Value times(const Value& a, const Value& b) {
  return arithmetic("*", "aten::mul", a, b, checked_mul, [](double x, double y) { return x * y; });
}
Value true_divided(const Value& a, const Value& b) {
  if (is_number(a) && is_tensor(b)) return call_op("aten::mul", {call_op("aten::reciprocal", {b}, {}), a}, {});
  auto divide = [](double x, double y) {
    if (y == 0) throw Error("division by zero");
    return x / y;
  };
  return arithmetic(
      "/", "aten::div", a, b, [&](I x, I y) { return divide(double(x), double(y)); }, divide);
}

const Function add_op{"add(Any self, Any other)", plus};
const Function iadd_op{"iadd(Any self, Any other)", [](const Value& a, const Value& b) {
                         return is_tensor(a) ? call_op("aten::add_", {a, b}, {}) : plus(a, b);
                       }};
const Function sub_op{"sub(Any self, Any other)", minus};
const Function isub_op{"isub(Any self, Any other)", [](const Value& a, const Value& b) {
                         return is_tensor(a) ? call_op("aten::sub_", {a, b}, {}) : minus(a, b);
                       }};
const Function mul_op{"mul(Any self, Any other)", times};
const Function imul_op{"imul(Any self, Any other)", [](const Value& a, const Value& b) {
                         return is_tensor(a) ? call_op("aten::mul_", {a, b}, {}) : times(a, b);
                       }};
const Function truediv_op{"truediv(Any self, Any other)", true_divided};
const Function itruediv_op{"itruediv(Any self, Any other)", [](const Value& a, const Value& b) {
                             return is_tensor(a) ? call_op("aten::div_", {a, b}, {}) : true_divided(a, b);
                           }};
const Function div_op{"div(Any self, Any other)", true_divided};
const Function floordiv_op{"floordiv(Any self, Any other)", [](const Value& a, const Value& b) {
                             return arithmetic("//", "aten::floor_divide", a, b, floor_divided,
                                               [](double x, double y) { return std::floor(x / y); });
                           }};
const Function mod_op{"mod(Any self, Any other)", [](const Value& a, const Value& b) {
                        return arithmetic(
                            "%", "aten::remainder", a, b, [](I x, I y) { return x - floor_divided(x, y) * y; },
                            [](double x, double y) { return x - std::floor(x / y) * y; });
                      }};
const Function pow_op{"pow(Any self, Any exponent)", [](const Value& a, const Value& b) {
                        return arithmetic(
                            "**", "aten::pow", a, b,
                            [](I x, I y) {
                              I p = 1;
                              for (I i = 0; i < std::min<I>(y, 64); ++i) p = checked_mul(p, x);
                              return p;
                            },
                            [](double x, double y) { return std::pow(x, y); });
                      }};
const Function neg_op{"neg(Any self)", [](const Value& a) -> Value {
                        if (auto* i = std::get_if<I>(&a)) return checked_mul(-1, *i);
                        if (auto* d = std::get_if<double>(&a)) return -*d;
                        return call_op("aten::neg", {a}, {});
                      }};
const Function matmul_op{"matmul(Tensor self, Tensor other)", [](T a, T b) { return ops::matmul(a, b); }};

// torch.einsum(equation, *operands).
Value einsum_of(const std::string& equation, Tensors operands) { return call_op("aten::einsum", {equation, list_of(operands)}, {}); }
const Function einsum1{"einsum(str equation, Tensor a)", [](const std::string& equation, T a) { return einsum_of(equation, {a}); }};
const Function einsum2{"einsum(str equation, Tensor a, Tensor b)", [](const std::string& equation, T a, T b) {
                         return einsum_of(equation, {a, b});
                       }};
const Function einsum3{"einsum(str equation, Tensor a, Tensor b, Tensor c)", [](const std::string& equation, T a, T b, T c) {
                         return einsum_of(equation, {a, b, c});
                       }};

Value size_tuple(T x) {
  Values sizes;
  for (I s : x.sizes()) sizes.emplace_back(s);
  return make_tuple(std::move(sizes));
}

// ---- getitem: Python's on lists, indexing on tensors -----------------------------------------------------------------------
std::optional<I> bound(const Value& v) { return is_none(v) ? std::nullopt : std::optional<I>(Unbox<I>::from(v)); }

Value list_item(const List& list, const Value& index) {
  const I n = I(list.items.size());
  if (auto* slice = std::get_if<std::shared_ptr<Slice>>(&index)) {
    const I step = bound((*slice)->step).value_or(1);
    if (step != 1) throw Error("a list is sliced with steps of 1 only");
    auto clamped = [n](I v) { return std::clamp<I>(v < 0 ? v + n : v, 0, n); };
    const I from = clamped(bound((*slice)->start).value_or(0)), to = std::max(from, clamped(bound((*slice)->stop).value_or(n)));
    Values part(list.items.begin() + from, list.items.begin() + to);
    return list.is_tuple ? make_tuple(std::move(part)) : make_list(std::move(part));
  }
  const I i = Unbox<I>::from(index);
  if (i < -n || i >= n) throw Error(fmt::format("index {} is out of range for {} values", i, n));
  return list.items[std::size_t(i < 0 ? i + n : i)];
}

/// Tensor indexing (torch/csrc/autograd/python_variable_indexing.cpp): integers, slices, None and ... make a view, then tensors pick from
/// it.
struct Indexed {
  Tensor view;
  Values tensors;
  bool any = false;  ///< a tensor among the indices
};
Indexed indexed(const Tensor& x, const Value& index) {
  Values parts{index};
  if (auto* list = std::get_if<std::shared_ptr<List>>(&index); list && (*list)->is_tuple) parts = (*list)->items;
  int consumed = 0;
  for (auto& p : parts)
    if (!is_none(p) && !std::holds_alternative<Ellipsis>(p) && !std::holds_alternative<bool>(p))
      consumed += is_tensor(p) && std::get<Tensor>(p).dtype() == DType::boolean ? std::max(std::get<Tensor>(p).dim(), 1) : 1;
  if (consumed > x.dim()) throw Error(fmt::format("too many indices for tensor of dimension {}", x.dim()));
  const bool full_slice_node = runtime().settings.torch.full_slice_records_node();
  Indexed found{x, {}};
  Tensor& result = found.view;
  Values& tensors = found.tensors;
  int dim = 0;
  for (auto& p : parts) {
    if (auto* i = std::get_if<I>(&p)) {
      result = ops::select(std::move(result), dim, *i);
    } else if (auto* slice = std::get_if<std::shared_ptr<Slice>>(&p)) {
      auto start = bound((*slice)->start), stop = bound((*slice)->stop);
      const I step = bound((*slice)->step).value_or(1);
      const bool whole = (!start || *start == 0) && !stop && step == 1;
      if (!whole || full_slice_node) result = ops::slice(std::move(result), dim, start, stop, step);
      ++dim;
    } else if (is_none(p)) {
      result = ops::unsqueeze(std::move(result), dim++);
    } else if (std::holds_alternative<Ellipsis>(p)) {
      dim += x.dim() - consumed;
    } else if (is_tensor(p) || items_of(p)) {
      Value t = p;
      if (auto* items = items_of(p)) t = host_tensor({I(items->size())}, DType::int64);
      tensors.resize(std::size_t(dim), None{});
      tensors.push_back(t);
      found.any = true;
      dim += std::get<Tensor>(t).dtype() == DType::boolean ? std::max(std::get<Tensor>(t).dim(), 1) : 1;
    } else {
      throw Error("a tensor is indexed with integers, slices, None, ... and tensors, found " + describe(p));
    }
  }
  return found;
}
Value tensor_item(const Tensor& x, const Value& index) {
  Indexed found = indexed(x, index);
  if (found.any) return call_op("aten::index", {found.view, make_list(std::move(found.tensors))}, {});
  // x[...] alone is an alias, so that the result is another tensor
  if (found.view.is_same(x)) return call_op("aten::alias", {x}, {});
  return found.view;
}
/// x[index] = value: numbers are tensors on the host; copy_to fills with them, or copies what is broadcast. One list of positions and a
/// number are index_fill_.
void set_tensor_item(const Tensor& x, const Value& index, const Value& value) {
  const Tensor source = is_tensor(value) ? std::get<Tensor>(value) : host_tensor(Dims{}, x.dtype());
  Indexed found = indexed(x, index);
  const auto one = std::find_if(found.tensors.begin(), found.tensors.end(), [](auto& v) { return !is_none(v); });
  const bool lone = found.any && std::count_if(found.tensors.begin(), found.tensors.end(), is_none) + 1 == I(found.tensors.size());
  if (lone && !is_tensor(value) && std::get<Tensor>(*one).dtype() == DType::int64 && std::get<Tensor>(*one).dim() == 1) {
    call_op("aten::index_fill_", {found.view, I(one - found.tensors.begin()), *one, 0.0}, {});
  } else if (found.any) {
    call_op("aten::index_put_", {found.view, make_list(std::move(found.tensors)), source}, {});
  } else if (source.dim() == 0 && source.on_host()) {
    call_op("aten::fill_", {found.view, source}, {});
  } else {
    Dims sizes = source.sizes();  // slicePrefix1sSize
    while (!sizes.empty() && sizes[0] == 1) sizes.erase(0);
    const bool same = found.view.sizes() == source.sizes();
    ops::copy_(found.view, same ? source : ops::expand(ops::view(source, sizes), found.view.sizes(), false), false);
  }
}
const Function setitem{"setitem(Any self, Any index, Any value)", [](const Value& self, const Value& index, const Value& value) -> Value {
                         if (is_tensor(self)) {
                           set_tensor_item(std::get<Tensor>(self), index, value);
                         } else if (auto* list = std::get_if<std::shared_ptr<List>>(&self)) {
                           const I n = I((*list)->items.size()), i = Unbox<I>::from(index);
                           if (i < -n || i >= n) throw Error(fmt::format("index {} is out of range for {} values", i, n));
                           (*list)->items[std::size_t(i < 0 ? i + n : i)] = value;
                         } else {
                           throw Error("setitem of " + describe(self));
                         }
                         return None{};
                       }};

const Function getitem{"getitem(Any self, Any index)", [](const Value& self, const Value& index) -> Value {
                         if (is_tensor(self)) return tensor_item(std::get<Tensor>(self), index);
                         if (auto* list = std::get_if<std::shared_ptr<List>>(&self)) return list_item(**list, index);
                         if (auto* dict = std::get_if<std::shared_ptr<Dict>>(&self)) {
                           if (auto* v = (*dict)->find(Unbox<std::string>::from(index))) return *v;
                           throw Error("no item " + describe(index));
                         }
                         throw Error("getitem of " + describe(self));
                       }};
const Function getattr{"getattr(Any self, str name)", [](const Value& self, const std::string& name) -> Value {
                         if (is_tensor(self)) {
                           const Tensor& x = std::get<Tensor>(self);
                           if (name == "shape") return size_tuple(x);
                           if (name == "dtype") return x.dtype();
                           if (name == "ndim") return I{x.dim()};
                           if (name == "device" || name == "layout") return std::string("cuda");
                           if (name == "requires_grad") return x.requires_grad();
                           if (name == "T") return Value(ops::t(x));
                           if (name == "mT") return Value(ops::transpose(x, -2, -1));
                           if (name == "is_cuda") return true;
                         }
                         throw Error("getattr: no attribute '" + name + "' of " + describe(self));
                       }};

// Rebinding a name to None is how a graph writes Python's del, and the end of a helper's locals.
const Function none{"none()", []() -> Value { return None{}; }};

// ---- methods ---------------------------------------------------------------------------------------------------------------
const Function size{"size(Tensor self, int? dim=None)",
                    [](T x, std::optional<I> dim) -> Value { return dim ? Value(x.size(*dim)) : size_tuple(x); }};
const Function dim{"dim(Tensor self)", [](T x) { return I{x.dim()}; }};
const Function numel{"numel(Tensor self)", [](T x) { return I{x.numel()}; }};
#define MEMEST_CAST(NAME, TYPE) const Function NAME##_method{#NAME "(Tensor self)", [](T x) { return ops::to(x, DType::TYPE); }};
MEMEST_CAST(float, float32)
MEMEST_CAST(half, float16)
MEMEST_CAST(bfloat16, bfloat16)
MEMEST_CAST(double, float64)
MEMEST_CAST(long, int64)
MEMEST_CAST(int, int32)
MEMEST_CAST(bool, boolean)
#undef MEMEST_CAST
const Function type{"type(Tensor self, ScalarType dtype)", [](T x, DType dtype) { return ops::to(x, dtype); }};
const Function type_as{"type_as(Tensor self, Tensor other)", [](T x, T other) { return ops::to(x, other.dtype()); }};

}  // namespace
}  // namespace memest::nn
