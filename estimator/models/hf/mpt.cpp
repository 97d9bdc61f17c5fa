// models/mpt/modeling_mpt.py: attention with ALiBi only, norms and projections without biases.
#include "models/hf/block.h"
#include "models/hf/generate.h"
#include "models/hf/loss.h"

namespace memest::hf {
namespace {

Config attention_section(const DecoderConfig& c) {
  auto section = c.file.section_if("attn_config");
  return section ? *section : Config();
}

class MptAttention final : public Module<MptAttention> {
 public:
  MptAttention(const DecoderConfig& c, const Config& attention, I layer)
      : Module("MptAttention"),
        layer_(layer),
        heads_(c.heads),
        head_dim_(c.head_dim),
        dropout_(attention.number_or("attn_pdrop", 0.0)),
        clip_qkv_(attention.number_or("clip_qkv", 0.0)),
        Wqkv(child<Linear>("Wqkv", c.hidden, 3 * c.hidden, false)),
        out_proj(child<Linear>("out_proj", c.hidden, c.hidden, false)) {}
  Pair forward(X hidden_states, X position_bias, const BlockCall* call) {
    const I batch = hidden_states.size(0), length = hidden_states.size(1);
    X mixed_qkv = Wqkv(hidden_states);
    if (clip_qkv_ != 0) mixed_qkv = aten("clamp", {Tensor(mixed_qkv), -clip_qkv_, clip_qkv_});
    std::vector<X> parts = mixed_qkv.chunk(3, 2);
    X query_states = parts[0], key_states = parts[1], value_states = parts[2];
    parts.clear();
    for (X* x : {&query_states, &key_states, &value_states}) *x = x->reshape({batch, length, heads_, head_dim_}).transpose(1, 2);
    if (call->cache) std::tie(key_states, value_states) = call->cache->update(key_states, value_states, layer_);
    X attention_scores = query_states.matmul(key_states.transpose(-1, -2)).mul(0.125);
    const I key_index = std::max<I>(0, position_bias.size(2) - key_states.size(-2));
    position_bias = position_bias.slice(2, key_index, std::nullopt);
    attention_scores = attention_scores.add(position_bias);
    if (call->mask) attention_scores = aten("masked_fill", {Tensor(attention_scores), Tensor(call->mask), -1e30});
    X attn_weights = attention_scores.to_float().softmax(-1).to(value_states.dtype());
    attn_weights = ops::dropout(attn_weights, dropout_, training);
    X context_states = attn_weights.matmul(value_states);
    context_states = context_states.permute({0, 2, 1, 3}).contiguous().view({batch, length, -1});
    X attn_output = out_proj(context_states);
    return {attn_output, attn_weights};
  }

 private:
  I layer_, heads_, head_dim_;
  double dropout_, clip_qkv_;
  Linear &Wqkv, &out_proj;
};

class MptMLP final : public Module<MptMLP> {
 public:
  MptMLP(const DecoderConfig& c, double dropout)
      : Module("MptMLP"),
        up_proj(child<Linear>("up_proj", c.hidden, 4 * c.hidden, false)),
        act(child<Activation>("act", "gelu")),
        down_proj(child<Linear>("down_proj", 4 * c.hidden, c.hidden, false)),
        dropout_(dropout) {}
  X forward(X hidden_states, X residual) {
    hidden_states = act(up_proj(hidden_states));
    X intermediate_output = down_proj(hidden_states);
    X output = ops::dropout(intermediate_output, dropout_, training);
    output = output.add(residual);
    return output;
  }

 private:
  Linear& up_proj;
  Activation& act;
  Linear& down_proj;
  double dropout_;
};

class MptBlock final : public DecoderBlock {
 public:
  MptBlock(const DecoderConfig& c, const Config& attention, I layer) : DecoderBlock("MptBlock", c.options) {
    const double dropout = attention.number_or("attn_pdrop", 0.0);
    norm_1 = &child<LayerNorm>("norm_1", c.hidden, 1e-5, true, false);
    attn = &child<MptAttention>("attn", c, attention, layer);
    norm_2 = &child<LayerNorm>("norm_2", c.hidden, 1e-5, true, false);
    ffn = &child<MptMLP>("ffn", c, dropout);
    resid_attn_dropout = &child<Dropout>("resid_attn_dropout", dropout);
  }

 protected:
  Pair forward(X hidden_states, const BlockCall& call) override {
    X layernorm_output = (*norm_1)(hidden_states);
    X residual = hidden_states;
    auto [attn_outputs, attn_weights] = (*attn)(layernorm_output, call.alibi, &call);
    hidden_states = (*resid_attn_dropout)(attn_outputs).add(residual);
    layernorm_output = (*norm_2)(hidden_states);
    residual = hidden_states;
    X output = (*ffn)(layernorm_output, residual);
    return {output, attn_weights};
  }

 private:
  LayerNorm *norm_1, *norm_2;
  MptAttention* attn;
  MptMLP* ffn;
  Dropout* resid_attn_dropout;
};

class MptModel final : public BlockModel, public WithoutPositions {
 public:
  explicit MptModel(const std::shared_ptr<const DecoderConfig>& c) : BlockModel("MptModel", c), positions_(c->file.size("max_seq_len")) {
    check_heads(*c);
    const Config attention = attention_section(*c);
    wte = &child<Embedding>("wte", c->vocab, c->hidden);
    add_blocks("blocks", [&](I i) { return std::make_shared<MptBlock>(*c, attention, i); });
    norm_f = &child<LayerNorm>("norm_f", c->hidden, 1e-5, true, false);
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    if (input_ids.size(1) > positions_)
      throw Error("--seq: " + std::to_string(input_ids.size(1)) + " is above max_seq_len, for which the bias is made",
                  "at most " + std::to_string(positions_));
    X inputs_embeds = (*wte)(input_ids);
    CachePtr cache = new_cache(*c_, training);
    X hidden_states = inputs_embeds;
    X alibi = build_mpt_alibi_tensor();
    X causal_mask = create_causal_mask({c_->options, inputs_embeds, cache.get()}).to(DType::boolean);
    Pair outputs;
    hidden_states = run_blocks(std::move(hidden_states), {causal_mask, alibi, {}, {}, cache.get()}, outputs);
    hidden_states = (*norm_f)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  X build_mpt_alibi_tensor() const {
    const I heads = c_->heads;
    X alibi = arange(positions_, DType::int32).view({1, 1, 1, positions_});
    I power = 1;
    while (power < heads) power *= 2;
    X base = arange(power).to_float();
    base = base.mul(8.0);
    X powers = aten("pow", {I{2}, Tensor(base)});
    X slopes = aten("reciprocal", {Tensor(std::move(powers))}).mul(1.0);
    slopes = slopes.view({1, power, 1, 1});
    if (power != heads) slopes = cat({slopes.slice(1, 1, std::nullopt, 2), slopes.slice(1, 0, std::nullopt, 2)}, 1).slice(1, 0, heads);
    alibi = alibi.mul(slopes);
    return leave(alibi.squeeze(0), alibi, base, slopes);
  }

  I positions_;
  Embedding* wte;
  LayerNorm* norm_f;
};

NetworkPtr mpt(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "Mpt";
  f.base_prefix = "transformer";
  f.token_classifier_name = "classifier";
  f.token_classification_loss = flat_cross_entropy;
  f.embedding_name = "wte";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) { return std::make_shared<MptModel>(c); };
  return make_decoder(config, eager_only(o), std::move(f));
}
const Family mpt_family{{"mpt"}, decoder_classes("Mpt", mpt, {Task::token_cls, Task::question_answering})};

}  // namespace
}  // namespace memest::hf
