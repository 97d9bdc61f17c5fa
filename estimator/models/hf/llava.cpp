// models/llava/modeling_llava.py (transformers 5.24).
#include "models/hf/llava.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace memest::hf {
namespace {

class LlavaMultiModalProjector final : public LlavaProjector {
 public:
  LlavaMultiModalProjector(std::string type, const Config& c, I in, I hidden)
      : LlavaProjector(std::move(type)), projection_(*this, c, in, hidden) {}
  X operator()(X image_features, const ImageSizes&) override {
    Entered scope(*this);
    X hidden_states = projection_(image_features);
    image_features.reset();
    return hidden_states;
  }

 private:
  LlavaProjection projection_;
};

class LlavaModel final : public ImageTextModel {
 public:
  LlavaModel(const Config& c, const Options& o, const LlavaForm& form)
      : ImageTextModel(form.type, o), form_(form), one_layer_(!c.find("vision_feature_layer")->list()) {
    vision_tower_ = register_module("vision_tower", make_vision_tower(c.section("vision_config"), o));
    text = text_decoder(c.section("text_config"), o);
    const I states = vision_tower_->shape.layers + 1;
    for (I layer : one_layer_ ? std::vector<I>{c.integer("vision_feature_layer")} : c.integers("vision_feature_layer")) {
      if (layer < -states || layer >= states)
        throw c.error("vision_feature_layer",
                      "the vision model has " + std::to_string(states) + " hidden states, found " + std::to_string(layer));
      feature_layers_.push_back((layer + states) % states);
    }
    const VisionTower::Shape& shape = vision_tower_->shape;
    const std::string strategy = c.text_or("vision_feature_select_strategy", "full");
    if (strategy != "default" && strategy != "full")
      throw c.error("vision_feature_select_strategy", "expected 'default' or 'full', found '" + strategy.substr(0, 60) + "'");
    crops_ = strategy == "default";
    if (shape.patch > 0 && crops_)
      throw c.error("vision_feature_select_strategy", "expected 'full' over a vision model without a class token, found 'default'");
    height_ = shape.patch > 0 ? c.integer_or("image_height", shape.image) : shape.image;
    width_ = shape.patch > 0 ? c.integer_or("image_width", shape.image) : shape.image;
    check_sides();
    if (form.anyres) {
      const std::array<I, 2> size{c.integer_or("image_height", shape.image), c.integer_or("image_width", shape.image)};
      tiles_ = AnyRes(c, size, shape, crops_);
      new_parameter("image_newline", {text.config->hidden});
    }
    multi_modal_projector = register_module(
        "multi_modal_projector", form.make_projector(c, checked_mul(shape.hidden, I(feature_layers_.size())), text.config->hidden));
    language_model_ = register_module("language_model", make_decoder_body(text));
  }
  Images images() const override {
    const VisionTower::Shape& s = vision_tower_->shape;
    if (form_.anyres) return {tiles_.tokens(), s.channels, s.image};
    if (s.patch == 0) return {s.positions - (crops_ ? 1 : 0), s.channels, s.image};
    const I rows = height_ / side(), columns = width_ / side();  // processing_pixtral.py: a token ends each row
    return {checked_mul(rows, columns + 1), s.channels, s.image};
  }
  std::vector<nn::InputSpec> image_inputs() const override {
    if (vision_tower_->shape.patch == 0 && !form_.anyres) return ImageTextModel::image_inputs();
    const nn::SizeExpression images("batch * images"), channels(std::to_string(vision_tower_->shape.channels));
    if (form_.anyres) {
      const nn::SizeExpression side(std::to_string(vision_tower_->shape.image)), tiles(std::to_string(tiles_.count()));
      return {{"pixel_values", {images, tiles, channels, side, side}, DType::float32},
              {"image_sizes", {images, nn::SizeExpression("2")}, DType::int64}};
    }
    return {{"pixel_values",
             {images, channels, nn::SizeExpression(std::to_string(height_)), nn::SizeExpression(std::to_string(width_))},
             DType::float32},
            {"image_sizes", {images, nn::SizeExpression("2")}, DType::int64}};
  }

