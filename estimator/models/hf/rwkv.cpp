// models/rwkv: a linear attention by recurrence, its time steps one by one. A cache holds five states of all layers at once.
#include "models/hf/decoder.h"
#include "models/hf/generate.h"
#include "models/hf/linear_attention.h"

namespace memest::hf {
namespace {

/// state[0] is of the feed-forwards' shift, state[1] of the attentions', the others of their numerators, denominators and maxima.
constexpr std::size_t kStates = 5;
enum Place : std::size_t { kFeedForwardShift, kAttentionShift, kNumerator };

X layer_of(const X& state, I layer) { return state.whole_slices(2).select(2, layer); }
X maximum(const X& a, X b) { return aten("maximum", {Tensor(a), Tensor(std::move(b))}); }
X first_of(const X& x) { return x.whole_slices(1).select(1, 0); }

/// The time shift of both halves of a block: hidden states of the step before.
X shifted_by_one(const X& hidden, Cache* cache, I layer, Place place) {
  X* state = cache ? &cache->layer(0).states[place] : nullptr;
  if (hidden.size(1) == 1 && state) return layer_of(*state, layer);
  X shifted = aten("constant_pad_nd", {Tensor(hidden), list_of(Dims{0, 0, 1, -1}), I{0}});
  if (state) set_item(first_of(shifted), layer_of(*state, layer));
  return shifted;
}
X mixed(const X& hidden, const X& shifted, const X& time_mix) {
  X now = hidden.mul(time_mix);
  return std::move(now).add(shifted.mul(aten("rsub", {Tensor(time_mix), I{1}})));
}
void keep_last(const X& hidden, Cache* cache, I layer, Place place) {
  if (cache) set_item(layer_of(cache->layer(0).states[place], layer), hidden.whole_slices(1).select(1, -1));
}

/// rwkv_linear_attention_cpu; the numerator, denominator and maximum go back into `states`.
X rwkv_linear_attention(X time_decay, const X& time_first, const X& key, const X& value, std::vector<X>& states) {
  X output = aten("zeros_like", {Tensor(key)});
  if (states.empty()) {
    for (int i = 0; i < 3; ++i) states.push_back(aten("zeros_like", {Tensor(first_of(key))}, {{"dtype", DType::float32}}));
    states[2] = states[2].sub(1e30);
  }
  X num_state = states[0], den_state = states[1], max_state = states[2];
  states.clear();
  time_decay = time_decay.exp().neg();
  X current_key, max_for_output, e1, e2, numerator, denominator, max_for_state;
  for (I current_index = 0; current_index < key.size(1); ++current_index) {
    current_key = key.whole_slices(1).select(1, current_index).to_float();
    X current_value = value.whole_slices(1).select(1, current_index);
    max_for_output = maximum(max_state, current_key.add(time_first));
    e1 = max_state.sub(max_for_output).exp();
    e2 = current_key.add(time_first).sub(max_for_output).exp();
    X weighted = e1.mul(num_state);
    numerator = std::move(weighted).add(e2.mul(current_value));
    denominator = e1.mul(den_state).add(e2);
    set_item(output.whole_slices(1).select(1, current_index), numerator.div(denominator).to(output.dtype()));
    max_for_state = maximum(max_state.add(time_decay), current_key);
    e1 = max_state.add(time_decay).sub(max_for_state).exp();
    e2 = current_key.sub(max_for_state).exp();
    X kept = e1.mul(num_state);
    num_state = std::move(kept).add(e2.mul(current_value));
    den_state = e1.mul(den_state).add(e2);
    max_state = max_for_state;
  }
  states = {num_state, den_state, max_state};
  return output;
}

class RwkvSelfAttention final : public Base {
 public:
  RwkvSelfAttention(const DecoderConfig& c, I layer) : Base("RwkvSelfAttention"), layer_(layer) {
    const I width = c.file.size_or("attention_hidden_size", c.hidden);
    for (const char* name : {"time_decay", "time_first"}) new_parameter(name, {width});
    for (const char* name : {"time_mix_key", "time_mix_value", "time_mix_receptance"}) new_parameter(name, {1, 1, c.hidden});
    key_ = &child<Linear>("key", c.hidden, width, false);
    value_ = &child<Linear>("value", c.hidden, width, false);
    receptance_ = &child<Linear>("receptance", c.hidden, width, false);
    output_ = &child<Linear>("output", width, c.hidden, false);
  }
  X operator()(const X& hidden, Cache* cache) {
    Entered scope(*this);
    X receptance, key, value;
    {
      X shifted = shifted_by_one(hidden, cache, layer_, kAttentionShift);
      key = mixed(hidden, shifted, X(parameter(2)));
      value = mixed(hidden, shifted, X(parameter(3)));
      receptance = mixed(hidden, shifted, X(parameter(4)));
      key = (*key_)(key);
      value = (*value_)(value);
      receptance = (*receptance_)(receptance).sigmoid();
      keep_last(hidden, cache, layer_, kAttentionShift);
    }
    std::vector<X> layer_state;
    if (cache)
      for (std::size_t i = kNumerator; i < kStates; ++i) layer_state.push_back(layer_of(cache->layer(0).states[i], layer_));
    X rwkv = rwkv_linear_attention(X(parameter(0)), X(parameter(1)), key, value, layer_state);
    if (cache)
      for (std::size_t i = kNumerator; i < kStates; ++i) set_item(layer_of(cache->layer(0).states[i], layer_), layer_state[i - kNumerator]);
    else
      layer_state.clear();
    return (*output_)(receptance.mul(rwkv));
  }

