// models/qwen3_vl/modeling_qwen3_vl.py (transformers 5.24).
#include "models/hf/qwen3_vl.h"

#include <algorithm>
#include <cmath>

#include "models/hf/grid_text.h"

namespace memest::hf {
namespace {

class VisionPatchMerger final : public Unary {
 public:
  VisionPatchMerger(const std::string& prefix, const GridVisionConfig& c, bool use_postshuffle_norm)
      : Unary(prefix + "VisionPatchMerger"),
        hidden_size_(checked_mul(c.hidden, c.merge * c.merge)),
        postshuffle_(use_postshuffle_norm),
        norm(child<LayerNorm>("norm", use_postshuffle_norm ? hidden_size_ : c.hidden, 1e-6)),
        linear_fc1(child<Linear>("linear_fc1", hidden_size_, hidden_size_)),
        act_fn(child<Activation>("act_fn", "gelu")),
        linear_fc2(child<Linear>("linear_fc2", hidden_size_, c.file.size("out_hidden_size"))) {}

 protected:
  X forward(X x) override {
    x = norm(postshuffle_ ? x.view({-1, hidden_size_}) : x).view({-1, hidden_size_});
    x = linear_fc2(act_fn(linear_fc1(x)));
    return x;
  }

 private:
  I hidden_size_;
  bool postshuffle_;
  LayerNorm& norm;
  Linear& linear_fc1;
  Activation& act_fn;
  Linear& linear_fc2;
};

class VisionMLP final : public Unary {
 public:
  VisionMLP(const std::string& prefix, const GridVisionConfig& c)
      : Unary(prefix + "VisionMLP"),
        linear_fc1(child<Linear>("linear_fc1", c.hidden, c.file.size("intermediate_size"))),
        linear_fc2(child<Linear>("linear_fc2", c.file.size("intermediate_size"), c.hidden)),
        act_fn(child<Activation>("act_fn", c.act)) {}

 protected:
  X forward(X hidden_state) override { return linear_fc2(act_fn(linear_fc1(hidden_state))); }

