// models/gpt_neo/modeling_gpt_neo.py: its own attention, whatever the implementation; what a layer masks is a buffer of its own.
#include "models/hf/block.h"
#include "models/hf/loss.h"
#include "models/hf/release.h"

namespace memest::hf {
namespace {

class GPTNeoSelfAttention final : public Module<GPTNeoSelfAttention> {
 public:
  GPTNeoSelfAttention(const DecoderConfig& c, I layer)
      : Module("GPTNeoSelfAttention"), layer_(layer), heads_(c.heads), head_dim_(c.head_dim) {
    const I positions = c.file.size("max_position_embeddings");
    new_buffer("bias", {1, 1, positions, positions}, DType::boolean);
    if (release().gpt_neo_registers_mask_value()) new_buffer("masked_bias", {}, runtime().default_dtype);
    attn_dropout = &child<Dropout>("attn_dropout", c.attention_dropout);
    resid_dropout = &child<Dropout>("resid_dropout", c.file.number_or("resid_dropout", 0.0));
    k_proj = &child<Linear>("k_proj", c.hidden, c.hidden, false);
    v_proj = &child<Linear>("v_proj", c.hidden, c.hidden, false);
    q_proj = &child<Linear>("q_proj", c.hidden, c.hidden, false);
    out_proj = &child<Linear>("out_proj", c.hidden, c.hidden, true);
  }
  Pair forward(X hidden_states, const BlockCall* call) {
    X query = (*q_proj)(hidden_states);
    X key = (*k_proj)(hidden_states);
    X value = (*v_proj)(hidden_states);
    for (X* x : {&query, &key, &value}) *x = x->view(x->sizes().slice(0, 2) + Dims{heads_, head_dim_}).permute({0, 2, 1, 3});
    if (call->cache) std::tie(key, value) = call->cache->update(key, value, layer_);
    auto [attn_output, attn_weights] = attend(query, key, value, call->mask);
    X merged = attn_output.permute({0, 2, 1, 3}).contiguous();
    attn_output = merged.view(merged.sizes().slice(0, 2) + Dims{heads_ * head_dim_});
    merged.reset();
    attn_output = (*out_proj)(attn_output);
    attn_output = (*resid_dropout)(attn_output);
    return {attn_output, attn_weights};
  }

 private:
  Pair attend(const X& given_query, const X& given_key, const X& value, const X& attention_mask) {
    X query = given_query.to(DType::float32);
    X key = given_key.to(DType::float32);
    X attn_weights = query.matmul(key.transpose(-1, -2));
    const I query_length = query.size(-2), key_length = key.size(-2);
    X causal_mask = X(buffer(0)).slice(2, key_length - query_length, key_length).slice(3, std::nullopt, key_length);
    X mask_value = empty({}, attn_weights.dtype());
    attn_weights = where(causal_mask, attn_weights, mask_value);
    if (attention_mask) attn_weights = attn_weights.add(attention_mask);
    attn_weights = attn_weights.softmax(-1);
    attn_weights = attn_weights.to(value.dtype());
    attn_weights = (*attn_dropout)(attn_weights);
    X attn_output = attn_weights.matmul(value);
    return leave(Pair{attn_output, attn_weights}, query, key, causal_mask, mask_value);
  }

  I layer_, heads_, head_dim_;
  Dropout *attn_dropout, *resid_dropout;
  Linear *k_proj, *v_proj, *q_proj, *out_proj;
};

class GPTNeoAttention final : public Module<GPTNeoAttention> {
 public:
  GPTNeoAttention(const DecoderConfig& c, I layer)
      : Module("GPTNeoAttention"), attention(child<GPTNeoSelfAttention>("attention", c, layer)) {}
  Pair forward(X hidden_states, const BlockCall* call) { return attention(hidden_states, call); }

 private:
  GPTNeoSelfAttention& attention;
};

class GPTNeoMLP final : public Unary {
 public:
  explicit GPTNeoMLP(const DecoderConfig& c) : Unary("GPTNeoMLP") {
    const I width = c.file.size_or("intermediate_size", 4 * c.hidden);
    c_fc = &child<Linear>("c_fc", c.hidden, width);
    c_proj = &child<Linear>("c_proj", width, c.hidden);
    act = &child<Activation>("act", c.file.text_or("activation_function", "gelu_new"));
    dropout = &child<Dropout>("dropout", c.file.number_or("resid_dropout", 0.0));
  }

 protected:
  X forward(X hidden_states) override {
    hidden_states = (*c_fc)(hidden_states);
    hidden_states = (*act)(hidden_states);
    hidden_states = (*c_proj)(hidden_states);
    hidden_states = (*dropout)(hidden_states);
    return hidden_states;
  }

