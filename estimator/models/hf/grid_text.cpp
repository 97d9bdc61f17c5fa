#include "models/hf/grid_text.h"

#include <algorithm>

#include "models/hf/composite.h"
#include "models/hf/loss.h"
#include "models/hf/multimodal.h"
#include "ops/indexing.h"

namespace memest::hf {
namespace {

/// A sample's tokens: text before its images, two tokens between them, text behind. Qwen's chat template puts 15 tokens before the first
/// image: the system's turn and the beginning of the user's.
struct Layout {
  static constexpr I kBefore = 15, kBetween = 2;
  Layout(I seq, I images, I tokens) : between(images > 1 ? kBetween : 0) {
    const I text = seq - checked_mul(images, tokens) - checked_mul(std::max<I>(images - 1, 0), between);
    before = std::min(kBefore, text);
    behind = text - before;
  }
  I before, between, behind;
};

class GridTextModel final : public Base {
 public:
  GridTextModel(const Options& options, const GridTextForm& form, std::shared_ptr<GridTower> visual, const DecoderParts& text)
      : Base(form.prefix + "Model"), form_(form), images_(options.images) {
    visual_ = register_module("visual", std::move(visual));
    language_model_ = register_module("language_model", make_decoder_body(text));
  }
  const GridTower& visual() const { return *visual_; }

  /// What get_image_features returns; its pooler_output is a tensor for each image.
  struct Features {
    GridFeatures outputs;
    std::vector<X> image_embeds;
    explicit operator bool() const { return bool(outputs.last_hidden_state); }
  };
  struct Output {
    X last_hidden_state;
    CachePtr cache;
    Features image_outputs;
    void collect(Values& into) const {
      if (cache) cache->collect(into);
      if (image_outputs) into.emplace_back(Tensor(image_outputs.outputs.last_hidden_state));
      for (auto& x : image_outputs.image_embeds) into.emplace_back(Tensor(x));
      for (auto& x : image_outputs.outputs.deepstack_features) into.emplace_back(Tensor(x));
    }
  };
  Output operator()(const Batch& batch, const Grid& grid) {
    Entered scope(*this);
    X inputs_embeds = language_model_->embed(batch.input);
    Output output;
    X image_embeds, image_mask, video_mask, position_ids = batch.position_ids;
    const bool prompt = !batch.cache || batch.cache->seen(batch.cache->first_layer(false)) == 0;
    if (mm_encoder_outputs && prompt)
      output.image_outputs = mm_encoder_outputs;
    else if (batch.pixel_values)
      output.image_outputs = get_image_features(batch, grid);
    if (const Features& image = output.image_outputs) {
      image_embeds = cat(image.image_embeds, 0).to(inputs_embeds.dtype());
      std::tie(image_mask, video_mask) = get_placeholder_mask(batch.input, inputs_embeds, image_embeds);
      inputs_embeds = aten("masked_scatter", {Tensor(inputs_embeds), Tensor(image_mask), Tensor(image_embeds)});
      if (auto* text = dynamic_cast<MropeTextModel*>(language_model_.get()); text && !image.outputs.deepstack_features.empty()) {
        image_mask = image_mask.select(-1, 0);
        MropeTextModel::Deepstack deepstack{image_mask, {}, checked_mul(grid.images, grid.tokens())};
        const I layers = I(image.outputs.deepstack_features.size()) / grid.images;
        for (I i = 0; i < layers; ++i) {
          const auto first = image.outputs.deepstack_features.begin() + i * grid.images;
          deepstack.visual_embeds.push_back(cat(std::vector<X>(first, first + grid.images), 0));
        }
        text->set_deepstack(std::move(deepstack));
      }
      if (!position_ids) std::tie(position_ids, rope_deltas_) = get_rope_index(batch.input, argument(batch, "image_grid_thw"), grid);
    }
    std::tie(output.last_hidden_state, output.cache) = (*language_model_)(inputs_embeds, position_ids, batch.cache);
    for (X* local : {&position_ids, &inputs_embeds, &image_embeds, &image_mask, &video_mask}) local->reset();
    return output;
  }