 private:
  Linear &linear_fc1, &linear_fc2;
  Activation& act_fn;
};

X floor_divide(const X& x, X other) { return aten("floor_divide", {Tensor(x), Tensor(std::move(other))}); }
X floor_divide(const X& x, I other) { return aten("floor_divide", {Tensor(x), other}); }
X remainder(const X& x, X other) { return aten("remainder", {Tensor(x), Tensor(std::move(other))}); }
X remainder(const X& x, I other) { return aten("remainder", {Tensor(x), other}); }

/// _interpolation_axis_taps_weights (vision_utils.py), bilinear with aligned corners: [positions, 2] each.
Pair interpolation_axis_taps_weights(X index, const X& size, I side) {
  index = index.to(DType::float32);
  X src = index.mul(side - 1), most = size.sub(1);
  most = aten("clamp_min", {Tensor(std::move(most)), I{1}});
  src = std::move(src).div(std::move(most));
  X floor = aten("floor", {Tensor(src)});
  X offsets = arange(2);
  X raw_taps = floor.to(DType::int64).unsqueeze(1).add(offsets);
  X taps = aten("clamp", {Tensor(raw_taps), I{0}, side - 1});
  X distance = aten("abs", {Tensor(src.unsqueeze(1).sub(X(floor.unsqueeze(1))).sub(offsets))});
  X weights = aten("clamp_min", {Tensor(aten("rsub", {Tensor(distance), I{1}})), I{0}});
  return leave(Pair{taps, weights}, index, src, floor, offsets, raw_taps, taps, distance, weights);
}

/// get_vision_interpolation_indices_and_weights: [patches, 4] each.
Pair interpolation_indices_and_weights(const X& grid_thw, const Grid& grid, I side) {
  const I total = checked_mul(grid.images, grid.patches()), merge = grid.merge;
  X counts = grid_thw.select(1, 0).mul(X(grid_thw.select(1, 1))).mul(X(grid_thw.select(1, 2)));
  X heights = repeat_interleave(grid_thw.select(1, 1), counts, total);
  X widths = repeat_interleave(grid_thw.select(1, 2), counts, total);
  X starts;
  {
    X ends = aten("cumsum", {Tensor(counts), I{0}});
    X padded = aten("constant_pad_nd", {Tensor(ends.slice(0, std::nullopt, -1)), list_of(Dims{1, 0}), I{0}});
    ends.reset();
    starts = repeat_interleave(std::move(padded), counts, total);
  }
  X within;
  {
    X length = aten("sum", {Tensor(counts)});
    within = arange(total);
  }
  within = std::move(within).sub(starts);
  within = remainder(within, heights.mul(widths));
  X blocks_w = floor_divide(widths, merge);
  X in_col = remainder(within, merge);
  X in_row = remainder(floor_divide(within, merge), merge);
  X block_col = remainder(floor_divide(within, merge * merge), blocks_w);
  X block_row = floor_divide(within, blocks_w.mul(merge * merge));
  X row = block_row.mul(merge).add(in_row);
  X col = block_col.mul(merge).add(in_col);
  auto [h_taps, h_weights] = interpolation_axis_taps_weights(row, heights, side);
  auto [w_taps, w_weights] = interpolation_axis_taps_weights(col, widths, side);
  X indices = h_taps.unsqueeze(2).mul(side).add(X(w_taps.unsqueeze(1))).reshape({-1, 4});
  X weights = h_weights.unsqueeze(2).mul(X(w_weights.unsqueeze(1))).reshape({-1, 4});
  Pair result{indices, weights};
  for (X* local : {&counts, &heights, &widths, &starts, &within, &blocks_w, &in_col, &in_row, &block_col, &block_row, &row, &col, &h_taps,
                   &h_weights, &w_taps, &w_weights})
    local->reset();
  return result;
}

class Qwen3VLVisionModel final : public GridTower {
 public:
  Qwen3VLVisionModel(const std::string& prefix, const GridVisionConfig& c)
      : GridTower(prefix + "VisionModel", c),
        num_grid_per_side_(I(std::sqrt(double(c.file.size("num_position_embeddings"))))),
        patch_embed_(register_module("patch_embed", make_patch_embed(prefix + "VisionPatchEmbed", c, true))),
        pos_embed(child<Embedding>("pos_embed", c.file.size("num_position_embeddings"), c.hidden)),
        rotary_pos_emb(child<AxialRotaryEmbedding>("rotary_pos_emb", prefix + "VisionRotaryEmbedding", c)),
        blocks_(*this, "blocks", c.depth,
                [&](I) {
                  return std::make_shared<GridBlock>(GridBlock::Form{prefix + "VisionBlock", prefix + "VisionAttention", "LayerNorm"}, c,
                                                     std::make_shared<VisionMLP>(prefix, c));
                }),
        merger(child<VisionPatchMerger>("merger", prefix, c, false)) {
    if (!c.file.has("deepstack_visual_indexes") || prefix != "Qwen3VL") return;
    deepstack_visual_indexes_ = c.file.integers("deepstack_visual_indexes");
    auto list = register_module("deepstack_merger_list", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
    for (std::size_t i = 0; i < deepstack_visual_indexes_.size(); ++i) {
      deepstack_mergers_.push_back(std::make_shared<VisionPatchMerger>(prefix, c, true));
      list->append(deepstack_mergers_.back());
    }
  }

 protected:
  GridFeatures forward(X hidden_states, X grid_thw, const Grid& grid) override {
    auto [interp_indices, interp_weights] = interpolation_indices_and_weights(grid_thw, grid, num_grid_per_side_);
    X position_ids = vision_position_ids(grid);
    X cu_seqlens = vision_cu_seqlens(grid_thw, grid);
    const std::vector<I> lengths(std::size_t(grid.images), grid.patches());
    hidden_states = (*patch_embed_)(hidden_states);
    X pos_embeds = pos_embed(interp_indices).mul(X(interp_weights.unsqueeze(2))).sum(1);
    hidden_states = hidden_states.add(pos_embeds.to(hidden_states.dtype()));
    Pair position_embeddings = rotary_pos_emb(hidden_states, position_ids);
    hidden_states = hidden_states.reshape({hidden_states.size(0), -1});
    GridFeatures features;
    X deepstack_feature;
    for (I layer_num = 0; layer_num < blocks_.size(); ++layer_num) {
      hidden_states = blocks_[layer_num](hidden_states, {cu_seqlens, lengths, position_embeddings});
      const auto at = std::find(deepstack_visual_indexes_.begin(), deepstack_visual_indexes_.end(), layer_num);
      if (at == deepstack_visual_indexes_.end()) continue;
      deepstack_feature = (*deepstack_mergers_[std::size_t(at - deepstack_visual_indexes_.begin())])(hidden_states);
      features.deepstack_features.push_back(deepstack_feature);
    }
    X merged_hidden_states = merger(hidden_states);
    features.last_hidden_state = hidden_states;
    features.pooler_output = merged_hidden_states;
    for (X* local : {&interp_indices, &interp_weights, &position_ids, &cu_seqlens, &pos_embeds}) local->reset();
    return features;
  }

 private:
  I num_grid_per_side_;
  UnaryPtr patch_embed_;
  Embedding& pos_embed;
  AxialRotaryEmbedding& rotary_pos_emb;
  Layers<GridBlock> blocks_;
  VisionPatchMerger& merger;
  std::vector<I> deepstack_visual_indexes_;
  std::vector<std::shared_ptr<VisionPatchMerger>> deepstack_mergers_;
};

NetworkPtr qwen3_vl(const Config& config, const Options& o) {
  return make_grid_text(config, o, {"Qwen3VL", false}, make_qwen3_vl_tower(config.section("vision_config"), o, "Qwen3VL"));
}
NetworkPtr qwen3_vl_text(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "Qwen3VL";
  f.norm_type = "Qwen3VLTextRMSNorm";
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "Qwen3VLTextDecoderLayer";
    form.norm_type = "Qwen3VLTextRMSNorm";
    const bool bias = c.attention_bias;
    return make_layer(
        c, form, make_attention_with_qk_norm(c, i, "Qwen3VLTextAttention", {bias, bias, bias, bias}, QkNorm::before_transpose, Norm::llama),
        make_gated_mlp("Qwen3VLTextMLP", c.hidden, c.intermediate, false, c.act));
  };
  return make_decoder(config, o, mrope_decoder(std::move(f), {MropeForm::Table::interleaved, {24, 20, 20}, true, true}));
}

const Family qwen3_vl_family{{"qwen3_vl"}, grid_text_classes("Qwen3VL", qwen3_vl)};
const Family qwen3_vl_text_family{{"qwen3_vl_text"}, {{Task::base, "Qwen3VLTextModel", qwen3_vl_text}}};

}  // namespace

std::shared_ptr<GridTower> make_qwen3_vl_tower(const Config& vision, const Options& options, const std::string& prefix) {
  return std::make_shared<Qwen3VLVisionModel>(prefix, GridVisionConfig(vision, options, "hidden_size"));
}

}  // namespace memest::hf
