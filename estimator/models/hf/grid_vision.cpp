#include "models/hf/grid_vision.h"

#include "models/hf/attention.h"
#include "models/hf/checkpointed.h"

namespace memest::hf {

X repeat_interleave(X self, X repeats, I total) {  // native/Repeat.cpp: index_select with the positions (native/cuda/Repeat.cu)
  X positions = aten("repeat_interleave", {Tensor(repeats)}, {{"output_size", total}});
  X repeated = aten("index_select", {Tensor(self), I{0}, Tensor(positions)});
  return leave(std::move(repeated), positions, self, repeats);
}

X vision_position_ids(const Grid& grid) {
  X spatial_merge_size = X(empty({1}, DType::int64)).expand({grid.images});
  if (grid.images > 1) spatial_merge_size.contiguous();  // tolist() of an expanded tensor copies it on the device first
  std::vector<X> position_ids;
  X hpos_ids, wpos_ids;
  for (I i = 0; i < grid.images; ++i) {
    {
      X rows = arange(grid.height), columns = arange(grid.width);
      std::vector<X> grids = X::list(Unbox<Tensors>::from(call_op(
          "aten::meshgrid", {make_list({Tensor(std::move(rows)), Tensor(std::move(columns))})}, {{"indexing", std::string("ij")}})));
      hpos_ids = grids[0];
      wpos_ids = grids[1];
    }
    const Dims block_shape{grid.height / grid.merge, grid.merge, grid.width / grid.merge, grid.merge};
    hpos_ids = hpos_ids.reshape(block_shape).transpose(1, 2).flatten(0);
    wpos_ids = wpos_ids.reshape(block_shape).transpose(1, 2).flatten(0);
    position_ids.push_back(aten("repeat", {Tensor(stack({hpos_ids, wpos_ids}, -1)), list_of(Dims{1, 1})}));
  }
  X joined = cat(position_ids, 0);
  spatial_merge_size.reset();
  drop_list(position_ids);
  return leave(std::move(joined), hpos_ids, wpos_ids);
}

X vision_cu_seqlens(const X& grid_thw, const Grid& grid) {
  X seqlens = repeat_interleave(grid_thw.select(1, 1).mul(X(grid_thw.select(1, 2))), grid_thw.select(1, 0), grid.images);
  X ends = aten("cumsum", {Tensor(seqlens), I{0}}, {{"dtype", DType::int32}});
  X padded = aten("constant_pad_nd", {Tensor(std::move(ends)), list_of(Dims{1, 0}), I{0}});
  return leave(std::move(padded), seqlens);
}

GridVisionConfig::GridVisionConfig(const Config& f, const Options& o, const char* width)
    : file(f),
      options(o),
      hidden(f.size(width)),
      heads(f.size("num_heads")),
      depth(f.size("depth")),
      channels(f.size("in_channels")),
      patch(f.size("patch_size")),
      temporal(f.size("temporal_patch_size")),
      merge(f.size("spatial_merge_size")),
      act(f.text("hidden_act")) {
  constexpr I kMostBlocks = 10'000;
  if (depth > kMostBlocks)
    throw f.error("depth", "expected at most " + std::to_string(kMostBlocks) + " blocks, found " + std::to_string(depth));
  if (hidden % heads != 0)
    throw f.error("num_heads", "the hidden size " + std::to_string(hidden) + " is not a multiple of " + std::to_string(heads) + " heads");
  head_dim = hidden / heads;
}

namespace {

class Conv3d final : public Module<Conv3d> {
 public:
  Conv3d(I in, I out, const Dims& kernel, bool bias) : Module("Conv3d"), stride_(kernel) {
    new_parameter("weight", Dims{out, in} + kernel);
    new_parameter("bias", {out}, bias);
  }
  X forward(const X& input) { return ops::conv3d(input, parameter(0), parameter(1), stride_, Dims{0, 0, 0}, Dims{1, 1, 1}, 1); }
  DType dtype() const { return parameter(0).dtype(); }

 private:
  Dims stride_;
};

class PatchEmbed final : public Unary, public nn::InputEmbedding {
 public:
  PatchEmbed(std::string type, const GridVisionConfig& c, bool bias)
      : Unary(std::move(type)),
        shape_{-1, c.channels, c.temporal, c.patch, c.patch},
        embed_dim_(c.hidden),
        proj(child<Conv3d>("proj", c.channels, c.hidden, Dims{c.temporal, c.patch, c.patch}, bias)) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = hidden_states.view(shape_);
    hidden_states = proj(hidden_states.to(proj.dtype())).view({-1, embed_dim_});
    return hooked(hidden_states);
  }

 private:
  Dims shape_;
  I embed_dim_;
  Conv3d& proj;
};

class LinearGeluLinear final : public Unary {
 public:
  LinearGeluLinear(I in, I hidden, I out)
      : Unary("Sequential"),
        first_(child<Linear>("0", in, hidden)),
        gelu_(child<Activation>("1", "gelu")),
        second_(child<Linear>("2", hidden, out)) {}

 protected:
  X forward(X input) override {
    input = first_(input);
    input = gelu_(input);
    input = second_(input);
    return input;
  }

 private:
  Linear& first_;
  Activation& gelu_;
  Linear& second_;
};

Pair apply_rotary_pos_emb_vision(X q, X k, X cos, X sin) {
  const DType orig_q_dtype = q.dtype(), orig_k_dtype = k.dtype();
  q = q.to_float();
  k = k.to_float();
  cos = cos.unsqueeze(-2).to_float();
  sin = sin.unsqueeze(-2).to_float();
  X q_embed = q.mul(cos).add(rotate_half(q).mul(sin));
  X k_embed = k.mul(cos).add(rotate_half(k).mul(sin));
  q_embed = q_embed.to(orig_q_dtype);
  k_embed = k_embed.to(orig_k_dtype);
  return leave(Pair{q_embed, k_embed}, q, k, cos, sin);
}

}  // namespace

