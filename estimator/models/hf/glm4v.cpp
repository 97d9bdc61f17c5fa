// models/glm4v/modeling_glm4v.py (transformers 5.24).
#include "models/hf/grid_text.h"
#include "models/hf/rotate.h"

namespace memest::hf {
namespace {

class Glm4vVisionPatchMerger final : public Unary {
 public:
  Glm4vVisionPatchMerger(I dim, I context_dim, const std::string& hidden_act)
      : Unary("Glm4vVisionPatchMerger"),
        proj(child<Linear>("proj", dim, dim, false)),
        post_projection_norm(child<LayerNorm>("post_projection_norm", dim)),
        gate_proj(child<Linear>("gate_proj", dim, context_dim, false)),
        up_proj(child<Linear>("up_proj", dim, context_dim, false)),
        down_proj(child<Linear>("down_proj", context_dim, dim, false)),
        act1(child<Activation>("act1", "gelu")),
        act_fn(child<Activation>("act_fn", hidden_act)) {}

 protected:
  X forward(X hidden_state) override {
    hidden_state = proj(hidden_state);
    hidden_state = act1(post_projection_norm(hidden_state));
    return down_proj(act_fn(gate_proj(hidden_state)).mul(up_proj(hidden_state)));
  }

 private:
  Linear& proj;
  LayerNorm& post_projection_norm;
  Linear &gate_proj, &up_proj, &down_proj;
  Activation &act1, &act_fn;
};

class Glm4vVisionEmbeddings final : public Module<Glm4vVisionEmbeddings> {
 public:
  explicit Glm4vVisionEmbeddings(const GridVisionConfig& c)
      : Module("Glm4vVisionEmbeddings"),
        side_(c.file.size("image_size") / c.patch),
        position_embedding(child<Embedding>("position_embedding", checked_mul(side_, side_), c.hidden)) {}
  X forward(X embeddings, const X& lengths, const X& image_shapes, const X& h_coords, const X& w_coords) {
    const X pos_embed_weight = position_embedding.weight();
    X pos_embed_2d = pos_embed_weight.view({side_, side_, -1}).permute({2, 0, 1}).unsqueeze(0).to(DType::float32);
    X token_positions = arange(embeddings.size(0));
    X reached = aten("ge", {Tensor(token_positions.unsqueeze(0)), Tensor(aten("cumsum", {Tensor(lengths), I{0}}).unsqueeze(1))});
    X seq_ids = aten("sum", {Tensor(std::move(reached)), list_of(Dims{0})});
    auto shape_of = [&](I column) {
      return aten("index", {Tensor(image_shapes.select(1, column)), make_list({Tensor(seq_ids)})}).to(DType::float32);
    };
    X target_h = shape_of(1);
    X target_w = shape_of(2);
    X norm_w = w_coords.add(0.5).div(target_w).mul(2).sub(1);
    X norm_h = h_coords.add(0.5).div(target_h).mul(2).sub(1);
    X grid = stack({norm_w, norm_h}, -1).unsqueeze(0).unsqueeze(2);
    constexpr I kBicubic = 2, kBorder = 1;
    X interpolated_embed_fp32 = aten("grid_sampler", {Tensor(pos_embed_2d), Tensor(grid), kBicubic, kBorder, false});
    X adapted_pos_embed_fp32 = interpolated_embed_fp32.squeeze(0).squeeze(-1).permute({1, 0});
    X adapted_pos_embed = adapted_pos_embed_fp32.to(pos_embed_weight.dtype());
    embeddings = embeddings.add(adapted_pos_embed);
    for (X* local : {&pos_embed_2d, &token_positions, &seq_ids, &target_h, &target_w, &norm_w, &norm_h, &grid, &interpolated_embed_fp32,
                     &adapted_pos_embed_fp32, &adapted_pos_embed})
      local->reset();
    return embeddings;
  }

 private:
  I side_;
  Embedding& position_embedding;
};

class Glm4vVisionModel final : public GridTower {
 public:
  explicit Glm4vVisionModel(const GridVisionConfig& c)
      : GridTower("Glm4vVisionModel", c),
        out_hidden_size_(c.file.size("out_hidden_size")),
        embeddings(child<Glm4vVisionEmbeddings>("embeddings", c)),
        patch_embed_(register_module("patch_embed", make_patch_embed("Glm4vVisionPatchEmbed", c, true))),
        rotary_pos_emb(child<AxialRotaryEmbedding>("rotary_pos_emb", "Glm4vVisionRotaryEmbedding", c)),
        blocks_(*this, "blocks", c.depth,
                [&](I) {
                  const GridBlock::Form form{"Glm4vVisionBlock",
                                             "Glm4vVisionAttention",
                                             "Glm4vRMSNorm",
                                             Norm::llama,
                                             c.file.boolean_or("attention_bias", false),
                                             false,
                                             c.file.number_or("attention_dropout", 0.0)};
                  return std::make_shared<GridBlock>(form, c, make_gated_mlp("Glm4VisionMlp", c.hidden, out_hidden_size_, false, c.act));
                }),
        merger(child<Glm4vVisionPatchMerger>("merger", out_hidden_size_, c.file.size("intermediate_size"), c.act)),
        post_conv_layernorm_(register_module("post_conv_layernorm", make_norm(Norm::llama, c.hidden, "Glm4vRMSNorm"))),
        downsample(child<Conv2d>("downsample", c.hidden, out_hidden_size_, c.merge, c.merge)),
        post_layernorm_(register_module("post_layernorm", make_norm(Norm::llama, c.hidden, "Glm4vRMSNorm"))) {}