 private:
  Linear *c_fc, *c_proj;
  Activation* act;
  Dropout* dropout;
};

class GPTNeoBlock final : public DecoderBlock {
 public:
  GPTNeoBlock(const DecoderConfig& c, I layer) : DecoderBlock("GPTNeoBlock", c.options) {
    ln_1 = &child<LayerNorm>("ln_1", c.hidden);
    attn = &child<GPTNeoAttention>("attn", c, layer);
    ln_2 = &child<LayerNorm>("ln_2", c.hidden);
    mlp_ = register_module("mlp", std::make_shared<GPTNeoMLP>(c));
  }

 protected:
  Pair forward(X hidden_states, const BlockCall& call) override {
    X residual = hidden_states;
    hidden_states = (*ln_1)(hidden_states);
    auto [attn_output, attn_weights] = (*attn)(hidden_states, &call);
    hidden_states = attn_output.add(residual);
    residual = hidden_states;
    hidden_states = (*ln_2)(hidden_states);
    X feed_forward_hidden_states = (*mlp_)(hidden_states);
    hidden_states = residual.add(feed_forward_hidden_states);
    return {hidden_states, attn_weights};
  }

 private:
  LayerNorm *ln_1, *ln_2;
  GPTNeoAttention* attn;
  UnaryPtr mlp_;
};

/// GPTNeoConfig.expand_attention_types_params: a kind for each layer, global or local; both cost the same.
void check_attention_types(const Config& config) {
  const ConfigValue* types = config.find("attention_types");
  I count = 0;
  if (!types || types->is_null()) {
    count = 24;
  } else {
    const auto wrong = [&] { return config.error("attention_types", "expected a list like [[[\"global\", \"local\"], 12]]"); };
    if (!types->list()) throw wrong();
    for (auto& item : *types->list()) {
      if (!item.list() || item.list()->size() != 2 || !(*item.list())[0].list()) throw wrong();
      const auto* times = std::get_if<std::int64_t>(&(*item.list())[1].value);
      if (!times || *times < 0 || *times > 10'000) throw wrong();
      for (auto& kind : *(*item.list())[0].list()) {
        const auto* name = std::get_if<std::string>(&kind.value);
        if (!name || (*name != "global" && *name != "local"))
          throw config.error("attention_types", "the kinds are global and local, found " + kind.describe());
        count += *times;
      }
    }
  }
  if (count != layer_count(config))
    throw config.error("attention_types",
                       "it names " + std::to_string(count) + " layers, and num_layers is " + std::to_string(layer_count(config)),
                       "give as many kinds as layers, as in [[[\"global\", \"local\"], 12]] for 24");
}

class GPTNeoModel final : public BlockModel {
 public:
  explicit GPTNeoModel(const std::shared_ptr<const DecoderConfig>& c) : BlockModel("GPTNeoModel", c) {
    check_heads(*c);
    wte = &child<Embedding>("wte", c->vocab, c->hidden);
    wpe = &child<Embedding>("wpe", c->file.size("max_position_embeddings"), c->hidden);
    drop = &child<Dropout>("drop", c->file.number_or("embed_dropout", 0.0));
    add_blocks("h", [&](I i) { return std::make_shared<GPTNeoBlock>(*c, i); });
    ln_f = &child<LayerNorm>("ln_f", c->hidden);
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*wte)(input_ids);
    CachePtr cache = new_cache(*c_, training);
    X position_ids = default_position_ids(inputs_embeds);
    X causal_mask = create_causal_mask({c_->options, inputs_embeds, cache.get(), position_ids});
    X position_embeds = (*wpe)(position_ids);
    X hidden_states = inputs_embeds.add(position_embeds);
    hidden_states = (*drop)(hidden_states);
    const Dims output_shape{-1, inputs_embeds.size(1), hidden_states.size(-1)};
    Pair outputs;
    hidden_states = run_blocks(std::move(hidden_states), {causal_mask, {}, {}, {}, cache.get()}, outputs);
    hidden_states = (*ln_f)(hidden_states);
    hidden_states = hidden_states.view(output_shape);
    return {hidden_states, cache};
  }

 private:
  Embedding *wte, *wpe;
  Dropout* drop;
  LayerNorm* ln_f;
};

NetworkPtr gpt_neo(const Config& config, const Options& o) {
  check_attention_types(config);
  DecoderForm f;
  f.prefix = "GPTNeo";
  f.base_prefix = "transformer";
  f.token_classifier_name = "classifier";
  f.token_classification_loss = flat_cross_entropy;
  f.embedding_name = "wte";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) { return std::make_shared<GPTNeoModel>(c); };
  return make_decoder(config, eager_only(o), std::move(f));
}
const Family gpt_neo_family{{"gpt_neo"}, decoder_classes("GPTNeo", gpt_neo, {Task::token_cls, Task::question_answering})};

}  // namespace
}  // namespace memest::hf