 private:
  I layer_;
  Linear *key_, *value_, *receptance_, *output_;
};

class RwkvFeedForward final : public Base {
 public:
  RwkvFeedForward(const DecoderConfig& c, I layer) : Base("RwkvFeedForward"), layer_(layer) {
    const I width = c.intermediate > 0 ? c.intermediate : checked_mul(c.hidden, 4);
    for (const char* name : {"time_mix_key", "time_mix_receptance"}) new_parameter(name, {1, 1, c.hidden});
    key_ = &child<Linear>("key", c.hidden, width, false);
    receptance_ = &child<Linear>("receptance", c.hidden, c.hidden, false);
    value_ = &child<Linear>("value", width, c.hidden, false);
  }
  X operator()(const X& hidden, Cache* cache) {
    Entered scope(*this);
    X shifted = shifted_by_one(hidden, cache, layer_, kFeedForwardShift);
    X key = mixed(hidden, shifted, X(parameter(0)));
    X receptance = mixed(hidden, shifted, X(parameter(1)));
    key = X(ops::relu((*key_)(key))).pow(2);
    X value = (*value_)(key);
    receptance = (*receptance_)(receptance).sigmoid();
    keep_last(hidden, cache, layer_, kFeedForwardShift);
    return receptance.mul(value);
  }

 private:
  I layer_;
  Linear *key_, *receptance_, *value_;
};

class RwkvBlock final : public DecoderLayer {
 public:
  RwkvBlock(const DecoderConfig& c, I layer) : DecoderLayer("RwkvBlock", c.options) {
    if (layer == 0) pre_ln = &child<LayerNorm>("pre_ln", c.hidden);
    ln1 = &child<LayerNorm>("ln1", c.hidden);
    ln2 = &child<LayerNorm>("ln2", c.hidden);
    attention_ = &child<RwkvSelfAttention>("attention", c, layer);
    feed_forward_ = &child<RwkvFeedForward>("feed_forward", c, layer);
  }

 protected:
  X forward(X hidden, const LayerCall& call) override {
    if (pre_ln) hidden = (*pre_ln)(hidden);
    X attention = (*attention_)((*ln1)(hidden), call.cache);
    hidden = hidden.add(attention);
    X feed_forward = (*feed_forward_)((*ln2)(hidden), call.cache);
    hidden = hidden.add(feed_forward);
    return hidden;
  }

 private:
  LayerNorm *pre_ln = nullptr, *ln1, *ln2;
  RwkvSelfAttention* attention_;
  RwkvFeedForward* feed_forward_;
};

class RwkvModel final : public DecoderBody, public WithoutPositions {
 public:
  explicit RwkvModel(std::shared_ptr<const DecoderConfig> config)
      : DecoderBody("RwkvModel"), c_(std::move(config)), rescale_every_(c_->file.integer_or("rescale_every", 6)) {
    embeddings = &child<Embedding>("embeddings", c_->vocab, c_->hidden);
    blocks_ = add_layers("blocks", c_->layers, [&](I i) { return std::make_shared<RwkvBlock>(*c_, i); });
    ln_out = &child<LayerNorm>("ln_out", c_->hidden);
  }
  /// The first call makes the states.
  CachePtr new_generation_cache(const DecoderConfig&) const override { return std::make_shared<Cache>(); }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*embeddings)(input_ids);
    CachePtr state = training ? nullptr : new_cache(*c_, training);
    if (state && state->layer(0).states.empty()) make_states(inputs_embeds, *state);
    X hidden_states = inputs_embeds;
    for (I idx = 0; idx < c_->layers; ++idx) {
      hidden_states = (*blocks_[std::size_t(idx)])(hidden_states, {{}, {}, {}, state.get()});
      if (!training && rescale_every_ > 0 && (idx + 1) % rescale_every_ == 0) hidden_states = hidden_states.div(2);
    }
    hidden_states = (*ln_out)(hidden_states);
    return {hidden_states, state};
  }

 private:
  void make_states(const X& inputs_embeds, Cache& state) const {
    for (std::size_t i = 0; i < kStates; ++i) {
      X part = zeros({inputs_embeds.size(0), c_->hidden, c_->layers}, i <= kAttentionShift ? inputs_embeds.dtype() : DType::float32);
      if (!runtime().grad_mode) part->storage->categorize(Category::kv_cache);
      state.layer(0).states.push_back(std::move(part));
    }
  }

  std::shared_ptr<const DecoderConfig> c_;
  I rescale_every_;
  Embedding* embeddings;
  std::vector<DecoderLayerPtr> blocks_;
  LayerNorm* ln_out;
};

NetworkPtr rwkv(const Config& given, const Options& o) {
  note_torch_recurrence("kernels");
  Config config = given;
  config.set("num_attention_heads", ConfigValue{std::int64_t{1}});  // it has no heads of attention
  DecoderForm f;
  f.prefix = "Rwkv";
  f.base_prefix = "rwkv";
  f.embedding_name = "embeddings";
  f.head_name = "head";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<RwkvModel>(std::move(c));
  };
  return make_decoder(config, o, std::move(f));
}
const Family rwkv_family{{"rwkv"}, {{Task::causal_lm, "RwkvForCausalLM", rwkv}, {Task::base, "RwkvModel", rwkv}}};

}  // namespace
}  // namespace memest::hf
