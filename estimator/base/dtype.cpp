#include "base/dtype.h"

#include <array>
#include <utility>

namespace memest {
namespace {
constexpr std::array<std::string_view, kDTypeCount> kNames{"uint8",    "int8",        "int16",         "int32",     "int64",      "float16",
                                                           "float32",  "float64",     "complex32",     "complex64", "complex128", "bool",
                                                           "bfloat16", "float8_e5m2", "float8_e4m3fn", "uint16",    "uint32",     "uint64"};
constexpr std::pair<std::string_view, DType> kAliases[] = {
    {"byte", DType::uint8},       {"char", DType::int8},          {"short", DType::int16},
    {"int", DType::int32},        {"long", DType::int64},         {"half", DType::float16},
    {"float", DType::float32},    {"double", DType::float64},     {"chalf", DType::complex32},
    {"cfloat", DType::complex64}, {"cdouble", DType::complex128}, {"fp16", DType::float16},
    {"fp32", DType::float32},     {"bf16", DType::bfloat16},      {"float8_e4m3", DType::float8_e4m3fn}};

int integer_rank(DType t) {  // by width; unsigned 8 sits between bool and the signed types
  switch (t) {
    case DType::boolean: return 0;
    case DType::uint8: return 1;
    case DType::int8: return 1;
    case DType::int16:
    case DType::uint16: return 2;
    case DType::int32:
    case DType::uint32: return 3;
    default: return 4;
  }
}
}  // namespace

DType promote_types(DType a, DType b) {
  if (a == b) return a;
  if (is_complex(a) || is_complex(b)) {
    DType real = promote_types(real_type(a), real_type(b));
    if (is_complex(a) && !is_complex(b) && !is_floating(b)) return a;
    if (is_complex(b) && !is_complex(a) && !is_floating(a)) return b;
    return real == DType::bfloat16 ? DType::complex64 : complex_type(real);
  }
  const bool fa = is_floating(a), fb = is_floating(b);
  if (fa != fb) return fa ? a : b;
  if (fa) {
    if (item_size(a) != item_size(b)) return item_size(a) > item_size(b) ? a : b;
    return DType::float32;  // float16 with bfloat16, the float8 types with one another
  }
  const int ra = integer_rank(a), rb = integer_rank(b);
  if (ra != rb) return ra > rb ? a : b;
  return ra == 1 ? DType::int16 : a;  // uint8 with int8
}

std::string_view name_of(DType t) { return kNames[std::size_t(t)]; }

std::optional<DType> dtype_from(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  for (int i = 0; i < kDTypeCount; ++i)
    if (kNames[std::size_t(i)] == name) return DType(i);
  for (auto& [alias, type] : kAliases)
    if (alias == name) return type;
  return {};
}

}  // namespace memest
