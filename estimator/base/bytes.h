// Sizes in bytes and products of dimensions: signed 64-bit, checked.
#pragma once
#include <cstdint>
#include <limits>

#include "base/error.h"

namespace memest {

using Bytes = std::int64_t;

inline constexpr Bytes kKiB = 1 << 10;
inline constexpr Bytes kMiB = 1 << 20;
inline constexpr Bytes kGiB = Bytes{1} << 30;

/// The product; throws Error where it does not fit 64 bits.
inline std::int64_t checked_mul(std::int64_t a, std::int64_t b) {
  std::int64_t product;
  if (__builtin_mul_overflow(a, b, &product)) throw Error("a size is too large: the product of its dimensions overflows 64 bits");
  return product;
}

/// The sum; throws Error where it does not fit 64 bits.
inline std::int64_t checked_add(std::int64_t a, std::int64_t b) {
  std::int64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) throw Error("a size is too large: a sum overflows 64 bits");
  return sum;
}

/// The smallest multiple of `unit` (> 0) that is at least `value` (>= 0).
inline Bytes round_up(Bytes value, Bytes unit) { return checked_add(value, unit - 1) / unit * unit; }

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace memest
