// The fused inference paths of nn.MultiheadAttention and nn.TransformerEncoderLayer.
#pragma once
#include "ops/op.h"

namespace memest::ops {

using I = std::int64_t;
extern const Op<std::tuple<Tensor, Tensor>(T, T, T, I, I, T, T, T, T, T, bool, bool, std::optional<I>)> native_multi_head_attention;
extern const Op<Tensor(T, I, I, T, T, T, T, bool, bool, double, T, T, T, T, T, T, T, T, T, std::optional<I>)> transformer_encoder_layer_fwd;

}  // namespace memest::ops