  Features get_image_features(const Batch& batch, const Grid& grid) {
    const X& image_grid_thw = argument(batch, "image_grid_thw");
    Features features;
    features.outputs = (*visual_)(batch.pixel_values, image_grid_thw, grid);
    {  // split_sizes
      X counts = aten("prod", {Tensor(image_grid_thw), I{-1}});
      X sizes = aten("floor_divide", {Tensor(counts), grid.merge * grid.merge});
      counts.reset();
    }
    const Dims split_sizes = Dims::filled(int(grid.images), grid.tokens());
    features.image_embeds = std::exchange(features.outputs.pooler_output, {}).split(split_sizes, 0);
    std::vector<X> parts;
    for (auto& feature : features.outputs.deepstack_features)
      for (auto& part : feature.split(split_sizes, 0)) parts.push_back(part);
    features.outputs.deepstack_features = std::move(parts);
    return features;
  }
  /// _prepare_position_ids_for_generation: positions of the text before those of time, height and width.
  X generation_positions(const Batch& batch, const X& text_positions, const X& attention_mask, const Grid& grid) {
    X vision_positions;
    if (batch.pixel_values) {
      { X any_type = aten("any", {Tensor(argument(batch, "mm_token_type_ids"))}); }
      std::tie(vision_positions, rope_deltas_) = get_rope_index(batch.input, argument(batch, "image_grid_thw"), grid, attention_mask);
    } else {
      vision_positions = text_positions.unsqueeze(0).expand({3, -1, -1});
      rope_deltas_ = zeros({batch.input.size(0), 1}, DType::int64);
    }
    return leave(cat({text_positions.unsqueeze(0), vision_positions}, 0), vision_positions);
  }
  DecoderBody& language_model() { return *language_model_; }
  Features mm_encoder_outputs;  ///< of generate()

 private:
  static const X& argument(const Batch& batch, const std::string& name) {
    for (auto& [key, x] : batch.others)
      if (key == name) return x;
    throw Error("the call has no " + name);
  }

  static Pair get_placeholder_mask(const X& input_ids, const X& inputs_embeds, const X& image_features) {
    X special_image_mask = aten("eq", {Tensor(input_ids), I{0}});
    X special_video_mask = aten("eq", {Tensor(input_ids), I{0}});
    X n_image_tokens = aten("sum", {Tensor(special_image_mask)});
    special_image_mask = special_image_mask.unsqueeze(-1);
    {  // torch_compilable_check (utils/import_utils.py)
      X cond = n_image_tokens.mul(inputs_embeds.size(-1));
      cond = aten("eq", {Tensor(cond), image_features.numel()});
      aten("all", {Tensor(cond)});
    }
    X n_video_tokens = aten("sum", {Tensor(special_video_mask)});
    special_video_mask = special_video_mask.unsqueeze(-1);
    return leave(Pair{special_image_mask, special_video_mask}, n_image_tokens, n_video_tokens);
  }

  /// The method of that name: [3, tokens] of one image from `start_position` on.
  X get_vision_position_ids(const Grid& grid, const X& start_position) const {
    auto shifted = [&](I count) { return start_position ? arange(count).add(start_position) : arange(count).add(0); };
    X position_temporal = (form_.float_interval ? arange(1).mul(1.0) : arange(1).mul(I{1})).to(DType::int64);
    X position_height = shifted(grid.height / grid.merge);
    X position_width = shifted(grid.width / grid.merge);
    std::vector<X> grids = X::list(Unbox<Tensors>::from(
        call_op("aten::meshgrid", {make_list({Tensor(position_temporal), Tensor(position_height), Tensor(position_width)})},
                {{"indexing", std::string("ij")}})));
    X vision_position_ids = stack(grids, 0).reshape({3, -1});
    return leave(std::move(vision_position_ids), position_temporal, position_height, position_width);
  }

