// models/layoutlmv3: text with the boxes of its words beside the patches of the page's image, and attention biased by distances.
#include "models/hf/encoder.h"
#include "models/hf/loss.h"

namespace memest::hf {
namespace {

class TextEmbeddings final : public Base {
 public:
  explicit TextEmbeddings(const EncoderConfig& c) : Base("LayoutLMv3TextEmbeddings") {
    const I boxes = c.file.size_or("max_2d_position_embeddings", 1024), coordinate = c.file.size_or("coordinate_size", 128);
    const I shape = c.file.size_or("shape_size", 128);
    if (4 * coordinate + 2 * shape != c.hidden)
      throw c.file.error("coordinate_size", "four times " + std::to_string(coordinate) + " and twice the shape_size " +
                                                std::to_string(shape) + " do not make the hidden size " + std::to_string(c.hidden));
    word_embeddings = &child<Embedding>("word_embeddings", c.vocab, c.hidden, c.pad_token);
    token_type_embeddings = &child<Embedding>("token_type_embeddings", c.types, c.hidden);
    norm = &child<LayerNorm>("LayerNorm", c.hidden);
    dropout = &child<Dropout>("dropout", c.hidden_dropout);
    new_buffer("position_ids", {1, c.positions}, DType::int64);
    position_embeddings = &child<Embedding>("position_embeddings", c.positions, c.hidden, c.pad_token);
    x_position_embeddings = &child<Embedding>("x_position_embeddings", boxes, coordinate);
    y_position_embeddings = &child<Embedding>("y_position_embeddings", boxes, coordinate);
    h_position_embeddings = &child<Embedding>("h_position_embeddings", boxes, shape);
    w_position_embeddings = &child<Embedding>("w_position_embeddings", boxes, shape);
  }
  X operator()(const X& input_ids, const X& bbox, const X& token_type_ids) {
    Entered scope(*this);
    X position_ids = position_ids_of(input_ids, false);
    X inputs_embeds = (*word_embeddings)(input_ids);
    X types = (*token_type_embeddings)(token_type_ids);
    X embeddings = inputs_embeds.add(types);
    X positions = (*position_embeddings)(position_ids);
    embeddings = embeddings.add_(positions);
    X spatial = spatial_position_embeddings(bbox);
    embeddings = embeddings.add(spatial);
    embeddings = (*norm)(embeddings);
    embeddings = (*dropout)(embeddings);
    return leave(embeddings, position_ids, inputs_embeds, types, positions, spatial);
  }

 private:
  X spatial_position_embeddings(const X& bbox) {
    const auto side = [&](I i) { return bbox.whole_slices(2).select(2, i); };
    X left = (*x_position_embeddings)(side(0));
    X upper = (*y_position_embeddings)(side(1));
    X right = (*x_position_embeddings)(side(2));
    X lower = (*y_position_embeddings)(side(3));
    X height = (*h_position_embeddings)(length(side(3), side(1)));
    X width = (*w_position_embeddings)(length(side(2), side(0)));
    X spatial = cat({left, upper, right, lower, height, width}, -1);
    return leave(spatial, left, upper, right, lower, height, width);
  }
  static X length(const X& to, const X& from) {
    X difference = to.sub(from);
    return aten("clamp", {Tensor(std::move(difference)), I{0}, I{1023}});
  }
  Embedding *word_embeddings, *token_type_embeddings, *position_embeddings;
  Embedding *x_position_embeddings, *y_position_embeddings, *h_position_embeddings, *w_position_embeddings;
  LayerNorm* norm;
  Dropout* dropout;
};

class PatchEmbeddings final : public Unary {
 public:
  PatchEmbeddings(I channels, I hidden, I patch)
      : Unary("LayoutLMv3PatchEmbeddings"), proj(child<Conv2d>("proj", channels, hidden, patch, patch)) {}

 protected:
  X forward(X pixel_values) override {
    X embeddings = proj(pixel_values);
    embeddings = embeddings.flatten(2).transpose(1, 2);
    return embeddings;
  }

