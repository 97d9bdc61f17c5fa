// Dropout and attention.
#pragma once
#include <tuple>

#include "ops/op.h"

namespace memest::ops {

extern const Op<Tensor(T, double, bool)> dropout;
extern const Op<Tensor(T, T, T, T, double, bool, std::optional<double>, bool)> scaled_dot_product_attention;

/// The kernels that scaled_dot_product_attention chooses from (native/transformers/cuda/sdp_utils.cpp).
enum class SdpBackend { flash, efficient, cudnn, math };
/// The choice for these tensors on the run's device, among the backends that are enabled.
SdpBackend sdp_choice(T query, T key, T value, T attn_mask, double dropout_p, bool is_causal, bool enable_gqa);

}  // namespace memest::ops