UnaryPtr make_patch_embed(std::string type, const GridVisionConfig& c, bool bias) {
  return std::make_shared<PatchEmbed>(std::move(type), c, bias);
}
UnaryPtr make_linear_gelu_linear(I in, I hidden, I out) { return std::make_shared<LinearGeluLinear>(in, hidden, out); }

AxialRotaryEmbedding::AxialRotaryEmbedding(std::string type, const GridVisionConfig& c) : Module(std::move(type)) {
  if (const std::string kind = rope_type(c.file); kind != "axial" && kind != "default")
    throw c.file.error("rope_parameters", type + " supports only axial rope, found '" + kind.substr(0, 60) + "'");
  const I spatial_dim = c.file.size_or("head_dim", c.head_dim) / 2, count = ceil_div(spatial_dim, 2);
  new_buffer("inv_freq", {count}, DType::float32);
  new_buffer("original_inv_freq", {count}, DType::float32);
}
Pair AxialRotaryEmbedding::forward(const X&, const X& position_ids) {
  X freqs = position_ids.unsqueeze(-1).to_float().mul(X(buffer(0)));
  X cos = aten("cos", {Tensor(freqs)}).mul(1.0);
  X sin = aten("sin", {Tensor(freqs)}).mul(1.0);
  auto recomposition_frequencies = [](const X& freq) {
    X freq_hw = cat({freq.select(1, 0), freq.select(1, 1)}, -1);
    return cat({freq_hw, freq_hw}, -1);
  };
  cos = recomposition_frequencies(cos);
  sin = recomposition_frequencies(sin);
  return leave(Pair{cos, sin}, freqs, cos, sin);
}

// ---- blocks ----------------------------------------------------------------------------------------------------------------------

class GridAttention final : public Module<GridAttention> {
 public:
  GridAttention(const GridBlock::Form& form, const GridVisionConfig& c)
      : Module(form.attention_type),
        options_(c.options),
        num_heads_(c.heads),
        dropout_(form.dropout),
        qkv(child<Linear>("qkv", c.hidden, checked_mul(c.hidden, 3), form.qkv_bias)),
        proj(child<Linear>("proj", c.hidden, c.hidden, form.proj_bias)) {}
  X forward(const X& hidden_states, const GridCall& call) {
    if (options_.attention == Attention::flash)
      throw Error("--attn flash: memest has no flash attention over packed images", "use --attn sdpa or eager");
    const I seq_length = hidden_states.size(0);
    X query_states, key_states, value_states;
    {
      std::vector<X> parts = qkv(hidden_states).reshape({seq_length, 3, num_heads_, -1}).permute({1, 0, 2, 3}).unbind(0);
      query_states = parts[0], key_states = parts[1], value_states = parts[2];
    }
    std::tie(query_states, key_states) =
        apply_rotary_pos_emb_vision(query_states, key_states, call.position_embeddings.first, call.position_embeddings.second);
    for (X* states : {&query_states, &key_states, &value_states}) *states = states->transpose(0, 1).unsqueeze(0);
    X lengths = call.cu_seqlens.slice(0, 1, std::nullopt).sub(X(call.cu_seqlens.slice(0, std::nullopt, -1)));
    const Dims sizes(call.lengths);
    std::vector<X> queries = query_states.split(sizes, 2), keys = key_states.split(sizes, 2), values = value_states.split(sizes, 2),
                   attn_outputs;
    for (std::size_t i = 0; i < queries.size(); ++i)
      attn_outputs.push_back(attention_interface(options_, queries[i], keys[i], values[i],
                                                 {.dropout = training ? dropout_ : 0.0, .training = training, .causal = false})
                                 .first);
    X attn_output = cat(attn_outputs, 1);
    attn_output = attn_output.reshape({seq_length, -1}).contiguous();
    attn_output = proj(attn_output);
    lengths.reset();
    drop_list(attn_outputs);
    for (X* states : {&query_states, &key_states, &value_states}) states->reset();
    for (auto* list : {&queries, &keys, &values}) drop_list(*list);
    return attn_output;
  }

 private:
  Options options_;
  I num_heads_;
  double dropout_;
  Linear &qkv, &proj;
};

GridBlock::GridBlock(const Form& form, const GridVisionConfig& c, UnaryPtr mlp)
    : Base(form.type), options_(c.options), mlp_(std::move(mlp)) {
  norm1_ = register_module("norm1", make_norm(form.norm, c.hidden, form.norm_type));
  norm2_ = register_module("norm2", make_norm(form.norm, c.hidden, form.norm_type));
  attn_ = register_module("attn", std::make_shared<GridAttention>(form, c));
  register_module("mlp", mlp_);
}
X GridBlock::operator()(X hidden_states, GridCall call) {
  Entered scope(*this);
  if (checkpoints(options_, training))
    return checkpointed(options_, [this, call](const Tensors& inputs) { return Tensors{forward(X(inputs[0]), call)}; }, {hidden_states});
  X result = forward(hidden_states, call);
  hidden_states.reset();
  return result;
}
X GridBlock::forward(X hidden_states, const GridCall& call) {
  hidden_states = hidden_states.add((*attn_)((*norm1_)(hidden_states), call));
  hidden_states = hidden_states.add((*mlp_)((*norm2_)(hidden_states)));
  return hidden_states;
}

}  // namespace memest::hf
