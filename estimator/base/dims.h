// Sizes or strides of a tensor: a short list of 64-bit numbers that lives in place up to six of them.
#pragma once
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace memest {

class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<std::int64_t> values) : Dims(values.begin(), int(values.size())) {}
  Dims(const std::int64_t* values, int count) {
    grow(count);
    std::copy_n(values, count, data());
  }
  explicit Dims(const std::vector<std::int64_t>& values) : Dims(values.data(), int(values.size())) {}
  Dims(const Dims& other) : Dims(other.data(), other.count_) {}
  Dims(Dims&& other) noexcept { *this = std::move(other); }
  Dims& operator=(const Dims& other) {
    if (this != &other) {
      grow(other.count_);
      std::copy_n(other.data(), other.count_, data());
    }
    return *this;
  }
  Dims& operator=(Dims&& other) noexcept {
    std::copy_n(other.in_place_, kInPlace, in_place_);
    heap_ = std::move(other.heap_);
    count_ = std::exchange(other.count_, 0);
    return *this;
  }

  static Dims filled(int count, std::int64_t value) {
    Dims d;
    d.grow(count);
    std::fill_n(d.data(), count, value);
    return d;
  }

  int size() const { return count_; }
  bool empty() const { return count_ == 0; }
  /// Negative positions count from the end.
  std::int64_t& operator[](int i) { return data()[i < 0 ? i + count_ : i]; }
  std::int64_t operator[](int i) const { return data()[i < 0 ? i + count_ : i]; }
  const std::int64_t* begin() const { return data(); }
  const std::int64_t* end() const { return data() + count_; }
  std::int64_t* begin() { return data(); }
  std::int64_t* end() { return data() + count_; }
  std::int64_t back() const { return data()[count_ - 1]; }
  void push_back(std::int64_t value) { insert(count_, value); }
  void insert(int position, std::int64_t value) {
    grow(count_ + 1);
    std::copy_backward(data() + position, data() + count_ - 1, data() + count_);
    data()[position] = value;
  }
  void erase(int position) {
    std::copy(data() + position + 1, data() + count_, data() + position);
    --count_;
  }
  /// The part [from, to).
  Dims slice(int from, int to) const { return Dims(data() + from, std::max(0, to - from)); }
  Dims operator+(const Dims& tail) const {
    Dims all = *this;
    for (std::int64_t v : tail) all.push_back(v);
    return all;
  }

  /// The product, checked; 1 for none.
  std::int64_t numel() const {
    std::int64_t product = 1;
    for (std::int64_t v : *this) product = checked_mul(product, v);
    return product;
  }
  bool operator==(const Dims& other) const { return count_ == other.count_ && std::equal(begin(), end(), other.begin()); }

 private:
  static constexpr int kInPlace = 6;
  std::int64_t* data() { return heap_ ? heap_->data() : in_place_; }
  const std::int64_t* data() const { return heap_ ? heap_->data() : in_place_; }
  void grow(int count) {
    if (heap_ || count > kInPlace) grow_on_heap(count);
    count_ = count;
  }
  void grow_on_heap(int count);

  std::int64_t in_place_[kInPlace] = {};
  int count_ = 0;
  std::unique_ptr<std::vector<std::int64_t>> heap_;
};

/// "[2, 3, 4]".
std::string to_string(const Dims& dims);
/// Row-major strides; a dimension of size 0 counts as 1, as in PyTorch.
Dims contiguous_strides(const Dims& sizes);
/// Strides of NHWC (4-d) or NDHWC (5-d) storage.
Dims channels_last_strides(const Dims& sizes);

}  // namespace memest