  DecoderBody* generating_decoder() const override { return language_model_.get(); }
  /// The features of each image take the place of the vision model's pooler_output.
  ImageFeatures get_image_features(const Batch& batch) override {
    const X image_sizes = argument(batch, "image_sizes");
    const ImageSizes sizes{image_sizes, height_, width_};
    X pixel_values = batch.pixel_values;
    std::vector<X> pixel_values_list;
    if (form_.anyres) {
      for (auto& pix_val : pixel_values.unbind(0)) pixel_values_list.push_back(pix_val.slice(0, std::nullopt, tiles_.count()));
      pixel_values = cat(pixel_values_list, 0);
    }
    VisionOutput image_outputs = (*vision_tower_)(pixel_values, feature_layers_, sizes);
    auto cropped = [this](const X& x) { return crops_ ? x.whole_slices(1).slice(1, 1, std::nullopt) : x; };
    X selected_image_feature;
    if (one_layer_) {
      selected_image_feature = cropped(image_outputs.hidden_states[0]);
    } else {
      std::vector<X> hs_pool;
      for (I layer : feature_layers_) {
        std::size_t kept = 0;
        for (I other : feature_layers_) kept += other < layer;
        hs_pool.push_back(form_.anyres ? image_outputs.hidden_states[kept] : cropped(image_outputs.hidden_states[kept]));
      }
      selected_image_feature = cat(std::move(hs_pool), -1);
      if (form_.anyres) selected_image_feature = cropped(selected_image_feature);
    }
    X image_features = (*multi_modal_projector)(form_.takes_rows ? selected_image_feature.squeeze(0) : selected_image_feature, sizes);
    if (form_.anyres) {
      std::vector<X> features = pack_image_features(image_features);
      const X feature_lens = empty({I(features.size())}, DType::int64);
      image_outputs.pooler_output.reset();
      return {image_outputs, features};
    }
    std::vector<X> features = image_sizes ? split_by_sizes(image_features, image_sizes) : image_features.unbind(0);
    image_outputs.pooler_output.reset();
    return {image_outputs, features};
  }

 protected:
  Output forward(const Batch& batch) override {
    return run_merged(*language_model_, batch, [](const ImageFeatures& image) { return cat(image.pooled, 0); });
  }

 private:
  /// The tiles of an image and the smaller copy of the whole before them, at the resolution of config.image_grid_pinpoints that
  /// select_best_resolution (image_processing_utils.py) takes for it, and what unpad_image leaves of their features.
  struct AnyRes {
    AnyRes() = default;
    AnyRes(const Config& c, const std::array<I, 2>& size, const VisionTower::Shape& shape, bool crops) {
      side = I(std::sqrt(double(shape.positions - (crops ? 1 : 0))));
      if (side * side != shape.positions - (crops ? 1 : 0))
        throw c.error("vision_feature_select_strategy",
                      "the features of a tile, " + std::to_string(shape.positions - (crops ? 1 : 0)) + ", are no square of patches");
      I most = 0, least_wasted = 0;
      for (auto& [height, width] : pinpoints(c)) {
        const double scale = std::min(double(width) / double(size[1]), double(height) / double(size[0]));
        const I effective = std::min(I(double(size[1]) * scale) * I(double(size[0]) * scale), size[0] * size[1]),
                wasted = height * width - effective;
        if (rows > 0 && (effective < most || (effective == most && wasted >= least_wasted))) continue;
        most = effective;
        least_wasted = wasted;
        rows = height / shape.image;
        columns = width / shape.image;
      }
      if (rows < 1 || columns < 1) throw c.error("image_grid_pinpoints", "expected multiples of the vision model's image_size");
      const I current_height = rows * side, current_width = columns * side;
      if (double(size[1]) / double(size[0]) > double(current_width) / double(current_height))
        vertical = (current_height - rounded(double(size[0]) * (double(current_width) / double(size[1])))) / 2;
      else
        horizontal = (current_width - rounded(double(size[1]) * (double(current_height) / double(size[0])))) / 2;
    }
    static std::vector<std::pair<I, I>> pinpoints(const Config& c) {
      if (!c.has("image_grid_pinpoints")) return {{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}};
      std::vector<std::pair<I, I>> list;
      if (auto* value = c.find("image_grid_pinpoints"); value->list())
        for (auto& item : *value->list()) {
          auto* pair = item.list();
          const bool two = pair && pair->size() == 2;
          auto* height = two ? std::get_if<I>(&(*pair)[0].value) : nullptr;
          auto* width = two ? std::get_if<I>(&(*pair)[1].value) : nullptr;
          constexpr I kMost = 1 << 20;
          if (!height || !width || *height < 1 || *width < 1 || *height > kMost || *width > kMost)
            throw c.error("image_grid_pinpoints", "expected pairs of a height and a width");
          list.emplace_back(*height, *width);
        }
      if (list.empty()) throw c.error("image_grid_pinpoints", "expected a list of pairs of a height and a width");
      return list;
    }
    static I rounded(double x) { return I(std::round(x * 1e7) / 1e7); }  ///< int(round(x, 7))
    I count() const { return checked_add(checked_mul(rows, columns), 1); }
    I height() const { return rows * side - 2 * vertical; }
    I width() const { return columns * side - 2 * horizontal; }
    I tokens() const { return checked_add(checked_mul(height(), width() + 1), side * side); }
    I rows = 0, columns = 0, side = 0;
    I vertical = 0, horizontal = 0;  ///< features that unpad_image leaves out on each side
  };
  std::vector<X> pack_image_features(const X& projected) {
    std::vector<X> image_features = projected.split(tiles_.count(), 0), new_image_features;
    X image_feature, base_image_feature;
    for (auto& tiles : image_features) {
      base_image_feature = tiles.select(0, 0);
      image_feature = tiles.slice(0, 1, std::nullopt);
      image_feature = image_feature.view({tiles_.rows, tiles_.columns, tiles_.side, tiles_.side, -1});
      image_feature = image_feature.permute({4, 0, 2, 1, 3}).contiguous();
      image_feature = image_feature.flatten(1, 2).flatten(2, 3);
      const I height = image_feature.size(1), width = image_feature.size(2);
      if (tiles_.vertical > 0) image_feature = image_feature.slice(1, tiles_.vertical, height - tiles_.vertical);
      if (tiles_.horizontal > 0) image_feature = image_feature.slice(2, tiles_.horizontal, width - tiles_.horizontal);
      image_feature = cat(
          {image_feature,
           X(parameter(0)).unsqueeze(1).unsqueeze(2).expand({image_feature.size(0), image_feature.size(1), 1}).to(image_feature.dtype())},
          -1);
      image_feature = image_feature.flatten(1, 2).transpose(0, 1);
      image_feature = cat({base_image_feature, image_feature}, 0);
      new_image_features.push_back(image_feature);
    }
    return new_image_features;
  }
  std::vector<X> split_by_sizes(const X& image_features, const X& image_sizes) const {
    {  // split_sizes
      X tokens = aten("floor_divide", {Tensor(image_sizes), side()});
      X counts = aten("prod", {Tensor(tokens), I{-1}});
      tokens.reset();
    }
    return image_features.squeeze(0).split(Dims::filled(int(image_sizes.size(0)), height_ / side() * (width_ / side())), 0);
  }
  /// Pixels of a token's side.
  I side() const { return checked_mul(vision_tower_->shape.patch, form_.merge); }
  void check_sides() const {
    if (vision_tower_->shape.patch == 0 || (height_ % side() == 0 && width_ % side() == 0)) return;
    auto rounded = [this](I pixels) { return std::to_string(std::max<I>(1, (pixels + side() - 1) / side()) * side()); };
    throw Error("--image " + std::to_string(height_) + "x" + std::to_string(width_) + ": the sides of an image are multiples of " +
                    std::to_string(side()) + " pixels here",
                "the processor resizes it: --image " + rounded(height_) + "x" + rounded(width_));
  }

