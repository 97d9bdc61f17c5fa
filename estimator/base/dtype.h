// Element types and PyTorch's type promotion (c10/core/ScalarType.h, c10/core/ScalarType.cpp, 2.15).
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace memest {

enum class DType : std::uint8_t {
  uint8,
  int8,
  int16,
  int32,
  int64,
  float16,
  float32,
  float64,
  complex32,
  complex64,
  complex128,
  boolean,
  bfloat16,
  float8_e5m2,
  float8_e4m3fn,
  uint16,
  uint32,
  uint64,
};
inline constexpr int kDTypeCount = int(DType::uint64) + 1;

/// Bytes of one element.
constexpr int item_size(DType t) {
  constexpr int sizes[kDTypeCount] = {1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 2, 1, 1, 2, 4, 8};
  return sizes[int(t)];
}
constexpr bool is_complex(DType t) { return t == DType::complex32 || t == DType::complex64 || t == DType::complex128; }
/// at::isFloatingType: real floating types, float8 included.
constexpr bool is_floating(DType t) {
  return t == DType::float16 || t == DType::float32 || t == DType::float64 || t == DType::bfloat16 || t == DType::float8_e5m2 ||
         t == DType::float8_e4m3fn;
}
/// at::isReducedFloatingType.
constexpr bool is_reduced_floating(DType t) { return is_floating(t) && item_size(t) < 4; }
/// Integers; booleans only where asked.
constexpr bool is_integral(DType t, bool with_bool) { return !is_floating(t) && !is_complex(t) && (with_bool || t != DType::boolean); }
/// Types that can require a gradient.
constexpr bool is_differentiable(DType t) { return is_floating(t) || is_complex(t); }

/// c10::promote_types.
DType promote_types(DType a, DType b);
/// c10::toOpMathType / acc_type on CUDA: float32 for 16-bit types, else the type itself.
constexpr DType op_math_type(DType t) { return t == DType::complex32 ? DType::complex64 : is_reduced_floating(t) ? DType::float32 : t; }
/// The real type of a complex type's parts; other types unchanged.
constexpr DType real_type(DType t) {
  return t == DType::complex32 ? DType::float16 : t == DType::complex64 ? DType::float32 : t == DType::complex128 ? DType::float64 : t;
}
/// The complex type whose parts have this type.
constexpr DType complex_type(DType t) {
  return t == DType::float16 ? DType::complex32 : t == DType::float64 ? DType::complex128 : is_complex(t) ? t : DType::complex64;
}

/// PyTorch's name: "float32", "bool".
std::string_view name_of(DType t);
/// From PyTorch's names and their aliases ("float", "half", "torch.bfloat16", "long", ...).
std::optional<DType> dtype_from(std::string_view name);

}  // namespace memest
