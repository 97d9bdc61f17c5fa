// models/unets/unet_2d_condition.py of diffusers 0.42.1.
#include "base/text.h"
#include "models/diffusers/unet_2d_blocks.h"

namespace memest::diffusers {
namespace {

/// A field with one value for all levels, or a list of one each.
std::vector<I> per_level(const Config& c, const std::string& key, std::size_t levels) {
  const ConfigValue* value = c.find(key);
  std::vector<I> list = value && value->list() ? c.integers(key) : std::vector<I>(levels, c.size(key));
  if (list.size() != levels)
    throw c.error(
        key, "expected " + std::to_string(levels) + " entries, one for each of down_block_types, found " + std::to_string(list.size()));
  if (list.empty()) throw c.error("down_block_types", "expected at least one block");
  for (I n : list)
    if (n < 1 || n > (I(1) << 30)) throw c.error(key, "expected positive integers up to 2^30, found " + std::to_string(n));
  return list;
}

/// transformer_layers_per_block of each level: one number, one for each level, or a list for each level's layers.
std::vector<std::vector<I>> transformer_layers(const Config& c, const std::string& key, const std::vector<I>& layers) {
  const ConfigValue* value = c.find(key);
  std::vector<std::vector<I>> all;
  if (!value || !value->list()) {
    if (c.size(key) > 10'000) throw c.error(key, "expected at most 10000, found " + std::to_string(c.size(key)));
    for (I n : layers) all.emplace_back(std::size_t(n), c.size(key));
    return all;
  }
  if (value->list()->size() != layers.size())
    throw c.error(key, "expected " + std::to_string(layers.size()) + " entries, found " + std::to_string(value->list()->size()));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Config level("", ConfigValue{ConfigValue::Object{{"entry", (*value->list())[i]}}}, {}, {}, c.pointer() + "/" + key);
    const bool nested = (*value->list())[i].list() != nullptr;
    all.push_back(nested ? level.integers("entry") : std::vector<I>(std::size_t(layers[i]), level.size("entry")));
    if (I(all.back().size()) < layers[i]) throw c.error(key, "expected an entry for each of the level's layers");
    for (I n : all.back())
      if (n < 1 || n > 10'000) throw c.error(key, "expected 1 to 10000, found " + std::to_string(n));
  }
  return all;
}

bool has_attention(const Config& c, const std::string& key, const std::string& type, const char* with, const char* without) {
  if (type == with) return true;
  if (type == without) return false;
  throw c.error(key, "memest builds no block '" + type.substr(0, 60) + "'", std::string("it builds ") + with + " and " + without);
}

/// Fields whose other values name parts that memest does not build.
void only(const Config& c, const char* key, std::initializer_list<const char*> values) {
  const auto text = c.text_if(key);
  if (!text) return;
  for (auto* v : values)
    if (*text == v) return;
  throw c.error(key, "memest does not build '" + text->substr(0, 60) + "'",
                values.size() == 0 ? "it builds models without it"
                                   : "it builds " + join(std::vector<std::string>(values.begin(), values.end()), ", ") + " or none");
}

/// nn.Embedding of classes.
class ClassEmbedding final : public Module<ClassEmbedding> {
 public:
  ClassEmbedding(I count, I width) : Module("Embedding") { new_parameter("weight", {count, width}); }
  X forward(const X& indices) { return ops::embedding(parameter(0), indices, -1, false, false); }
};

class UNet2DConditionModel final : public Network {
 public:
  UNet2DConditionModel(const Config& config, const Options& options)
      : Network("UNet2DConditionModel", options),
        c_(config),
        in_channels(c_.size("in_channels")),
        out_channels(c_.size("out_channels")),
        widths(per_level(c_, "block_out_channels", c_.texts("down_block_types").size())) {
    check();
    const std::size_t levels = widths.size();
    const I kernel = c_.size("conv_in_kernel"), out_kernel = c_.size("conv_out_kernel");
    const std::string act_fn = c_.text("act_fn");
    const I groups = c_.size("norm_num_groups");
    const double eps = c_.number("norm_eps");
    conv_in = &child<Conv2d>("conv_in", in_channels, widths[0], kernel, 1, (kernel - 1) / 2);
    time_embed_dim = c_.size_or("time_embedding_dim", checked_mul(widths[0], 4));
    time_proj = &child<Timesteps>("time_proj", widths[0], c_.boolean("flip_sin_to_cos"));
    time_embedding =
        &child<TimestepEmbedding>("time_embedding", widths[0], time_embed_dim,
                                  TimestepEmbeddingForm{act_fn, c_.text_or("timestep_post_act", ""), c_.integer_if("time_cond_proj_dim")});
    cross_dims = per_level(c_, "cross_attention_dim", levels);
    if (c_.has("encoder_hid_dim")) encoder_hid_proj = &child<Linear>("encoder_hid_proj", c_.size("encoder_hid_dim"), cross_dims[0]);
    add_class_embedding(act_fn);
    if (c_.text_or("addition_embed_type", "") == "text_time") {
      add_time_proj = &child<Timesteps>("add_time_proj", c_.size("addition_time_embed_dim"), c_.boolean("flip_sin_to_cos"));
      add_embedding = &child<TimestepEmbedding>("add_embedding", c_.size("projection_class_embeddings_input_dim"), time_embed_dim);
    }
    if (c_.has("time_embedding_act_fn")) time_embed_act = &child<Activation>("time_embed_act", c_.text("time_embedding_act_fn"));

    const std::vector<std::string> down_types = c_.texts("down_block_types"), up_types = c_.texts("up_block_types");
    const std::vector<I> layers = per_level(c_, "layers_per_block", levels), heads = per_level(c_, "attention_head_dim", levels);
    const auto layers_down = transformer_layers(c_, "transformer_layers_per_block", layers);
    const bool concat = c_.boolean("class_embeddings_concat");
    UNetLevel level{.cross_attention = false,
                    .resnet = {.in_channels = 0,
                               .out_channels = 0,
                               .temb_channels = concat ? checked_mul(2, time_embed_dim) : time_embed_dim,
                               .groups = groups,
                               .eps = eps,
                               .act_fn = act_fn,
                               .dropout = c_.number("dropout"),
                               .scale_shift = c_.text("resnet_time_scale_shift") == "scale_shift"},
                    .channels = 0,
                    .transformer_layers = {},
                    .heads = 0,
                    .cross_attention_dim = 0,
                    .use_linear_projection = c_.boolean("use_linear_projection"),
                    .only_cross_attention = false,
                    .checkpoint = options.checkpoint};
    auto at = [&](std::size_t i, const std::vector<I>& transformers) {
      level.channels = widths[i];
      level.transformer_layers = transformers;
      level.heads = heads[i];
      level.cross_attention_dim = cross_dims[i];
      level.only_cross_attention = only_cross(i);
      if (level.cross_attention && widths[i] < heads[i]) throw c_.error("attention_head_dim", "there are more heads than channels");
    };
    auto down_list = register_module("down_blocks", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
    auto up_list = register_module("up_blocks", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
    for (std::size_t i = 0; i < levels; ++i) {
      level.cross_attention = has_attention(c_, "down_block_types", down_types[i], "CrossAttnDownBlock2D", "DownBlock2D");
      at(i, layers_down[i]);
      down_blocks.push_back(
          std::make_shared<UNetDownBlock>(level, layers[i], widths[i ? i - 1 : 0], i + 1 < levels, c_.integer("downsample_padding")));
      down_list->append(down_blocks.back());
    }
    add_mid_block(level, [&] { at(levels - 1, {layers_down.back()[0]}); });
    std::vector<I> layers_up(layers.rbegin(), layers.rend());
    for (I& n : layers_up) ++n;
    const ConfigValue* listed = c_.find("transformer_layers_per_block");
    if (listed && listed->list() && listed->list()->front().list() && !c_.has("reverse_transformer_layers_per_block"))
      throw c_.error("reverse_transformer_layers_per_block", "a list for each level in transformer_layers_per_block needs this field too");
    auto transformers_up = c_.has("reverse_transformer_layers_per_block")
                               ? transformer_layers(c_, "reverse_transformer_layers_per_block", layers_up)
                               : std::vector<std::vector<I>>(layers_down.rbegin(), layers_down.rend());
    for (std::size_t i = 0; i < levels; ++i) {
      const std::size_t mirrored = levels - 1 - i;
      level.cross_attention = has_attention(c_, "up_block_types", up_types[i], "CrossAttnUpBlock2D", "UpBlock2D");
      transformers_up[i].resize(std::size_t(layers_up[i]), transformers_up[i].back());
      at(mirrored, transformers_up[i]);
      up_blocks.push_back(std::make_shared<UNetUpBlock>(level, layers_up[i], widths[mirrored ? mirrored - 1 : 0],
                                                        widths[std::min(mirrored + 1, levels - 1)], i + 1 < levels));
      up_list->append(up_blocks.back());
    }
    if (mid_block) register_module("mid_block", mid_block);
    if (plain_mid_block) register_module("mid_block", plain_mid_block);
    conv_norm_out = &child<GroupNorm>("conv_norm_out", groups, widths[0], eps);
    conv_act = &child<Activation>("conv_act", act_fn);
    conv_out = &child<Conv2d>("conv_out", widths[0], out_channels, out_kernel, 1, (out_kernel - 1) / 2);
  }

  std::vector<std::pair<std::string, I>> default_sizes() const override {
    const ConfigValue* size = c_.find("sample_size");
    const std::vector<I> sides = size && size->list() ? c_.integers("sample_size") : std::vector<I>(2, c_.size_or("sample_size", 64));
    if (sides.size() != 2 || sides[0] < 1 || sides[1] < 1) throw c_.error("sample_size", "expected one or two positive integers");
    return {{"height", checked_mul(8, sides[0])}, {"width", checked_mul(8, sides[1])}, {"seq", 77}};
  }

 protected:
  std::vector<nn::InputSpec> arguments() const override {
    const nn::SizeExpression batch("batch"), seq("seq");
    std::vector<nn::InputSpec> list{
        {"sample", {batch, number(in_channels), latent("height"), latent("width")}, DType::float32},
        {"timestep", {batch}, DType::int64},
        {"encoder_hidden_states", {batch, seq, number(c_.size_or("encoder_hid_dim", cross_dims[0]))}, DType::float32}};
    if (class_labels_) list.push_back(*class_labels_);
    if (c_.has("time_cond_proj_dim")) list.push_back({"timestep_cond", {batch, number(c_.size("time_cond_proj_dim"))}, DType::float32});
    if (add_embedding) {
      list.push_back({"text_embeds", {batch, number(text_embed_dim())}, DType::float32});
      list.push_back({"time_ids", {batch, number(6)}, DType::float32});
    }
    return list;
  }
  std::vector<nn::SizeExpression> target() const override {
    return {nn::SizeExpression("batch"), number(out_channels), latent("height"), latent("width")};
  }

  X sample(const std::vector<X>& arguments) override {
    std::size_t next = 0;
    X sample = arguments[next++], timestep = arguments[next++], encoder_hidden_states = arguments[next++];
    const X class_labels = class_labels_ ? arguments[next++] : X(), timestep_cond = c_.has("time_cond_proj_dim") ? arguments[next++] : X();
    const X text_embeds = add_embedding ? arguments[next++] : X(), time_ids = add_embedding ? arguments[next] : X();

    const I factor = I(1) << (widths.size() - 1);
    const bool forward_upsample_size = sample.size(2) % factor != 0 || sample.size(3) % factor != 0;
    if (c_.boolean("center_input_sample")) sample = sample.mul(2).sub(1.0);
    X t_emb = get_time_embed(sample, timestep);
    X emb = (*time_embedding)(t_emb, timestep_cond);
    X class_emb;
    if (class_labels) {
      class_emb = get_class_embed(sample, class_labels);
      emb = c_.boolean("class_embeddings_concat") ? cat({emb, class_emb}, -1) : emb.add(class_emb);
    }
    X aug_emb;
    if (add_embedding) {
      aug_emb = get_aug_embed(emb, text_embeds, time_ids);
      emb = emb.add(aug_emb);
    }
    if (time_embed_act) emb = (*time_embed_act)(emb);
    if (encoder_hid_proj) encoder_hidden_states = (*encoder_hid_proj)(encoder_hidden_states);
    sample = (*conv_in)(sample);

    std::vector<X> down_block_res_samples{sample}, res_samples;
    for (auto& downsample_block : down_blocks) {
      std::tie(sample, res_samples) = (*downsample_block)(sample, emb, encoder_hidden_states);
      down_block_res_samples.insert(down_block_res_samples.end(), res_samples.begin(), res_samples.end());
    }
    if (mid_block) sample = (*mid_block)(sample, emb, encoder_hidden_states);
    if (plain_mid_block) sample = (*plain_mid_block)(sample, emb);
    for (std::size_t i = 0; i < up_blocks.size(); ++i) {
      const auto first = down_block_res_samples.end() - std::ptrdiff_t(up_blocks[i]->layers());
      std::vector<X> last(first, down_block_res_samples.end());
      drop(res_samples);
      res_samples = std::move(last);
      down_block_res_samples.erase(first, down_block_res_samples.end());
      Dims upsample_size;
      if (forward_upsample_size && i + 1 < up_blocks.size())
        upsample_size = Dims{down_block_res_samples.back().size(2), down_block_res_samples.back().size(3)};
      sample = (*up_blocks[i])(sample, res_samples, emb, encoder_hidden_states, upsample_size);
    }
    sample = (*conv_norm_out)(sample);
    sample = (*conv_act)(sample);
    sample = (*conv_out)(sample);
    sample = leave(sample, encoder_hidden_states, t_emb, emb, class_emb, aug_emb);
    drop(res_samples);
    return sample;
  }

 private:
  void check() const {
    only(c_, "time_embedding_type", {"positional"});
    only(c_, "encoder_hid_dim_type", {"text_proj"});
    only(c_, "addition_embed_type", {"text_time"});
    only(c_, "class_embed_type", {"timestep", "projection", "simple_projection"});
    only(c_, "attention_type", {"default"});
    only(c_, "cross_attention_norm", {});
    only(c_, "resnet_time_scale_shift", {"default", "scale_shift"});
    only(c_, "mid_block_type", {"UNetMidBlock2DCrossAttn", "UNetMidBlock2D"});
    if (c_.boolean("dual_cross_attention")) throw c_.error("dual_cross_attention", "memest builds no dual cross-attention");
    if (c_.has("num_attention_heads"))
      throw c_.error("num_attention_heads", "diffusers does not take this field", "attention_head_dim is the number of heads");
    if (const auto up = c_.texts("up_block_types").size(); up != widths.size())
      throw c_.error("up_block_types",
                     "expected " + std::to_string(widths.size()) + " entries, as down_block_types has, found " + std::to_string(up));
    if (widths.size() > 20) throw c_.error("down_block_types", "expected at most 20 entries, found " + std::to_string(widths.size()));
    for (const char* key : {"layers_per_block", "attention_head_dim"})
      for (I n : per_level(c_, key, widths.size()))
        if (n > 10'000) throw c_.error(key, "expected at most 10000, found " + std::to_string(n));
  }
  bool only_cross(std::size_t i) const {
    const ConfigValue* value = c_.find("only_cross_attention");
    if (!value || !value->list()) return c_.boolean_or("only_cross_attention", false);
    const auto* flag = i < value->list()->size() ? std::get_if<bool>(&(*value->list())[i].value) : nullptr;
    if (!flag || value->list()->size() != widths.size())
      throw c_.error("only_cross_attention", "expected true, false or a list of one of them for each level");
    return *flag;
  }
  void add_class_embedding(const std::string& act_fn) {
    const nn::SizeExpression batch("batch");
    const std::string type = c_.text_or("class_embed_type", "");
    if (type.empty() && !c_.has("num_class_embeds")) return;
    if (type.empty()) {
      class_table = &child<ClassEmbedding>("class_embedding", c_.size("num_class_embeds"), time_embed_dim);
    } else if (type == "timestep") {
      class_embedding = &child<TimestepEmbedding>("class_embedding", widths[0], time_embed_dim, TimestepEmbeddingForm{act_fn});
    } else {
      const I width = c_.size("projection_class_embeddings_input_dim");
      if (type == "projection")
        class_embedding = &child<TimestepEmbedding>("class_embedding", width, time_embed_dim);
      else
        class_projection = &child<Linear>("class_embedding", width, time_embed_dim);
      class_labels_ = nn::InputSpec{"class_labels", {batch, number(width)}, DType::float32};
      return;
    }
    class_labels_ = nn::InputSpec{"class_labels", {batch}, DType::int64};
  }
  template <class F>
  void add_mid_block(UNetLevel& level, F place) {
    const auto type = c_.text_if("mid_block_type");
    if (!type) return;
    level.cross_attention = *type == "UNetMidBlock2DCrossAttn";
    place();
    level.only_cross_attention = false;
    level.resnet.in_channels = level.resnet.out_channels = level.channels;
    if (level.cross_attention)
      mid_block = std::make_shared<UNetMidBlock>(level);
    else
      plain_mid_block = std::make_shared<UNetMidBlock2D>(level.resnet, 0, false, level.checkpoint);
  }
  I text_embed_dim() const {
    const I rest = c_.size("projection_class_embeddings_input_dim") - checked_mul(6, c_.size("addition_time_embed_dim"));
    if (rest < 1)
      throw c_.error("projection_class_embeddings_input_dim", "expected more than 6 times addition_time_embed_dim, the six time_ids");
    return rest;
  }

  /// A tuple lets go of its last member first.
  static void drop(std::vector<X>& tuple) {
    while (!tuple.empty()) tuple.pop_back();
  }
  X get_time_embed(const X& sample, X timesteps) {
    timesteps = timesteps.expand({sample.size(0)});
    X t_emb = (*time_proj)(timesteps);
    t_emb = t_emb.to(sample.dtype());
    return t_emb;
  }
  X get_class_embed(const X& sample, X class_labels) {
    if (class_table) return (*class_table)(class_labels).to(sample.dtype());
    if (class_projection) return (*class_projection)(class_labels).to(sample.dtype());
    if (c_.text("class_embed_type") == "timestep") {
      class_labels = (*time_proj)(class_labels);
      class_labels = class_labels.to(sample.dtype());
    }
    return (*class_embedding)(class_labels).to(sample.dtype());
  }
  X get_aug_embed(const X& emb, const X& text_embeds, const X& time_ids) {
    X time_embeds = (*add_time_proj)(time_ids.flatten(0));
    time_embeds = time_embeds.reshape({text_embeds.size(0), -1});
    X add_embeds = cat({text_embeds, time_embeds}, -1);
    add_embeds = add_embeds.to(emb.dtype());
    X aug_emb = (*add_embedding)(add_embeds);
    return leave(aug_emb, time_embeds, add_embeds);
  }

  const Config c_;
  const I in_channels, out_channels;
  const std::vector<I> widths;
  std::vector<I> cross_dims;
  I time_embed_dim = 0;
  std::optional<nn::InputSpec> class_labels_;
  Conv2d *conv_in, *conv_out;
  Timesteps *time_proj, *add_time_proj = nullptr;
  TimestepEmbedding *time_embedding, *class_embedding = nullptr, *add_embedding = nullptr;
  ClassEmbedding* class_table = nullptr;
  Linear *class_projection = nullptr, *encoder_hid_proj = nullptr;
  Activation *time_embed_act = nullptr, *conv_act;
  std::vector<std::shared_ptr<UNetDownBlock>> down_blocks;
  std::vector<std::shared_ptr<UNetUpBlock>> up_blocks;
  std::shared_ptr<UNetMidBlock> mid_block;
  std::shared_ptr<UNetMidBlock2D> plain_mid_block;
  GroupNorm* conv_norm_out;
};

const ModelClass unet{"UNet2DConditionModel", make_class<UNet2DConditionModel>};

}  // namespace
}  // namespace memest::diffusers
