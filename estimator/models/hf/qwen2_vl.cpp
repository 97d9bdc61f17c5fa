// models/qwen2_vl/modeling_qwen2_vl.py (transformers 5.24).
#include "models/hf/qwen2_vl.h"

#include "models/hf/grid_text.h"

namespace memest::hf {

NetworkPtr make_qwen2_vl_text(const Config& config, const Options& options, const std::string& prefix) {
  Config text = config;
  const bool window = text.boolean_or("use_sliding_window", false);
  if (!window) text.set("sliding_window", {});
  const I first_sliding = window && text.has("sliding_window") ? text.integer_or("max_window_layers", 0) : layer_count(text);
  default_layer_types(text, [&](I i) { return i >= first_sliding ? "sliding_attention" : "full_attention"; });
  text.set("head_dim", {});
  DecoderForm f;
  f.prefix = prefix;
  f.norm_type = prefix + "RMSNorm";
  f.layer = [prefix](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = prefix + "DecoderLayer";
    form.norm_type = prefix + "RMSNorm";
    return make_layer(c, form, std::make_shared<ViewsLastAttention>(c, i, prefix + "Attention", Biases{true, true, true, false}),
                      make_gated_mlp("Qwen2MLP", c.hidden, c.intermediate, false, c.act));
  };
  return make_decoder(text, options, mrope_decoder(std::move(f), {MropeForm::Table::doubled, {16, 24, 24}, false}));
}

namespace {

class PatchMerger final : public Unary {
 public:
  PatchMerger(I dim, const GridVisionConfig& c)
      : Unary("PatchMerger"), hidden_size_(checked_mul(c.hidden, c.merge * c.merge)), ln_q(child<LayerNorm>("ln_q", c.hidden, 1e-6)) {
    mlp_ = register_module("mlp", make_linear_gelu_linear(hidden_size_, hidden_size_, dim));
  }

 protected:
  X forward(X x) override {
    x = (*mlp_)(ln_q(x).view({-1, hidden_size_}));
    return x;
  }

 private:
  I hidden_size_;
  LayerNorm& ln_q;
  UnaryPtr mlp_;
};

class Qwen2VisionTransformer final : public GridTower {
 public:
  explicit Qwen2VisionTransformer(const GridVisionConfig& c)
      : GridTower("Qwen2VisionTransformerPretrainedModel", c),
        patch_embed_(register_module("patch_embed", make_patch_embed("PatchEmbed", c, false))),
        rotary_pos_emb(child<AxialRotaryEmbedding>("rotary_pos_emb", "Qwen2VLVisionRotaryEmbedding", c)),
        blocks_(*this, "blocks", c.depth,
                [&](I) {
                  const I mlp_hidden_dim = I(double(c.hidden) * c.file.number("mlp_ratio"));
                  return std::make_shared<GridBlock>(GridBlock::Form{"Qwen2VLVisionBlock", "VisionAttention", "LayerNorm"}, c,
                                                     make_plain_mlp("VisionMlp", "fc1", "fc2", c.hidden, mlp_hidden_dim, true, c.act));
                }),
        merger(child<PatchMerger>("merger", c.file.size("hidden_size"), c)) {}

  nn::InputEmbedding* input_embedding() override { return embedding_at(*this, "patch_embed"); }

 protected:
  GridFeatures forward(X hidden_states, X grid_thw, const Grid& grid) override {
    X position_ids = vision_position_ids(grid);
    X cu_seqlens = vision_cu_seqlens(grid_thw, grid);
    const std::vector<I> lengths(std::size_t(grid.images), grid.patches());
    hidden_states = (*patch_embed_)(hidden_states);
    Pair position_embeddings = rotary_pos_emb(hidden_states, position_ids);
    for (auto& blk : blocks_) hidden_states = (*blk)(hidden_states, {cu_seqlens, lengths, position_embeddings});
    X merged_hidden_states = merger(hidden_states);
    return leave(GridFeatures{hidden_states, merged_hidden_states}, position_ids, cu_seqlens);
  }

 private:
  UnaryPtr patch_embed_;
  AxialRotaryEmbedding& rotary_pos_emb;
  Layers<GridBlock> blocks_;
  PatchMerger& merger;
};

NetworkPtr qwen2_vl(const Config& config, const Options& o) {
  const GridVisionConfig vision(config.section("vision_config"), o, "embed_dim");
  return make_grid_text(config, o, {"Qwen2VL"}, std::make_shared<Qwen2VisionTransformer>(vision));
}
NetworkPtr qwen2_vl_text(const Config& config, const Options& o) { return make_qwen2_vl_text(config, o, "Qwen2VL"); }

const Family qwen2_vl_family{{"qwen2_vl"}, grid_text_classes("Qwen2VL", qwen2_vl)};
const Family qwen2_vl_text_family{{"qwen2_vl_text"}, {{Task::base, "Qwen2VLTextModel", qwen2_vl_text}}};

}  // namespace
}  // namespace memest::hf
