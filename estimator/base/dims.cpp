#include "base/dims.h"

namespace memest {

void Dims::grow_on_heap(int count) {
  if (heap_) {
    heap_->resize(std::size_t(std::max(count, kInPlace)));
  } else {
    heap_ = std::make_unique<std::vector<std::int64_t>>(in_place_, in_place_ + count_);
    heap_->resize(std::size_t(count));
  }
}

std::string to_string(const Dims& dims) {
  std::string text = "[";
  for (int i = 0; i < dims.size(); ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

Dims contiguous_strides(const Dims& sizes) {
  Dims strides = Dims::filled(sizes.size(), 1);
  std::int64_t step = 1;
  for (int i = sizes.size(); i-- > 0;) {
    strides[i] = step;
    step = checked_mul(step, std::max<std::int64_t>(sizes[i], 1));
  }
  return strides;
}

Dims channels_last_strides(const Dims& sizes) {
  Dims strides = Dims::filled(sizes.size(), 1);
  std::int64_t step = std::max<std::int64_t>(sizes[1], 1);
  for (int i = sizes.size(); i-- > 2;) {
    strides[i] = step;
    step = checked_mul(step, std::max<std::int64_t>(sizes[i], 1));
  }
  strides[0] = step;
  return strides;
}

}  // namespace memest
