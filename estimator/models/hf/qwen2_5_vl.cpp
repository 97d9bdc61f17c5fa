// models/qwen2_5_vl/modeling_qwen2_5_vl.py (transformers 5.24).
#include <algorithm>

#include "models/hf/grid_text.h"
#include "models/hf/qwen2_vl.h"

namespace memest::hf {
namespace {

class Qwen2_5_VLPatchMerger final : public Unary {
 public:
  Qwen2_5_VLPatchMerger(I dim, const GridVisionConfig& c)
      : Unary("Qwen2_5_VLPatchMerger"), hidden_size_(checked_mul(c.hidden, c.merge * c.merge)) {
    ln_q_ = register_module("ln_q", make_norm(Norm::llama, c.hidden, "Qwen2_5_VLRMSNorm"));
    mlp_ = register_module("mlp", make_linear_gelu_linear(hidden_size_, hidden_size_, dim));
  }

 protected:
  X forward(X x) override {
    x = (*mlp_)((*ln_q_)(x).view({-1, hidden_size_}));
    return x;
  }

 private:
  I hidden_size_;
  UnaryPtr ln_q_, mlp_;
};

/// get_vision_window_index: the patches of each window of each image, and how many windows there are, empty ones too.
struct Windows {
  std::vector<I> lengths;
  I listed = 0;
};
Windows windows_of(const Grid& grid, I window) {
  Windows w;
  const I rows = grid.height / grid.merge, columns = grid.width / grid.merge, pad_h = window - rows % window,
          pad_w = window - columns % window, down = (rows + pad_h) / window, across = (columns + pad_w) / window;
  for (I image = 0; image < grid.images; ++image)
    for (I i = 0; i < down; ++i)
      for (I j = 0; j < across; ++j) {
        const I height = std::clamp<I>(rows - i * window, 0, window), width = std::clamp<I>(columns - j * window, 0, window);
        if (height * width > 0) w.lengths.push_back(height * width * grid.merge * grid.merge);
        ++w.listed;
      }
  return w;
}

class Qwen2_5_VisionTransformer final : public GridTower {
 public:
  explicit Qwen2_5_VisionTransformer(const GridVisionConfig& c)
      : GridTower("Qwen2_5_VisionTransformerPretrainedModel", c),
        fullatt_block_indexes_(c.file.integers("fullatt_block_indexes")),
        window_(c.file.size("window_size") / c.merge / c.patch),
        patch_embed_(register_module("patch_embed", make_patch_embed("Qwen2_5_VisionPatchEmbed", c, false))),
        rotary_pos_emb(child<AxialRotaryEmbedding>("rotary_pos_emb", "Qwen2_5_VLVisionRotaryEmbedding", c)),
        blocks_(*this, "blocks", c.depth,
                [&](I) {
                  const GridBlock::Form form{"Qwen2_5_VLVisionBlock", "Qwen2_5_VLVisionAttention", "Qwen2_5_VLRMSNorm", Norm::llama};
                  return std::make_shared<GridBlock>(
                      form, c, make_gated_mlp("Qwen2_5_VLMLP", c.hidden, c.file.size("intermediate_size"), true, c.act));
                }),
        merger(child<Qwen2_5_VLPatchMerger>("merger", c.file.size("out_hidden_size"), c)) {
    if (window_ < 1) throw c.file.error("window_size", "a window is smaller than a token of " + std::to_string(c.merge) + " patches");
  }

  nn::InputEmbedding* input_embedding() override { return embedding_at(*this, "patch_embed"); }

 protected:
  GridFeatures forward(X hidden_states, X grid_thw, const Grid& grid) override {
    X position_ids = vision_position_ids(grid);
    X cu_seqlens = vision_cu_seqlens(grid_thw, grid);
    const std::vector<I> lengths(std::size_t(grid.images), grid.patches());
    const Windows windows = windows_of(grid, window_);
    X cu_window_seqlens = empty({windows.listed + 1}, DType::int32);
    cu_window_seqlens = unique_consecutive(cu_window_seqlens, I(windows.lengths.size()) + 1);
    hidden_states = (*patch_embed_)(hidden_states);
    hidden_states = permute_input_for_window_attn(hidden_states);
    Pair position_embeddings = rotary_pos_emb(hidden_states, position_ids);
    {
      X cos = permute_input_for_window_attn(position_embeddings.first);
      X sin = permute_input_for_window_attn(position_embeddings.second);
      position_embeddings.second = sin;  // a tuple drops its items from its end
      position_embeddings.first = cos;
    }
    for (I layer_num = 0; layer_num < blocks_.size(); ++layer_num) {
      const bool full = std::find(fullatt_block_indexes_.begin(), fullatt_block_indexes_.end(), layer_num) != fullatt_block_indexes_.end();
      hidden_states =
          blocks_[layer_num](hidden_states, {full ? cu_seqlens : cu_window_seqlens, full ? lengths : windows.lengths, position_embeddings});
    }
    X merged_hidden_states = merger(hidden_states);
    merged_hidden_states = rows_of(merged_hidden_states, merged_hidden_states.size(0));
    return leave(GridFeatures{hidden_states, merged_hidden_states}, position_ids, cu_seqlens, cu_window_seqlens);
  }

 private:
  /// x[index] with so many rows; the index is on the host, and goes to the device for the call.
  static X rows_of(const X& x, I rows) { return aten("index", {Tensor(x), make_list({host_tensor({rows}, DType::int64)})}); }
  X permute_input_for_window_attn(X input_tensor) const {
    const I seq_len = input_tensor.size(0), unit = config.merge * config.merge;
    input_tensor = input_tensor.reshape({seq_len / unit, unit, -1});
    input_tensor = rows_of(input_tensor, seq_len / unit);
    input_tensor = input_tensor.reshape({seq_len, -1});
    return input_tensor;
  }
  /// torch.unique_consecutive, of which so many are left.
  static X unique_consecutive(X input, I left) {
    const Value made = call_op("aten::unique_consecutive", {Tensor(std::move(input))}, {});
    X output = std::get<Tensor>(std::get<std::shared_ptr<List>>(made)->items[0]);
    return output.slice(0, 0, left);
  }
  std::vector<I> fullatt_block_indexes_;
  I window_;
  UnaryPtr patch_embed_;
  AxialRotaryEmbedding& rotary_pos_emb;
  Layers<GridBlock> blocks_;
  Qwen2_5_VLPatchMerger& merger;
};

NetworkPtr qwen2_5_vl(const Config& config, const Options& o) {
  const GridVisionConfig vision(config.section("vision_config"), o, "hidden_size");
  return make_grid_text(config, o, {"Qwen2_5_VL", true, false}, std::make_shared<Qwen2_5_VisionTransformer>(vision));
}
NetworkPtr qwen2_5_vl_text(const Config& config, const Options& o) { return make_qwen2_vl_text(config, o, "Qwen2_5_VL"); }

const Family qwen2_5_vl_family{{"qwen2_5_vl"}, grid_text_classes("Qwen2_5_VL", qwen2_5_vl)};
const Family qwen2_5_vl_text_family{{"qwen2_5_vl_text"}, {{Task::base, "Qwen2_5_VLTextModel", qwen2_5_vl_text}}};

}  // namespace
}  // namespace memest::hf