 protected:
  GridFeatures forward(X hidden_states, X grid_thw, const Grid& grid) override {
    X position_ids = vision_position_ids(grid);
    X cu_seqlens = vision_cu_seqlens(grid_thw, grid);
    const std::vector<I> lengths(std::size_t(grid.images), grid.patches());
    hidden_states = (*patch_embed_)(hidden_states);
    hidden_states = (*post_conv_layernorm_)(hidden_states);
    Pair position_embeddings = rotary_pos_emb(hidden_states, position_ids);
    X seqlens = cu_seqlens.slice(0, 1, std::nullopt).sub(X(cu_seqlens.slice(0, std::nullopt, -1)));
    hidden_states = embeddings(hidden_states, seqlens, grid_thw, position_ids.select(1, 0), position_ids.select(1, 1));
    for (auto& blk : blocks_) hidden_states = (*blk)(hidden_states, {cu_seqlens, lengths, position_embeddings});
    hidden_states = (*post_layernorm_)(hidden_states);
    hidden_states = hidden_states.view({-1, grid.merge, grid.merge, hidden_states.size(-1)});
    hidden_states = hidden_states.permute({0, 3, 1, 2});
    hidden_states = downsample(hidden_states).view({-1, out_hidden_size_});
    X merged_hidden_states = merger(hidden_states);
    return leave(GridFeatures{hidden_states, merged_hidden_states}, position_ids, cu_seqlens, seqlens);
  }

 private:
  I out_hidden_size_;
  Glm4vVisionEmbeddings& embeddings;
  UnaryPtr patch_embed_;
  AxialRotaryEmbedding& rotary_pos_emb;
  Layers<GridBlock> blocks_;
  Glm4vVisionPatchMerger& merger;
  UnaryPtr post_conv_layernorm_;
  Conv2d& downsample;
  UnaryPtr post_layernorm_;
};

/// apply_rotary_pos_emb: neighbours of the first cos.shape[-1] of each head, the rest passed on.
Pair apply_rotary_pos_emb_neighbours(X q, X k, X cos, X sin) {
  cos = cos.unsqueeze(1);
  sin = sin.unsqueeze(1);
  const I rotary_dim = cos.size(-1);
  X q_rot = leading(q, rotary_dim), q_pass = q.slice(-1, rotary_dim, std::nullopt);
  X k_rot = leading(k, rotary_dim), k_pass = k.slice(-1, rotary_dim, std::nullopt);
  X q_embed = q_rot.mul(cos).add(rotate_half_interleaved(q_rot).mul(sin));
  X k_embed = k_rot.mul(cos).add(rotate_half_interleaved(k_rot).mul(sin));
  q_embed = cat({q_embed, q_pass}, -1);
  k_embed = cat({k_embed, k_pass}, -1);
  return {q_embed, k_embed};
}

class Glm4vTextAttention final : public ViewsLastAttention {
 public:
  Glm4vTextAttention(const DecoderConfig& c, I layer) : ViewsLastAttention(c, layer, "Glm4vTextAttention", {true, true, true, false}) {}

 protected:
  void rotate(Frame& f, const LayerCall& call) override {
    std::tie(f.query, f.key) =
        apply_rotary_pos_emb_neighbours(f.query, f.key, call.position_embeddings.first, call.position_embeddings.second);
  }
};

NetworkPtr glm4v(const Config& config, const Options& o) {
  const GridVisionConfig vision(config.section("vision_config"), o, "hidden_size");
  return make_grid_text(config, o, {"Glm4v"}, std::make_shared<Glm4vVisionModel>(vision));
}
NetworkPtr glm4v_text(const Config& config, const Options& o) {
  Config text = config;
  text.set("head_dim", {});
  DecoderForm f;
  f.prefix = "Glm4v";
  f.norm_type = "Glm4vRMSNorm";
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "Glm4vTextDecoderLayer";
    form.order = LayerForm::Order::glm4;
    form.norm_type = "Glm4vRMSNorm";
    form.norms = {"input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"};
    return make_layer(c, form, std::make_shared<Glm4vTextAttention>(c, i),
                      make_fused_gated_mlp("Glm4vTextMLP", c.hidden, c.intermediate, c.act));
  };
  return make_decoder(text, o, mrope_decoder(std::move(f), {MropeForm::Table::repeated, {8, 12, 12}, false, true}));
}

const Family glm4v_family{{"glm4v"}, grid_text_classes("Glm4v", glm4v)};
const Family glm4v_text_family{{"glm4v_text"}, {{Task::base, "Glm4vTextModel", glm4v_text}}};

}  // namespace
}  // namespace memest::hf