  /// x[attention_mask[batch_idx].bool()], where nothing is masked.
  static X unmasked(const X& x, const X& attention_mask) {
    const ops::AssumedSelection all(x.size(0));
    return aten("index", {Tensor(x), make_list({Tensor(attention_mask.to(DType::boolean))})});
  }
  Pair get_rope_index(const X& input_ids, const X& image_grid_thw, const Grid& grid, const X& attention_mask = {}) const {
    const I batch_size = input_ids.size(0), length = input_ids.size(1);
    const Layout layout(length, images_, grid.tokens());
    std::vector<X> mrope_position_deltas, llm_pos_ids_list;
    X position_ids = zeros({3, batch_size, length}, DType::int64);
    X current_pos, vision_position_ids, llm_positions;  // current_pos is a number until an image was met
    X current_input_ids, input_token_type;
    auto add_text = [&](I text_len) {
      if (text_len == 0) return;
      X positions = arange(text_len).view({1, -1}).expand({3, -1});
      llm_pos_ids_list.push_back(current_pos ? std::move(positions).add(current_pos) : std::move(positions).add(0));
    };
    for (I batch_idx = 0; batch_idx < batch_size; ++batch_idx) {
      input_token_type.reset();
      current_input_ids.reset();
      if (attention_mask) {
        current_input_ids = unmasked(input_ids.select(0, batch_idx), attention_mask.select(0, batch_idx));
        input_token_type = unmasked(input_ids.select(0, batch_idx), attention_mask.select(0, batch_idx));
      }
      current_pos.reset();
      drop_list(llm_pos_ids_list);
      add_text(layout.before);
      for (I image = 0; image < images_; ++image) {
        vision_position_ids = get_vision_position_ids(grid, current_pos);
        llm_pos_ids_list.push_back(vision_position_ids);
        const X grid_thw = image_grid_thw.select(0, batch_idx * images_ + image);
        aten("gt", {Tensor(grid_thw.select(0, 2)), Tensor(grid_thw.select(0, 1))});  // max() of the two
        X extent = aten("floor_divide", {Tensor(grid_thw.select(0, 1)), grid.merge});
        if (!current_pos) current_pos = extent.add(0);
        extent.reset();
        add_text(image + 1 < images_ ? layout.between : layout.behind);
      }
      llm_positions = cat(llm_pos_ids_list, 1).reshape({3, -1});
      if (attention_mask) {
        const ops::AssumedSelection all(length);
        aten("index_put_", {Tensor(position_ids.select(1, batch_idx)),
                            make_list({None{}, Tensor(attention_mask.select(0, batch_idx).to(DType::boolean))}), Tensor(llm_positions)});
      }
      mrope_position_deltas.push_back(aten("max", {Tensor(llm_positions)}).add(1).sub(length));
    }
    X deltas = X(empty({batch_size}, DType::int64)).unsqueeze(1);
    drop_list(mrope_position_deltas);
    Pair result{position_ids, deltas};
    position_ids.reset();
    current_pos.reset();
    drop_list(llm_pos_ids_list);
    return leave(std::move(result), vision_position_ids, llm_positions, current_input_ids, input_token_type, deltas);
  }

  GridTextForm form_;
  I images_;
  std::shared_ptr<GridTower> visual_;
  std::shared_ptr<DecoderBody> language_model_;
  X rope_deltas_;
};

class GridTextNetwork : public Network {
 public:
  GridTextNetwork(const std::string& type, const Config& config, const Options& options, const GridTextForm& form,
                  std::shared_ptr<GridTower> visual, const DecoderParts& text)
      : Network(type, options),
        model(child<GridTextModel>("model", options, form, std::move(visual), text)),
        vision_(model.visual().config),
        height_(config.integer_or("image_height", side())),
        width_(config.integer_or("image_width", side())) {}
  std::vector<nn::InputSpec> inputs() const override {
    std::vector<nn::InputSpec> list = Network::inputs();
    if (options_.images == 0) return list;
    const std::string patch = std::to_string(vision_.patch);
    const nn::SizeExpression batch("batch"), seq("seq"), images("batch * images"),
        patches("batch * images * (height // " + patch + ") * (width // " + patch + ")"),
        width(std::to_string(checked_mul(checked_mul(vision_.channels, vision_.temporal), checked_mul(vision_.patch, vision_.patch))));
    const std::vector<nn::InputSpec> more{{"mm_token_type_ids", {batch, seq}, DType::int64},
                                          {"pixel_values", {patches, width}, DType::float32},
                                          {"image_grid_thw", {images, nn::SizeExpression("3")}, DType::int64}};
    list.insert(list.begin() + 1, more.begin(), more.end());
    return list;
  }
  std::vector<std::pair<std::string, I>> default_sizes() const override {
    constexpr I kText = 512;
    const I factor = checked_mul(vision_.patch, vision_.merge), tokens = checked_mul(height_ / factor, width_ / factor);
    return {{"seq", checked_add(kText, checked_mul(options_.images, tokens))},
            {"image", height_},
            {"height", height_},
            {"width", width_},
            {"images", options_.images}};
  }

