// Sources: aten/src/ATen/native/transformers/{transformer.cpp,attention.cpp,cuda/attention.cu}, native/cuda/SoftMax.cu masked_softmax_cuda
// of 2.15. No autograd: they run where nothing requires grad.
#include "ops/native_attention.h"

#include <fmt/format.h>

#include "ops/attention.h"
#include "ops/copy.h"
#include "ops/matmul.h"
#include "ops/normalization.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/views.h"
#include "ops/workspace.h"

namespace memest {
namespace {
using I = std::int64_t;
using TwoTensors = std::tuple<Tensor, Tensor>;

/// _masked_softmax; beyond what one block's registers hold it fills a copy of the scores and takes softmax of that.
Tensor masked_softmax(T scores) {
  constexpr I kMostPersistent = 1024;
  Tensor output = empty_like(scores);
  if (scores.size(-1) <= kMostPersistent) return output;
  Tensor masked = empty_like(scores);
  Tensor result = empty_like(scores);
  output.reset();
  return result;
}

/// The projections go straight into scaled_dot_product_attention.
Tensor fused_attention(T query, I heads, T qkv_weight, T qkv_bias, T proj_weight, T proj_bias) {
  const I batch = query.size(0), width = query.size(2);
  const Tensor projected = ops::linear(query, detached(qkv_weight), qkv_bias);
  Tensors parts = ops::chunk(projected, 3, -1);
  for (auto& part : parts) part = ops::transpose(ops::view(part, {batch, -1, heads, width / heads}), 1, 2);
  const Tensor y = ops::scaled_dot_product_attention(parts[0], parts[1], parts[2], Tensor(), 0.0, false, std::nullopt, false);
  const Tensor joined = ops::reshape(ops::transpose(y, 1, 2), {batch, -1, width});
  return ops::linear(joined, proj_weight, proj_bias);
}

TwoTensors native_multi_head_attention(T query, T key, T value, I embed_dim, I num_head, T qkv_weight, T qkv_bias, T proj_weight,
                                       T proj_bias, T mask, bool need_weights, bool average_attn_weights, std::optional<I>) {
  if (!query.is_same(key) || !key.is_same(value)) throw Error("_native_multi_head_attention: only self-attention is modelled");
  if (query.dim() != 3 || query.size(2) != embed_dim || num_head < 1 || embed_dim % num_head != 0)
    throw Error(
        fmt::format("_native_multi_head_attention: {} does not meet embed_dim {} and {} heads", describe(query), embed_dim, num_head));
  NoGrad below;
  const I batch = query.size(0), length = query.size(1), head = embed_dim / num_head, rows = checked_mul(batch, num_head);
  if (!mask && head % 8 == 0 && !need_weights) {
    const Tensor q = ops::transpose(ops::view(query, {batch, length, num_head, head}), 1, 2);
    if (ops::sdp_choice(q, q, q, Tensor(), 0.0, false, false) != ops::SdpBackend::math)
      return {fused_attention(query, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias), Tensor()};
  }
  Tensor projected = ops::linear(query, detached(qkv_weight), Tensor());
  const Tensor q_k_v = empty({3, batch, num_head, length, head}, query.dtype());  // _transform_bias_rescale_qkv
  projected.reset();
  const Dims sizes{rows, length, head};
  const Tensor q = share(q_k_v, sizes, contiguous_strides(sizes), 0);
  Tensor scores = ops::bmm(q, ops::transpose(q, 1, 2));
  if (mask) {
    const Tensor taken = ops::to(mask, DType::boolean);
    scores = masked_softmax(scores);
  }
  { CublasWorkspace workspace(CublasWorkspace::Call::gemm); }  // the weighted values replace the queries
  if (!need_weights) scores.reset();
  Tensor joined = empty({checked_mul(batch, length), embed_dim}, query.dtype());
  const Tensor y = ops::linear(joined, proj_weight, proj_bias);
  joined.reset();
  if (need_weights) scores = ops::view(scores, {batch, num_head, length, length});
  if (need_weights && average_attn_weights) scores = ops::sum_dim(scores, Dims{1}, false, std::nullopt);
  return {ops::view(y, {batch, length, -1}), scores};
}

/// ffn: the activation is an epilogue of the first product.
Tensor feed_forward(T x, T w1, T b1, T w2, T b2) {
  Tensor y = ops::addmm(b1, ops::view(x, {x.size(0) * x.size(1), x.size(2)}), ops::t(w1), 1, 1);
  y = ops::addmm(b2, y, ops::t(w2), 1, 1);
  return ops::view(y, {x.size(0), x.size(1), -1});
}

Tensor transformer_encoder_layer(T src, I embed_dim, I num_heads, T qkv_weight, T qkv_bias, T proj_weight, T proj_bias, bool,
                                 bool norm_first, double eps, T norm_weight_1, T norm_bias_1, T norm_weight_2, T norm_bias_2,
                                 T ffn_weight_1, T ffn_bias_1, T ffn_weight_2, T ffn_bias_2, T mask, std::optional<I> mask_type) {
  NoGrad below;
  if (src.numel() == 0) return ops::clone(src, std::nullopt);
  auto norm1 = [&](T x) { return ops::layer_norm(x, {embed_dim}, norm_weight_1, norm_bias_1, eps, true); };
  auto norm2 = [&](T x) { return ops::layer_norm(x, {embed_dim}, norm_weight_2, norm_bias_2, eps, true); };
  Tensor x = src;
  if (norm_first) x = norm1(x);
  x = std::get<0>(native_multi_head_attention(x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, false,
                                              true, mask_type));
  ops::add_(x, src, 1);
  if (!norm_first) x = norm1(x);
  const Tensor residual = x;
  if (norm_first) x = norm2(x);
  x = feed_forward(x, ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2);
  ops::add_(x, residual, 1);
  if (!norm_first) x = norm2(x);
  return x;
}

}  // namespace

namespace ops {
const Op<TwoTensors(T, T, T, I, I, T, T, T, T, T, bool, bool, std::optional<I>)> native_multi_head_attention{
    {"aten::_native_multi_head_attention(Tensor query, Tensor key, Tensor value, int embed_dim, int num_head, Tensor qkv_weight, Tensor "
     "qkv_bias, Tensor proj_weight, Tensor proj_bias, Tensor? mask=None, bool need_weights=True, bool average_attn_weights=True, int? "
     "mask_type=None) -> (Tensor, Tensor)",
     Autocast::none, "", "native/transformers/cuda/attention.cu native_multi_head_attention_cuda"},
    memest::native_multi_head_attention};
const Op<Tensor(T, I, I, T, T, T, T, bool, bool, double, T, T, T, T, T, T, T, T, T, std::optional<I>)> transformer_encoder_layer_fwd{
    {"aten::_transformer_encoder_layer_fwd(Tensor src, int embed_dim, int num_heads, Tensor qkv_weight, Tensor qkv_bias, Tensor "
     "proj_weight, Tensor proj_bias, bool use_gelu, bool norm_first, float eps, Tensor norm_weight_1, Tensor norm_bias_1, Tensor "
     "norm_weight_2, Tensor norm_bias_2, Tensor ffn_weight_1, Tensor ffn_bias_1, Tensor ffn_weight_2, Tensor ffn_bias_2, Tensor? "
     "mask=None, int? mask_type=None) -> Tensor",
     Autocast::none, "", "native/transformers/transformer.cpp transformer_encoder_layer_forward"},
    transformer_encoder_layer};
}  // namespace ops
}  // namespace memest