  LlavaForm form_;
  AnyRes tiles_;
  I height_ = 0, width_ = 0;
  bool one_layer_, crops_;
  VisionTowerPtr vision_tower_;
  std::vector<I> feature_layers_;
  std::shared_ptr<LlavaProjector> multi_modal_projector;
  std::shared_ptr<DecoderBody> language_model_;
};

NetworkPtr llava(const Config& config, const Options& o) {
  const bool tied =
      config.boolean_or("tie_word_embeddings", false) || config.section("text_config").boolean_or("tie_word_embeddings", true);
  LlavaForm form;
  form.make_projector = [](const Config& c, I in, I hidden) { return make_llava_projector("LlavaMultiModalProjector", c, in, hidden); };
  return make_image_text(config, o, {.prefix = "Llava", .tied = tied}, make_llava_model(config, o, form));
}
const Family llava_family{{"llava"}, image_text_classes("Llava", llava, false)};

}  // namespace

LlavaProjection::LlavaProjection(Base& owner, const Config& c, I in, I hidden) {
  const bool bias = c.boolean_or("multimodal_projector_bias", true);
  linear_1 = owner.register_module("linear_1", std::make_shared<Linear>(in, hidden, bias));
  act = owner.register_module("act", std::make_shared<Activation>(c.text("projector_hidden_act")));
  linear_2 = owner.register_module("linear_2", std::make_shared<Linear>(hidden, hidden, bias));
}
X LlavaProjection::operator()(X image_features) {
  X hidden_states = (*linear_1)(image_features);
  image_features.reset();
  hidden_states = (*act)(hidden_states);
  hidden_states = (*linear_2)(hidden_states);
  return hidden_states;
}

std::shared_ptr<LlavaProjector> make_llava_projector(std::string type, const Config& config, I in, I hidden) {
  return std::make_shared<LlavaMultiModalProjector>(std::move(type), config, in, hidden);
}
ImageTextModelPtr make_llava_model(const Config& config, const Options& options, const LlavaForm& form) {
  return std::make_shared<LlavaModel>(config, options, form);
}

}  // namespace memest::hf