 protected:
  GridTextModel::Output outputs_of(const Batch& batch) { return model(batch, grid_of(batch)); }
  GridTextModel& model;
  Grid grid_of(const Batch& batch) const {
    Grid grid;
    if (!batch.pixel_values) return grid;
    const I factor = checked_mul(vision_.patch, vision_.merge);
    auto rounded = [&](I pixels) { return std::max(factor, (pixels + factor / 2) / factor * factor); };
    const std::string found = std::to_string(height_) + "x" + std::to_string(width_);
    if (height_ % factor != 0 || width_ % factor != 0)
      throw Error("--image " + found + ": the sides of an image are multiples of " + std::to_string(factor) + " pixels here",
                  "the processor resizes it: --image " + std::to_string(rounded(height_)) + "x" + std::to_string(rounded(width_)));
    grid = {checked_mul(batch.input.size(0), options_.images), height_ / vision_.patch, width_ / vision_.patch, vision_.merge};
    const I needed = checked_add(checked_mul(options_.images, grid.tokens()), options_.images > 1 ? 2 * (options_.images - 1) : 0);
    if (batch.input.size(1) < needed)
      throw Error("a sequence of " + std::to_string(batch.input.size(1)) + " tokens has no room for " + std::to_string(options_.images) +
                      " image(s) of " + found + " pixels, which take " + std::to_string(grid.tokens()) + " tokens each",
                  "--seq counts the images' tokens too: give at least " + std::to_string(needed) + ", or a smaller --image");
    return grid;
  }

 private:
  /// 16 tokens a side where no --image is given.
  I side() const { return checked_mul(16, checked_mul(vision_.patch, vision_.merge)); }
  const GridVisionConfig vision_;
  const I height_, width_;
};

class ForConditionalGeneration final : public GridTextNetwork, public EncodesImages {
 public:
  ForConditionalGeneration(const Config& config, const Options& options, const GridTextForm& form, std::shared_ptr<GridTower> visual,
                           const DecoderParts& text, bool tied)
      : GridTextNetwork(form.prefix + "ForConditionalGeneration", config, options, form, std::move(visual), text),
        text_(text),
        lm_head(child<Linear>("lm_head", text.config->hidden, text.config->vocab, false)) {
    if (tied) tie("lm_head.weight", "model.language_model.embed_tokens.weight");
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    GridTextModel::Output outputs = outputs_of(batch);
    X hidden_states = slice_logits_to_keep(outputs.last_hidden_state, options_.logits_to_keep);
    X logits = lm_head(hidden_states);
    X loss;
    if (batch.labels) loss = causal_lm_loss(logits, batch.labels, text_.config->vocab);
    Values items;
    for (auto& x : {loss, logits})
      if (x) items.emplace_back(Tensor(x));
    outputs.collect(items);
    return {make_tuple(std::move(items)), loss};
  }
  bool generates() const override { return true; }
  CachePtr new_generation_cache() const override { return model.language_model().new_generation_cache(*text_.config); }
  X generation_positions(const Batch& batch, X text_positions, const X& attention_mask) override {
    grid_ = grid_of(batch);
    return model.generation_positions(batch, text_positions, attention_mask, grid_);
  }
  void encode_images(const Batch& batch) override {
    if (batch.pixel_values) model.mm_encoder_outputs = model.get_image_features(batch, grid_);
  }
  void forget_images() override { model.mm_encoder_outputs = {}; }
  TokenTypes token_types() const override { return TokenTypes::modality; }
  Step step(Batch batch) override {
    Entered scope(*this);
    GridTextModel::Output outputs = model(batch, grid_);
    X hidden_states = slice_logits_to_keep(outputs.last_hidden_state, batch.logits_to_keep);
    X logits = lm_head(hidden_states);
    if (!batch.logits_to_keep) logits = logits.to_float();
    return {logits, outputs.cache};
  }

 private:
  const DecoderParts text_;
  Grid grid_;  ///< of generate()
  Linear& lm_head;
};

class GridTextAlone final : public GridTextNetwork {
 public:
  using GridTextNetwork::GridTextNetwork;
  nn::Outcome run(Batch batch) override {
    GridTextModel::Output outputs = outputs_of(batch);
    Values items{Tensor(outputs.last_hidden_state)};
    outputs.collect(items);
    return {make_tuple(std::move(items)), {}};
  }
};

}  // namespace

NetworkPtr make_grid_text(const Config& config, const Options& options, const GridTextForm& form, std::shared_ptr<GridTower> visual) {
  Config section = config.section("text_config");
  const DecoderParts text = text_decoder(section, options);
  if (options.task == Task::base)
    return std::make_shared<GridTextAlone>(form.prefix + "Model", config, options, form, std::move(visual), text);
  const bool tied = config.boolean_or("tie_word_embeddings", false) || (form.text_ties && section.boolean_or("tie_word_embeddings", false));
  return std::make_shared<ForConditionalGeneration>(config, options, form, std::move(visual), text, tied);
}

std::vector<TaskClass> grid_text_classes(const std::string& prefix, NetworkPtr (*make)(const Config& config, const Options& options)) {
  return {{Task::image_text_to_text, prefix + "ForConditionalGeneration", make}, {Task::base, prefix + "Model", make}};
}

}  // namespace memest::hf
