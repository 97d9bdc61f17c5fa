#include "models/hf/rotate.h"

namespace memest::hf {
namespace {

X repeat_interleave(X x, I repeats, I dim) { return aten("repeat_interleave", {Tensor(std::move(x)), repeats, dim}); }
X rotated(const X& x, const X& cos, const X& sin) { return x.mul(cos).add(rotate_half(x).mul(sin)); }
X rotated_interleaved(const X& x, const X& cos, const X& sin) { return x.mul(cos).add(rotate_half_interleaved(x).mul(sin)); }
X joined(X first, X rest) {
  std::vector<X> parts;
  parts.push_back(std::move(first));
  parts.push_back(std::move(rest));
  return cat(std::move(parts), -1);
}

}  // namespace

X rotate_half_interleaved(X x) {
  X x1 = x.slice(-1, 0, std::nullopt, 2);
  X x2 = x.slice(-1, 1, std::nullopt, 2);
  std::vector<X> parts;
  parts.push_back(x2.neg());
  parts.push_back(x1);
  X stacked = stack(std::move(parts), -1);
  return std::move(stacked).flatten(-2);
}

Pair apply_rotary_cast(X q, X k, X cos, X sin) {
  const DType q_type = q.dtype(), k_type = k.dtype();
  cos = cos.unsqueeze(1);
  sin = sin.unsqueeze(1);
  X q_embed = rotated(q, cos, sin);
  X k_embed = rotated(k, cos, sin);
  X q_cast = q_embed.to(q_type);
  X k_cast = k_embed.to(k_type);
  return leave(Pair{q_cast, k_cast}, cos, sin, q_embed, k_embed);
}

Pair apply_rotary_glm(X q, X k, X cos, X sin) {
  cos = cos.unsqueeze(1);
  sin = sin.unsqueeze(1);
  cos = repeat_interleave(cos.slice(-1, std::nullopt, cos.size(-1) / 2), 2, -1);
  sin = repeat_interleave(sin.slice(-1, std::nullopt, sin.size(-1) / 2), 2, -1);
  const I rotary_dim = cos.size(-1);
  X q_rot = leading(q, rotary_dim), q_pass = q.slice(-1, rotary_dim, std::nullopt);
  X k_rot = leading(k, rotary_dim), k_pass = k.slice(-1, rotary_dim, std::nullopt);
  X q_embed = rotated_interleaved(q_rot, cos, sin);
  X k_embed = rotated_interleaved(k_rot, cos, sin);
  q_embed = joined(q_embed, q_pass);
  k_embed = joined(k_embed, k_pass);
  return {q_embed, k_embed};
}

Pair apply_rotary_helium(X q, X k, X cos, X sin) {
  cos = cos.unsqueeze(1);
  sin = sin.unsqueeze(1);
  cos = repeat_interleave(cos.slice(-1, std::nullopt, cos.size(-1) / 2), 2, -1);
  sin = repeat_interleave(sin.slice(-1, std::nullopt, sin.size(-1) / 2), 2, -1);
  X q_embed = rotated_interleaved(q, cos, sin);
  X k_embed = rotated_interleaved(k, cos, sin);
  return {q_embed, k_embed};
}

Pair apply_rotary_cohere(X q, X k, X cos, X sin) {
  const DType dtype = q.dtype();
  q = q.to_float();
  k = k.to_float();
  cos = cos.unsqueeze(1);
  sin = sin.unsqueeze(1);
  X q_embed = rotated_interleaved(q, cos, sin);
  X k_embed = rotated_interleaved(k, cos, sin);
  X q_cast = q_embed.to(dtype);
  X k_cast = k_embed.to(dtype);
  return leave(Pair{q_cast, k_cast}, q, k, cos, sin, q_embed, k_embed);
}

Pair apply_rotary_phi3(X q, X k, X cos, X sin) {
  cos = cos.unsqueeze(1);
  sin = sin.unsqueeze(1);
  const I rotary_dim = cos.size(-1);
  X q_rot = leading(q, rotary_dim), q_pass = q.slice(-1, rotary_dim, std::nullopt);
  X k_rot = leading(k, rotary_dim), k_pass = k.slice(-1, rotary_dim, std::nullopt);
  X q_embed = joined(rotated(q_rot, cos, sin), q_pass);
  X k_embed = joined(rotated(k_rot, cos, sin), k_pass);
  return {q_embed, k_embed};
}

Pair apply_rotary_named(X q, X k, X cos, X sin) {
  cos = cos.unsqueeze(1);
  sin = sin.unsqueeze(1);
  const I rotary_dim = cos.size(-1);
  X q_rot = leading(q, rotary_dim), q_pass = q.slice(-1, rotary_dim, std::nullopt);
  X k_rot = leading(k, rotary_dim), k_pass = k.slice(-1, rotary_dim, std::nullopt);
  X q_embed = rotated(q_rot, cos, sin);
  X k_embed = rotated(k_rot, cos, sin);
  q_embed = joined(q_embed, q_pass);
  k_embed = joined(k_embed, k_pass);
  return {q_embed, k_embed};
}

Pair apply_rotary_nemotron(X q, X k, X cos, X sin) {
  cos = cos.unsqueeze(1);
  sin = sin.unsqueeze(1);
  const I rot_dim = cos.size(-1);
  X q_rot = leading(q, rot_dim), q_pass = q.slice(-1, rot_dim, std::nullopt);
  q = std::move(q_rot);
  X k_rot = leading(k, rot_dim), k_pass = k.slice(-1, rot_dim, std::nullopt);
  k = std::move(k_rot);
  X q_embed = rotated(q, cos, sin);
  X k_embed = rotated(k, cos, sin);
  X q_joined = joined(q_embed, q_pass);
  X k_joined = joined(k_embed, k_pass);
  return {q_joined, k_joined};
}

X get_llama_4_attn_scale(const X& positions_ids) {
  X floored = aten("floor", {Tensor(positions_ids.div(1.0))});
  floored = std::move(floored).add(1.0);
  X scaling = aten("log", {Tensor(std::move(floored))});
  scaling = std::move(scaling).mul(1.0).add(1.0);
  return scaling.unsqueeze(1).unsqueeze(3);
}

}  // namespace memest::hf
