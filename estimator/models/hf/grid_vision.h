// Vision towers that take patches of images of any size, packed one after another, with a grid [t, h, w] of each: Qwen2-VL and its kin
// (transformers 5.24: vision_utils.py, models/qwen2_vl, qwen2_5_vl, qwen3_vl, glm4v).
#pragma once
#include <functional>

#include "models/hf/decoder.h"
#include "nn/embedded_model.h"

namespace memest::hf {

/// Images of one size: what the values of grid_thw would say.
struct Grid {
  I images = 0, height = 0, width = 0;  ///< in patches
  I merge = 2;                          ///< spatial_merge_size: so many patches a side are one token
  I patches() const { return checked_mul(height, width); }
  I tokens() const { return patches() / (merge * merge); }  ///< of one image
};

/// CPython drops a list's items from its end.
inline void drop_list(std::vector<X>& list) {
  while (!list.empty()) list.pop_back();
}

// ---- vision_utils.py ---------------------------------------------------------------------------------------------------------

/// get_vision_position_ids: [patches, 2].
X vision_position_ids(const Grid& grid);
/// get_vision_cu_seqlens: [images + 1] of int32.
X vision_cu_seqlens(const X& grid_thw, const Grid& grid);
/// torch.repeat_interleave(self, repeats), where the repeats add up to `total`.
X repeat_interleave(X self, X repeats, I total);

// ---- parts of a tower ----------------------------------------------------------------------------------------------------------

/// The fields that these towers have in common.
struct GridVisionConfig {
  /// `width`: the key of the width of the hidden states.
  GridVisionConfig(const Config& file, const Options& options, const char* width);
  Config file;
  Options options;
  I hidden, heads, head_dim, depth, channels, patch, temporal, merge;
  std::string act;
};

/// PatchEmbed: a Conv3d called proj whose kernel is its stride.
UnaryPtr make_patch_embed(std::string type, const GridVisionConfig& c, bool bias);

/// VisionRotaryEmbedding of rope_type axial: cos and sin in fp32.
class AxialRotaryEmbedding final : public Module<AxialRotaryEmbedding> {
 public:
  AxialRotaryEmbedding(std::string type, const GridVisionConfig& c);
  Pair forward(const X& x, const X& position_ids);
};

/// What a block's forward gets beside the hidden states.
struct GridCall {
  X cu_seqlens;
  std::vector<I> lengths;  ///< that cu_seqlens stands for
  Pair position_embeddings;
};

/// hidden_states + attn(norm1(hidden_states)), + mlp(norm2(hidden_states)): a GradientCheckpointingLayer.
class GridBlock final : public Base {
 public:
  struct Form {
    std::string type, attention_type, norm_type;
    Norm norm = Norm::layer_norm;
    bool qkv_bias = true, proj_bias = true;
    double dropout = 0;
  };
  GridBlock(const Form& form, const GridVisionConfig& c, UnaryPtr mlp);
  X operator()(X hidden_states, GridCall call);

 private:
  X forward(X hidden_states, const GridCall& call);
  using Base::forward;
  Options options_;
  UnaryPtr norm1_, norm2_;
  std::shared_ptr<class GridAttention> attn_;
  UnaryPtr mlp_;
};

/// nn.Sequential(nn.Linear, nn.GELU, nn.Linear).
UnaryPtr make_linear_gelu_linear(I in, I hidden, I out);

/// BaseModelOutputWithPooling of such a tower.
struct GridFeatures {
  X last_hidden_state, pooler_output;
  std::vector<X> deepstack_features = {};
};

class GridTower : public Base, public nn::EmbeddedModel {
 public:
  GridTower(std::string type, GridVisionConfig c) : Base(std::move(type)), config(std::move(c)) {}
  const GridVisionConfig config;
  nn::InputEmbedding* input_embedding() override { return nullptr; }
  GridFeatures operator()(X pixel_values, X grid_thw, const Grid& grid) {
    Entered scope(*this);
    GridFeatures features = forward(pixel_values, grid_thw, grid);
    pixel_values.reset();
    grid_thw.reset();
    return features;
  }

 protected:
  virtual GridFeatures forward(X hidden_states, X grid_thw, const Grid& grid) = 0;
  using Base::forward;
};

}  // namespace memest::hf