 private:
  Conv2d& proj;
};

/// eager_attention_forward of the module: bert's with a position bias.
Pair biased_eager_attention(X query, X key, X value, AttentionCall call) {
  X attn_weights = query.matmul(key.transpose(2, 3)).mul(1.0);
  if (call.position_bias) attn_weights = attn_weights.add(call.position_bias);
  if (call.mask) attn_weights = attn_weights.add(call.mask);
  attn_weights = attn_weights.softmax(-1);
  attn_weights = ops::dropout(attn_weights, call.dropout, call.training);
  X attn_output = attn_weights.matmul(value);
  attn_output = attn_output.transpose(1, 2).contiguous();
  return {attn_output, attn_weights};
}

struct LayoutCall {
  X mask, position_bias;
};

class SelfAttention final : public Module<SelfAttention> {
 public:
  explicit SelfAttention(const EncoderConfig& c)
      : Module("LayoutLMv3SelfAttention"),
        options_(c.options),
        head_dim_(c.head_dim),
        query(child<Linear>("query", c.hidden, c.hidden)),
        key(child<Linear>("key", c.hidden, c.hidden)),
        value(child<Linear>("value", c.hidden, c.hidden)),
        dropout_(c.attention_dropout) {
    child<Dropout>("dropout", c.attention_dropout);
  }
  Pair forward(X hidden_states, const LayoutCall* call) {
    const Dims input_shape = hidden_states.sizes().slice(0, 2), hidden_shape = input_shape + Dims{-1, head_dim_};
    X query_layer = query(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_layer = key(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_layer = value(hidden_states).view(hidden_shape).transpose(1, 2);
    const AttentionCall arguments{.mask = call->mask,
                                  .dropout = training ? dropout_ : 0.0,
                                  .training = training,
                                  .causal = false,
                                  .position_bias = call->position_bias};
    auto [attn_output, attn_weights] = options_.attention == Attention::eager
                                           ? biased_eager_attention(query_layer, key_layer, value_layer, arguments)
                                           : attention_interface(options_, query_layer, key_layer, value_layer, arguments);
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    return leave(Pair(attn_output, attn_weights), query_layer, key_layer, value_layer);
  }

 private:
  const Options options_;
  I head_dim_;
  Linear &query, &key, &value;
  double dropout_;
};

/// LayoutLMv3Attention keeps the weights until it returns.
class LayoutAttention final : public Module<LayoutAttention> {
 public:
  explicit LayoutAttention(const EncoderConfig& c)
      : Module("LayoutLMv3Attention"),
        self(child<SelfAttention>("self", c)),
        output(register_module("output", make_residual_output("LayoutLMv3SelfOutput", c, c.hidden))) {}
  X forward(X hidden_states, const LayoutCall* call) {
    X residual = hidden_states;
    auto [attention_output, weights] = self(hidden_states, call);
    attention_output = (*output)(attention_output, residual);
    return leave(attention_output, residual, weights);
  }

 private:
  SelfAttention& self;
  JointPtr output;
};

class LayoutLayer final : public DecoderLayer {
 public:
  explicit LayoutLayer(const EncoderConfig& c)
      : DecoderLayer("LayoutLMv3Layer", c.options),
        attention(child<LayoutAttention>("attention", c)),
        intermediate(register_module("intermediate", make_intermediate("LayoutLMv3Intermediate", c))),
        output(register_module("output", make_residual_output("LayoutLMv3Output", c, c.intermediate))) {}

 protected:
  /// The call's position_embeddings.first is the position bias.
  X forward(X hidden_states, const LayerCall& call) override {
    const LayoutCall own{call.mask, call.position_embeddings.first};
    X attention_output = attention(hidden_states, &own);
    X intermediate_output = (*intermediate)(attention_output);
    X layer_output = (*output)(intermediate_output, attention_output);
    return leave(layer_output, attention_output, intermediate_output);
  }

 private:
  LayoutAttention& attention;
  UnaryPtr intermediate;
  JointPtr output;
};

class LayoutEncoder final : public Base {
 public:
  explicit LayoutEncoder(const EncoderConfig& c)
      : Base("LayoutLMv3Encoder"),
        layer(*this, "layer", c.layers, [&](I) { return std::make_shared<LayoutLayer>(c); }),
        max_rel_pos_(c.file.size_or("max_rel_pos", 128)),
        max_rel_2d_pos_(c.file.size_or("max_rel_2d_pos", 256)) {
    if (c.file.boolean_or("has_relative_attention_bias", true))
      rel_pos_bias = &child<Linear>("rel_pos_bias", c.file.size_or("rel_pos_bins", 32), c.heads, false);
    if (!c.file.boolean_or("has_spatial_attention_bias", true)) return;
    const I bins = c.file.size_or("rel_2d_pos_bins", 64);
    rel_pos_x_bias = &child<Linear>("rel_pos_x_bias", bins, c.heads, false);
    rel_pos_y_bias = &child<Linear>("rel_pos_y_bias", bins, c.heads, false);
  }
  X operator()(X hidden_states, const X& bbox, const X& attention_mask, const X& position_ids) {
    Entered scope(*this);
    X position_bias = compute_position_bias(position_ids, bbox);
    for (auto& one : layer) hidden_states = (*one)(hidden_states, {attention_mask, {position_bias, {}}, {}});
    return leave(hidden_states, position_bias);
  }

 private:
  X compute_position_bias(const X& position_ids, const X& bbox) {
    if (!rel_pos_bias) return {};
    X position_bias;
    if (rel_pos_x_bias) {
      position_bias = spatial_bias(bbox);
      X distances = lookup(position_ids, *rel_pos_bias, max_rel_pos_);
      position_bias = position_bias.add_(std::move(distances));
    } else {
      position_bias = lookup(position_ids, *rel_pos_bias, max_rel_pos_);
    }
    return aten("div_", {Tensor(position_bias), 1.0});
  }
  X spatial_bias(const X& bbox) {
    X rel_pos_x = lookup(bbox.whole_slices(2).select(2, 0), *rel_pos_x_bias, max_rel_2d_pos_);
    X rel_pos_y = lookup(bbox.whole_slices(2).select(2, 3), *rel_pos_y_bias, max_rel_2d_pos_);
    return rel_pos_x.add_(rel_pos_y);
  }
  static X lookup(X positions, const Linear& bias, I max_distance) {
    X relative_positions = arange(2 * max_distance + 1);
    X buckets = relative_position_bucket(relative_positions);
    positions = positions.to(DType::int32);
    X indices = positions.unsqueeze(-2).sub(positions.unsqueeze(-1));
    aten("clamp_", {Tensor(indices), -max_distance, max_distance});
    aten("add_", {Tensor(indices), max_distance});
    X table, values;
    {
      NoGrad guard;
      table = aten("index", {Tensor(bias.weight()), make_list({Value(), Tensor(buckets)})});
      values = aten("index_select", {Tensor(table), I{1}, Tensor(indices.flatten(0))});
      values = values.view(Dims{-1} + indices.sizes());
    }
    X result = values.transpose(0, 1);
    return leave(result, positions, relative_positions, buckets, indices, table, values);
  }
  static X relative_position_bucket(const X& relative_position) {
    X ret;
    {
      X positive = aten("gt", {Tensor(relative_position), I{0}});
      X whole = std::move(positive).to(DType::int64);
      X half = std::move(whole).mul(1);
      ret = std::move(half).add(0);
    }
    X n = aten("abs", {Tensor(relative_position)});
    X is_small = aten("lt", {Tensor(n), I{1}});
    X val_if_large;
    {
      X real = n.to_float();
      X ratio = std::move(real).div(1);
      X logarithm = aten("log", {Tensor(std::move(ratio))});
      X scaled = std::move(logarithm).div(1.0).mul(1);
      X whole = std::move(scaled).to(DType::int64);
      val_if_large = std::move(whole).add(1);
    }
    {
      X most = aten("full_like", {Tensor(val_if_large), I{1}});
      val_if_large = aten("minimum", {Tensor(val_if_large), Tensor(std::move(most))});
    }
    X chosen = where(is_small, n, val_if_large);
    ret = ret.add_(std::move(chosen));
    return leave(ret, n, is_small, val_if_large);
  }

  Layers<LayoutLayer> layer;
  I max_rel_pos_, max_rel_2d_pos_;
  Linear *rel_pos_bias = nullptr, *rel_pos_x_bias = nullptr, *rel_pos_y_bias = nullptr;
};

class LayoutModel final : public Base {
 public:
  explicit LayoutModel(const EncoderConfig& c)
      : Base("LayoutLMv3Model"), options_(c.options), side_(c.file.size_or("input_size", 224) / c.file.size_or("patch_size", 16)) {
    biased_ = c.file.boolean_or("has_relative_attention_bias", true);
    embeddings = &child<TextEmbeddings>("embeddings", c);
    patch_embed_ = register_module(
        "patch_embed", std::make_shared<PatchEmbeddings>(c.file.size_or("num_channels", 3), c.hidden, c.file.size_or("patch_size", 16)));
    const I tokens = checked_mul(side_, side_) + 1;
    new_parameter("cls_token", {1, 1, c.hidden});
    new_parameter("pos_embed", {1, tokens, c.hidden});
    pos_drop = &child<Dropout>("pos_drop", 0.0);
    layer_norm = &child<LayerNorm>("LayerNorm", c.hidden);
    dropout = &child<Dropout>("dropout", c.hidden_dropout);
    if (biased_) new_buffer("visual_bbox", {tokens, 4}, DType::int64);
    norm = &child<LayerNorm>("norm", c.hidden);
    encoder = &child<LayoutEncoder>("encoder", c);
  }
  X operator()(const X& input_ids, const X& given_bbox, const X& pixel_values) {
    Entered scope(*this);
    const I batch_size = input_ids.size(0), seq_length = input_ids.size(1);
    X bbox = given_bbox;
    X attention_mask = ones({batch_size, seq_length}, DType::float32);
    X token_type_ids = zeros({batch_size, seq_length}, DType::int64);
    X embedding_output = (*embeddings)(input_ids, bbox, token_type_ids);
    X visual_embeddings = forward_image(pixel_values);
    const I patches = visual_embeddings.size(1);
    X visual_attention_mask = ones({batch_size, patches}, DType::int64);
    attention_mask = cat({attention_mask, visual_attention_mask}, 1);
    X visual_bbox, final_bbox, visual_position_ids, position_ids, final_position_ids;
    if (biased_) {
      visual_bbox = aten("repeat", {Tensor(buffer(0)), list_of(Dims{batch_size, 1, 1})});
      final_bbox = cat({bbox, visual_bbox}, 1);
      X counted = arange(patches);
      visual_position_ids = aten("repeat", {Tensor(std::move(counted)), list_of(Dims{batch_size, 1})});
      position_ids = arange(seq_length).unsqueeze(0);
      position_ids = position_ids.expand({batch_size, seq_length});
      final_position_ids = cat({position_ids, visual_position_ids}, 1);
    }
    embedding_output = cat({embedding_output, visual_embeddings}, 1);
    embedding_output = (*layer_norm)(embedding_output);
    embedding_output = (*dropout)(embedding_output);
    attention_mask = create_bidirectional_mask({.options = options_, .inputs_embeds = embedding_output, .attention_mask = attention_mask});
    X sequence_output = (*encoder)(embedding_output, final_bbox, attention_mask, final_position_ids);
    return leave(sequence_output, bbox, attention_mask, token_type_ids, embedding_output, final_bbox, final_position_ids, visual_embeddings,
                 visual_attention_mask, visual_bbox, visual_position_ids, position_ids);
  }

 private:
  X forward_image(const X& pixel_values) {
    X made = (*patch_embed_)(pixel_values);
    X cls_tokens = X(parameter(0)).expand({made.size(0), -1, -1});
    made = cat({cls_tokens, made}, 1);
    made = made.add(X(parameter(1)));
    made = (*pos_drop)(made);
    made = (*norm)(made);
    return made;
  }
  const Options options_;
  I side_;
  bool biased_;
  TextEmbeddings* embeddings;
  UnaryPtr patch_embed_;
  Dropout *pos_drop, *dropout;
  LayerNorm *layer_norm, *norm;
  LayoutEncoder* encoder;
};

/// LayoutLMv3ClassificationHead.
class ClassificationHead final : public Unary {
 public:
  explicit ClassificationHead(const EncoderConfig& c)
      : Unary("LayoutLMv3ClassificationHead"),
        dense(child<Linear>("dense", c.hidden, c.hidden)),
        dropout(child<Dropout>("dropout", c.classifier_dropout)),
        out_proj(child<Linear>("out_proj", c.hidden, num_labels(c.file))) {}

 protected:
  X forward(X x) override {
    x = dropout(x);
    x = dense(x);
    x = x.tanh();
    x = dropout(x);
    x = out_proj(x);
    return x;
  }

 private:
  Linear& dense;
  Dropout& dropout;
  Linear& out_proj;
};

const char* suffix_of(Task task) {
  return task == Task::token_cls            ? "ForTokenClassification"
         : task == Task::question_answering ? "ForQuestionAnswering"
         : task == Task::seq_cls            ? "ForSequenceClassification"
                                            : "Model";
}

class LayoutNetwork final : public Network {
 public:
  explicit LayoutNetwork(const EncoderConfig& c) : Network(std::string("LayoutLMv3") + suffix_of(c.options.task), c.options), c_(c) {
    model = &child<LayoutModel>("layoutlmv3", c);
    if (options_.task == Task::token_cls) {
      dropout = &child<Dropout>("dropout", c.hidden_dropout);
      head_ = register_module(
          "classifier", num_labels(c.file) < 10 ? make_linear(c.hidden, num_labels(c.file)) : std::make_shared<ClassificationHead>(c));
    } else if (options_.task != Task::base) {
      head_ =
          register_module(options_.task == Task::question_answering ? "qa_outputs" : "classifier", std::make_shared<ClassificationHead>(c));
    }
  }
  std::vector<nn::InputSpec> inputs() const override {
    std::vector<nn::InputSpec> list = Network::inputs();
    const nn::SizeExpression batch("batch"), image("image");
    list.insert(list.begin() + 1, {"bbox", {batch, nn::SizeExpression("seq"), nn::SizeExpression("4")}, DType::int64});
    const I channels = c_.file.size_or("num_channels", 3);
    list.insert(list.begin() + 2, {"pixel_values", {batch, nn::SizeExpression(std::to_string(channels)), image, image}, DType::float32});
    return list;
  }
  std::vector<std::pair<std::string, I>> default_sizes() const override {
    return {{"seq", std::min<I>(512, c_.positions - 2)}, {"image", c_.file.size_or("input_size", 224)}};
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    X bbox;
    for (auto& [name, x] : batch.others)
      if (name == "bbox") bbox = x;
    if (batch.pixel_values.size(2) != c_.file.size_or("input_size", 224))
      throw Error("the model's positions are of images of " + std::to_string(c_.file.size_or("input_size", 224)) + " pixels, found " +
                      std::to_string(batch.pixel_values.size(2)),
                  "leave out --image");
    X last_hidden_state = (*model)(batch.input, bbox, batch.pixel_values);
    if (!head_) return {model_output({last_hidden_state}), {}};
    if (options_.task == Task::question_answering) {
      X logits = (*head_)(last_hidden_state);
      return answer_questions(logits, batch);
    }
    X sequence_output, logits, loss;
    if (options_.task == Task::token_cls) {
      sequence_output = last_hidden_state.whole_slices(1).slice(1, std::nullopt, batch.input.size(1));
      sequence_output = (*dropout)(sequence_output);
      logits = (*head_)(sequence_output);
      if (batch.labels) loss = flat_cross_entropy(logits, batch.labels, num_labels(c_.file));
    } else {
      sequence_output = last_hidden_state.whole_slices(1).select(1, 0);
      logits = (*head_)(sequence_output);
      if (batch.labels) loss = sequence_classification_loss(batch.labels, logits, num_labels(c_.file));
    }
    return {model_output({loss, logits}), loss};
  }

 private:
  EncoderConfig c_;
  LayoutModel* model;
  Dropout* dropout = nullptr;
  UnaryPtr head_;
};

NetworkPtr layoutlmv3(const Config& config, const Options& o) {
  if (const I positions = config.size("max_position_embeddings"); positions < 3)
    throw config.error("max_position_embeddings", "expected at least 3, of which two are of no token, found " + std::to_string(positions));
  for (const char* part : {"text_embed", "visual_embed"})
    if (!config.boolean_or(part, true)) throw config.error(part, "memest builds LayoutLMv3 with text and images");
  if (config.boolean_or("has_relative_attention_bias", true) != config.boolean_or("has_spatial_attention_bias", true))
    throw config.error("has_spatial_attention_bias", "memest builds LayoutLMv3 with both attention biases or with none");
  EncoderConfig c(config, o);
  return std::make_shared<LayoutNetwork>(c);
}
const Family layoutlmv3_family{{"layoutlmv3"},
                               {{Task::token_cls, "LayoutLMv3ForTokenClassification", layoutlmv3},
                                {Task::seq_cls, "LayoutLMv3ForSequenceClassification", layoutlmv3},
                                {Task::question_answering, "LayoutLMv3ForQuestionAnswering", layoutlmv3},
                                {Task::base, "LayoutLMv3Model", layoutlmv3}}};

}  // namespace
}  // namespace memest::hf
