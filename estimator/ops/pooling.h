// Pooling.
#pragma once
#include "ops/op.h"

namespace memest::ops {

extern const Op<Tensor(T, const Dims&, const Dims&, const Dims&, const Dims&, bool)> max_pool2d;
extern const Op<Tensor(T, const Dims&)> adaptive_avg_pool2d;

/// The pooling op of that many spatial dimensions, as torch.nn.functional calls it; the result and, of the max pools, the indices.
std::tuple<Tensor, Tensor> max_pool(int spatial, T self, const Dims& kernel_size, const Dims& stride, const Dims& padding,
                                    const Dims& dilation, bool ceil_mode);
Tensor avg_pool(int spatial, T self, const Dims& kernel_size, const Dims& stride, const Dims& padding, bool ceil_mode,
                bool count_include_pad);
Tensor adaptive_avg_pool(int spatial, T self, const Dims& output_size);
std::tuple<Tensor, Tensor> adaptive_max_pool(int spatial, T self, const Dims& output_size);
std::tuple<Tensor, Tensor> fractional_max_pool(int spatial, T self, const Dims& kernel_size, const Dims& output_size, T random_samples);

}  // namespace memest::ops
