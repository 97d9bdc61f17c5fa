// What differs between PyTorch releases, as predicates: the one place that knows release numbers.
// Measured facts: each release's CUDA wheel, allocator events compared one by one.
#pragma once
#include <compare>
#include <optional>
#include <string>
#include <string_view>

namespace memest {

struct TorchVersion {
  int major = 2, minor = 15;

  auto operator<=>(const TorchVersion&) const = default;
  bool at_least(int minor_release) const { return *this >= TorchVersion{2, minor_release}; }

  /// "2.15", "2.9.1", "2.6.0+cu124"; nothing where the text is no version or memest does not model it (2.4 to 2.15).
  static std::optional<TorchVersion> parse(std::string_view text);
  static constexpr TorchVersion oldest() { return {2, 4}; }
  static constexpr TorchVersion newest() { return {2, 15}; }
  std::string name() const { return std::to_string(major) + "." + std::to_string(minor); }

  // ---- matrix products (aten/src/ATen/cuda/CublasHandlePool.cpp, CUDABlas.cpp)
  /// Each op takes the cuBLAS workspace after its output and gives it back; before, each thread kept its first.
  bool cublas_workspace_per_call() const { return at_least(15); }
  /// The cuBLASLt scratch of an addmm with a 1-D bias.
  enum class LtScratch { per_call, kept, shared };
  LtScratch lt_scratch() const {
    if (at_least(15)) return LtScratch::per_call;
    if (at_least(12)) return LtScratch::shared;  // uses the cuBLAS workspace
    return at_least(9) ? LtScratch::kept : LtScratch::per_call;
  }
  /// Other biases than 1-D ones go through cuBLASLt too: [1, n], and whole matrices of half types.
  bool lt_takes_matrix_bias() const { return at_least(15); }
  /// 2.10 only: no Lt scratch for one row.
  bool lt_scratch_skips_one_row() const { return *this == TorchVersion{2, 10}; }
  /// An addmm with a bias also takes the cuBLAS workspace (before 2.15, at the thread's first call).
  bool addmm_takes_cublas_workspace() const { return !at_least(15); }
  /// ... and takes it before its Lt scratch.
  bool cublas_workspace_before_lt() const { return at_least(9); }
  /// Outer products `bmm([B,m,1] @ [B,1,n])` run in a Triton kernel: no workspace.
  bool triton_outer_product() const { return at_least(13); }
  /// Blackwell's default workspace is 32 MiB (PR #175344).
  bool large_workspace_on_blackwell() const { return at_least(12); }

  // ---- the caching allocator (c10/cuda/CUDACachingAllocator.cpp)
  /// Which of equally large free blocks is taken: the one at the lowest address; in 2.12 the one whose record was made first (PR #178362,
  /// taken back for these pools by #182929); since then the one of the oldest segment (PR #183591), which is the same as the address unless
  /// addresses that were given back are used again.
  enum class BlockOrder { address, record, segment };
  BlockOrder block_order() const {
    if (at_least(13)) return BlockOrder::segment;
    return at_least(12) ? BlockOrder::record : BlockOrder::address;
  }

  // ---- operators
  enum class RmsNorm { composite, composite_fp32_input, composite_fp32, fused };
  RmsNorm rms_norm() const {
    if (at_least(9)) return RmsNorm::fused;
    if (at_least(7)) return RmsNorm::composite_fp32;
    return at_least(6) ? RmsNorm::composite_fp32_input : RmsNorm::composite;
  }
  /// rms_norm is on autocast's float32 list (PR #174824).
  bool rms_norm_autocasts_to_fp32() const { return at_least(12); }
  /// layer_norm (and fused rms_norm) backward with more than 65,536 rows goes through partial sums (PR #150773).
  bool norm_backward_partials() const { return at_least(8); }
  bool flash_rng_on_device() const { return at_least(7); }
  bool efficient_rng_on_device() const { return at_least(14); }
  /// scaled_dot_product_attention gives rank-3 inputs to the fused kernels (PR #192271), and grouped heads to the efficient one (PR
  /// #191085).
  bool sdpa_fuses_rank3() const { return at_least(15); }
  bool efficient_attention_groups_heads() const { return at_least(15); }
  /// The math path: float32 for half types (PR #128922), and rows without a key give zeros (_safe_softmax, PR #131060).
  bool sdpa_math_upcasts() const { return at_least(5); }
  bool sdpa_safe_softmax() const { return at_least(5); }
  /// A bare `:` in an index is an autograd node of its own.
  bool full_slice_records_node() const { return !at_least(9); }
  bool group_norm_fp32_stats() const { return at_least(13); }
  /// group_norm keeps channels_last on CUDA (known of 2.15 only).
  bool group_norm_channels_last() const { return at_least(15); }
  bool max_unpool_temporary() const { return !at_least(14); }
  bool cosine_similarity_scalar() const { return at_least(11); }
  /// `scaler * 1` of a fused optimizer's step under GradScaler.
  bool fused_step_scales_scaler() const { return at_least(5); }
  bool fused_adagrad() const { return at_least(12); }
  bool has_adafactor() const { return at_least(5); }
  bool has_muon() const { return at_least(9); }
  /// CUDA release of the wheel, which decides cub's scratch sizes: 12.4, 12.6/12.8, 13.
  enum class Cuda { v12_4, v12_6, v13 };
  Cuda cuda() const { return at_least(11) ? Cuda::v13 : at_least(7) ? Cuda::v12_6 : Cuda::v12_4; }
};

}  // namespace memest
