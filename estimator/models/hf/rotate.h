// The forms of apply_rotary_pos_emb beside llama's (attention.h).
#pragma once
#include "models/hf/attention.h"

namespace memest::hf {

/// x[..., :count]
inline X leading(const X& x, I count) { return x.slice(-1, std::nullopt, count); }

/// rotate_half over neighbours: torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2) (glm, cohere).
X rotate_half_interleaved(X x);
/// llama's with the results cast to the types of q and k (olmo, ernie4_5).
Pair apply_rotary_cast(X q, X k, X cos, X sin);
/// Half of each table, repeated by twos; the first part of each head rotated, the rest passed on (glm).
Pair apply_rotary_glm(X q, X k, X cos, X sin);
/// glm's on the whole head (helium).
Pair apply_rotary_helium(X q, X k, X cos, X sin);
/// In fp32, interleaved, cast back (cohere).
Pair apply_rotary_cohere(X q, X k, X cos, X sin);
/// The first cos.shape[-1] of each head, joined with the rest inside the function: phi3's, and nemotron's where each sum has a name.
Pair apply_rotary_phi3(X q, X k, X cos, X sin);
/// gpt_neox's: the sums have names, which the joined tensors take over.
Pair apply_rotary_named(X q, X k, X cos, X sin);
Pair apply_rotary_nemotron(X q, X k, X cos, X sin);
/// get_llama_4_attn_scale of ministral3 and mistral4: [batch, 1, length, 1], in fp32.
X get_llama_4_attn_scale(const X& positions_ids);

}  // namespace memest::hf
