// torch.nn.Transformer and its parts (torch/nn/modules/transformer.py), statement by statement. By-value parameters of C++ live until the
// caller's statement ends, Python's names only until they are bound anew: hence the resets.
#include <fmt/format.h>

#include "nn/layer.h"
#include "nn/layers/attention.h"
#include "ops/native_attention.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

struct Shape {
  I width, heads, hidden;
  double dropout;
  std::string activation;
  double eps;
  bool batch_first, norm_first, bias;
};

/// What encoder and decoder layers have in common: attention, feed-forward, norms and dropouts.
class LayerBase : public Module {
 public:
  bool batch_first() const { return s_.batch_first; }
  I heads() const { return s_.heads; }

 protected:
  LayerBase(const char* type, const Shape& s, const std::vector<std::string>& attentions, int blocks)
      : Module(type), s_(s), gelu_(s.activation == "gelu") {
    if (!gelu_ && s.activation != "relu") throw Error(fmt::format("activation should be relu/gelu, not {}", s.activation));
    for (auto& name : attentions)
      attentions_.push_back(register_module(
          name,
          make_layer(
              "MultiheadAttention",
              {{"embed_dim", s.width}, {"num_heads", s.heads}, {"dropout", s.dropout}, {"bias", s.bias}, {"batch_first", s.batch_first}})));
    linear1_ = register_module("linear1", make_layer("Linear", {{"in_features", s.width}, {"out_features", s.hidden}, {"bias", s.bias}}));
    dropout_ = register_module("dropout", make_layer("Dropout", {{"p", s.dropout}}));
    linear2_ = register_module("linear2", make_layer("Linear", {{"in_features", s.hidden}, {"out_features", s.width}, {"bias", s.bias}}));
    for (int i = 1; i <= blocks; ++i) norms_.push_back(register_module(fmt::format("norm{}", i), make_norm(s.width, s.eps, s.bias)));
    for (int i = 1; i <= blocks; ++i)
      dropouts_.push_back(register_module(fmt::format("dropout{}", i), make_layer("Dropout", {{"p", s.dropout}})));
  }
  static ModulePtr make_norm(I width, double eps, bool bias) {
    return make_layer("LayerNorm", {{"normalized_shape", list_of(Dims{width})}, {"eps", eps}, {"bias", bias}});
  }

  /// x + block(norm(x)), or norm(x + block(x)).
  template <class Block>
  void residual(Tensor& x, std::size_t norm, Block block) {
    Tensor y = s_.norm_first ? ops::add(x, block((*norms_[norm])(x)), 1) : (*norms_[norm])(ops::add(x, block(x), 1));
    x = std::move(y);
  }
  Tensor attend(std::size_t which, Tensor x, Tensor memory, T mask, T padding, bool is_causal) {
    Value result = attentions_[which]->call(
        {x, memory ? memory : x, memory ? memory : x},
        {{"attn_mask", to_value(mask)}, {"key_padding_mask", to_value(padding)}, {"need_weights", false}, {"is_causal", is_causal}});
    Tensor y = Unbox<Tensor>::from(std::get<std::shared_ptr<List>>(result)->items[0]);
    result = None{};
    x.reset();
    return (*dropouts_[which])(y);
  }
  Tensor feed(Tensor x) {
    Tensor h = (*linear1_)(x);
    h = gelu_ ? ops::gelu(h, "none") : ops::relu(h);
    h = (*dropout_)(h);
    Tensor y = (*linear2_)(h);
    h.reset();
    x.reset();
    return (*dropouts_.back())(y);
  }

  const Shape s_;
  bool gelu_;
  ModulePtr linear1_, dropout_, linear2_;
  std::vector<ModulePtr> attentions_, norms_, dropouts_;
};

class TransformerEncoderLayer final : public LayerBase {
 public:
  explicit TransformerEncoderLayer(const Shape& s) : LayerBase("TransformerEncoderLayer", s, {"self_attn"}, 2) {}
  /// Whether TransformerEncoder may turn padded input into nested tensors for it.
  bool nestable() const { return !s_.norm_first && s_.batch_first && s_.bias && s_.heads % 2 == 0; }
  /// The tensors that the fused path takes.
  Tensors weights() const {
    const auto& attention = attentions_[0]->own_parameters();
    const auto& out = attentions_[0]->children()[0].second->own_parameters();
    Tensors all{attention[3].second, attention[4].second, out[0].second, out[1].second};
    for (auto& m : {norms_[0], norms_[1], linear1_, linear2_})
      for (auto& [name, p] : m->own_parameters()) all.push_back(p);
    return all;
  }

 protected:
  Value forward(const Values& arguments, const KeywordArguments& keywords) override {
    const Values in = named(type(), {"src", "src_mask", "src_key_padding_mask", "is_causal"}, arguments, keywords);
    Tensor x = tensor_argument(type(), "src", in[0]);
    Tensor padding = canonical_mask(Unbox<Tensor>::from(in[2]), "src_key_padding_mask", x.dtype());
    Tensor mask = canonical_mask(Unbox<Tensor>::from(in[1]), "src_mask", x.dtype());
    if (takes_fast_path(x)) return fast(x, mask, padding);
    const bool is_causal = flag(in[3], false);
    residual(x, 0, [&](Tensor y) { return attend(0, std::move(y), {}, mask, padding, is_causal); });
    residual(x, 1, [&](Tensor y) { return feed(std::move(y)); });
    return x;
  }

 private:
  bool takes_fast_path(T x) const {
    if (x.dim() != 3 || training || !s_.batch_first || !s_.bias || s_.heads % 2 != 0) return false;
    Tensors tensors = weights();
    tensors.push_back(x);
    return allows_fast_path(tensors);
  }
  Value fast(T x, Tensor& mask, Tensor& padding) const {
    const MergedMask merged = merge_masks(mask, padding, x, s_.heads);
    const Tensors w = weights();
    const Tensor y = ops::transformer_encoder_layer_fwd(x, s_.width, s_.heads, w[0], w[1], w[2], w[3], gelu_, s_.norm_first, s_.eps, w[4],
                                                        w[5], w[6], w[7], w[8], w[9], w[10], w[11], merged.mask, merged.type);
    mask.reset();
    padding.reset();
    return y;
  }
};

class TransformerDecoderLayer final : public LayerBase {
 public:
  explicit TransformerDecoderLayer(const Shape& s) : LayerBase("TransformerDecoderLayer", s, {"self_attn", "multihead_attn"}, 3) {}

 protected:
  Value forward(const Values& arguments, const KeywordArguments& keywords) override {
    static const std::vector<std::string> names{
        "tgt", "memory", "tgt_mask", "memory_mask", "tgt_key_padding_mask", "memory_key_padding_mask", "tgt_is_causal", "memory_is_causal"};
    const Values in = named(type(), names, arguments, keywords);
    Tensor x = tensor_argument(type(), "tgt", in[0]);
    const Tensor memory = tensor_argument(type(), "memory", in[1]);
    auto mask = [&](std::size_t i) { return Unbox<Tensor>::from(in[i]); };
    residual(x, 0, [&](Tensor y) { return attend(0, std::move(y), {}, mask(2), mask(4), flag(in[6], false)); });
    residual(x, 1, [&](Tensor y) { return attend(1, std::move(y), memory, mask(3), mask(5), flag(in[7], false)); });
    residual(x, 2, [&](Tensor y) { return feed(std::move(y)); });
    return x;
  }
};

#define MEMEST_TRANSFORMER_LAYER(NAME)                                                                                             \
  const Layer NAME##_layer{                                                                                                        \
      #NAME                                                                                                                        \
      "(int d_model, int nhead, int dim_feedforward=2048, float dropout=0.1, str activation='relu', float layer_norm_eps=1e-05, "  \
      "bool batch_first=False, bool norm_first=False, bool bias=True)",                                                            \
      [](I width, I heads, I hidden, double dropout, const std::string& activation, double eps, bool batch_first, bool norm_first, \
         bool bias) -> ModulePtr {                                                                                                 \
        return std::make_shared<NAME>(Shape{width, heads, hidden, dropout, activation, eps, batch_first, norm_first, bias});       \
      }};
MEMEST_TRANSFORMER_LAYER(TransformerEncoderLayer)
MEMEST_TRANSFORMER_LAYER(TransformerDecoderLayer)
#undef MEMEST_TRANSFORMER_LAYER

// ---- stacks ------------------------------------------------------------------------------------------------------------------------

/// A module given as an argument: its type and arguments, as in a spec.
ModulePtr module_argument(const char* what, const Value& v) {
  if (is_none(v)) return nullptr;
  auto* given = std::get_if<std::shared_ptr<Dict>>(&v);
  const Value* type = given ? (*given)->find("type") : nullptr;
  if (!type || !std::holds_alternative<std::string>(*type))
    throw Error(fmt::format("{} must be a layer, as {{\"type\": \"TransformerEncoderLayer\", ...}}, found {}", what, describe(v)));
  KeywordArguments arguments;
  for (auto& [name, value] : (*given)->items)
    if (name != "type") arguments.emplace_back(name, value);
  return make_layer(std::get<std::string>(*type), arguments);
}

/// _detect_is_causal_mask compares the mask with a causal one; its values are not known, and taken as others.
bool detect_is_causal(T mask, const Value& is_causal, I length) {
  if (!is_none(is_causal) || !mask) return flag(is_causal, false);
  Tensor causal;
  {
    const Tensor full = empty({length, length}, mask.dtype());
    causal = empty({length, length}, mask.dtype());  // triu
  }
  if (!(mask.sizes() == causal.sizes())) return false;
  runtime().diagnostics.add({Diagnostic::Severity::note, "data-dependent",
                             "whether a mask is causal depends on its values, which memest does not have: it takes it for any other mask",
                             "", "say is_causal=True where it is"});
  Tensor equal = empty(mask.sizes(), DType::boolean);
  const Tensor all = empty({}, DType::boolean);
  equal.reset();
  return false;
}
I length_of(T x, bool batch_first) { return x.dim() == 2 ? x.size(0) : x.size(batch_first ? 1 : 0); }

template <class L>
class Stack : public Module {
 protected:
  Stack(const char* type, const std::vector<ModulePtr>& layers, ModulePtr norm) : Module(type), norm_(std::move(norm)) {
    if (layers.empty()) throw Error(fmt::format("{}: num_layers must be positive", type));
    for (auto& layer : layers) {
      layers_.push_back(std::dynamic_pointer_cast<L>(layer));
      if (!layers_.back()) throw Error(fmt::format("{} does not take a {}", type, layer->type()));
    }
    register_module("layers", std::make_shared<ModuleList>(layers));
    if (norm_) register_module("norm", norm_);
  }
  std::vector<std::shared_ptr<L>> layers_;
  ModulePtr norm_;
};

class TransformerEncoder final : public Stack<TransformerEncoderLayer> {
 public:
  TransformerEncoder(const std::vector<ModulePtr>& layers, ModulePtr norm, bool nested, bool mask_check)
      : Stack("TransformerEncoder", layers, std::move(norm)), nested_(nested && layers_[0]->nestable()), mask_check_(mask_check) {}

 protected:
  Value forward(const Values& arguments, const KeywordArguments& keywords) override {
    const Values in = named(type(), {"src", "mask", "src_key_padding_mask", "is_causal"}, arguments, keywords);
    const Tensor src = tensor_argument(type(), "src", in[0]);
    Tensor padding = canonical_mask(Unbox<Tensor>::from(in[2]), "src_key_padding_mask", src.dtype());
    Tensor mask = canonical_mask(Unbox<Tensor>::from(in[1]), "mask", src.dtype());
    Tensor output = src;
    if (nested_ && !layers_[0]->training && src.dim() == 3 && padding) check_left_aligned(padding);
    const bool is_causal = detect_is_causal(mask, in[3], length_of(src, layers_[0]->batch_first()));
    for (auto& layer : layers_)
      output = Unbox<Tensor>::from(
          layer->call({output}, {{"src_mask", to_value(mask)}, {"is_causal", is_causal}, {"src_key_padding_mask", to_value(padding)}}));
    if (norm_) output = (*norm_)(output);
    mask.reset();
    padding.reset();
    return output;
  }

 private:
  /// _nested_tensor_from_mask_left_aligned: whether the padding lies at the end, where nested tensors would be made.
  void check_left_aligned(T padding) const {
    if (!mask_check_)
      throw Error("TransformerEncoder: nested tensors (mask_check=False) are not modelled", "set enable_nested_tensor=False");
    runtime().diagnostics.add({Diagnostic::Severity::note, "data-dependent",
                               "whether padding lies at the end depends on values, which memest does not have: nested tensors are not made",
                               "", "set enable_nested_tensor=False for certainty"});
    const I batch = padding.size(0), length = padding.size(1);
    Tensor kept = empty(padding.sizes(), DType::boolean);
    Tensor end = empty({batch, 1}, DType::boolean);
    Tensor joined = empty({batch, length + 1}, DType::boolean);
    Tensor counts = empty({batch, length + 1}, DType::int32);
    Tensor first = empty({batch}, DType::int64);  // argmin
    counts.reset();
    joined.reset();
    Tensor sums = Unbox<Tensor>::from(call_op("aten::cumsum", {kept, I{1}}, {}));
    Tensor equal = empty({batch}, DType::boolean);
    Tensor all = empty({}, DType::boolean);
    for (Tensor* x : {&all, &equal, &first, &end, &sums, &kept}) x->reset();
  }
  bool nested_, mask_check_;
};

class TransformerDecoder final : public Stack<TransformerDecoderLayer> {
 public:
  TransformerDecoder(const std::vector<ModulePtr>& layers, ModulePtr norm) : Stack("TransformerDecoder", layers, std::move(norm)) {}

 protected:
  Value forward(const Values& arguments, const KeywordArguments& keywords) override {
    static const std::vector<std::string> names{
        "tgt", "memory", "tgt_mask", "memory_mask", "tgt_key_padding_mask", "memory_key_padding_mask", "tgt_is_causal", "memory_is_causal"};
    const Values in = named(type(), names, arguments, keywords);
    Tensor output = tensor_argument(type(), "tgt", in[0]);
    const Tensor mask = Unbox<Tensor>::from(in[2]);
    const bool is_causal = detect_is_causal(mask, in[6], length_of(output, layers_[0]->batch_first()));
    for (auto& layer : layers_)
      output = Unbox<Tensor>::from(layer->call({output, in[1]}, {{names[2], in[2]},
                                                                 {names[3], in[3]},
                                                                 {names[4], in[4]},
                                                                 {names[5], in[5]},
                                                                 {names[6], is_causal},
                                                                 {names[7], flag(in[7], false)}}));
    if (norm_) output = (*norm_)(output);
    return output;
  }
};

template <class Make>
std::vector<ModulePtr> copies(I count, Make make) {
  std::vector<ModulePtr> layers;
  for (I i = 0; i < count; ++i) layers.push_back(make());
  return layers;
}

const Layer transformer_encoder{
    "TransformerEncoder(Any encoder_layer, int num_layers, Any norm=None, bool enable_nested_tensor=True, bool mask_check=True)",
    [](const Value& layer, I count, const Value& norm, bool nested, bool mask_check) -> ModulePtr {
      return std::make_shared<TransformerEncoder>(copies(count, [&] { return module_argument("encoder_layer", layer); }),
                                                  module_argument("norm", norm), nested, mask_check);
    }};
const Layer transformer_decoder{"TransformerDecoder(Any decoder_layer, int num_layers, Any norm=None)",
                                [](const Value& layer, I count, const Value& norm) -> ModulePtr {
                                  return std::make_shared<TransformerDecoder>(
                                      copies(count, [&] { return module_argument("decoder_layer", layer); }),
                                      module_argument("norm", norm));
                                }};

class Transformer final : public Module {
 public:
  Transformer(const Shape& s, I encoder_layers, I decoder_layers, ModulePtr encoder, ModulePtr decoder) : Module("Transformer"), s_(s) {
    auto norm = [&] { return make_layer("LayerNorm", {{"normalized_shape", list_of(Dims{s.width})}, {"eps", s.eps}, {"bias", s.bias}}); };
    if (!encoder)
      encoder = std::make_shared<TransformerEncoder>(copies(encoder_layers, [&] { return std::make_shared<TransformerEncoderLayer>(s); }),
                                                     norm(), true, true);
    if (!decoder)
      decoder = std::make_shared<TransformerDecoder>(copies(decoder_layers, [&] { return std::make_shared<TransformerDecoderLayer>(s); }),
                                                     norm());
    encoder_ = register_module("encoder", encoder).get();
    decoder_ = register_module("decoder", decoder).get();
  }

 protected:
  Value forward(const Values& arguments, const KeywordArguments& keywords) override {
    static const std::vector<std::string> names{"src",
                                                "tgt",
                                                "src_mask",
                                                "tgt_mask",
                                                "memory_mask",
                                                "src_key_padding_mask",
                                                "tgt_key_padding_mask",
                                                "memory_key_padding_mask",
                                                "src_is_causal",
                                                "tgt_is_causal",
                                                "memory_is_causal"};
    const Values in = named(type(), names, arguments, keywords);
    const Tensor src = tensor_argument(type(), names[0], in[0]), tgt = tensor_argument(type(), names[1], in[1]);
    const int batch_dim = s_.batch_first ? 0 : 1;
    if (src.dim() == 3 && src.size(batch_dim) != tgt.size(batch_dim)) throw Error("the batch number of src and tgt must be equal");
    if (src.size(-1) != s_.width || tgt.size(-1) != s_.width) throw Error("the feature number of src and tgt must be equal to d_model");
    const Value memory = encoder_->call({in[0]}, {{"mask", in[2]}, {"src_key_padding_mask", in[5]}, {"is_causal", in[8]}});
    return decoder_->call({in[1], memory}, {{"tgt_mask", in[3]},
                                            {"memory_mask", in[4]},
                                            {"tgt_key_padding_mask", in[6]},
                                            {"memory_key_padding_mask", in[7]},
                                            {"tgt_is_causal", in[9]},
                                            {"memory_is_causal", flag(in[10], false)}});
  }

 private:
  const Shape s_;
  Module *encoder_, *decoder_;
};
const Layer transformer{
    "Transformer(int d_model=512, int nhead=8, int num_encoder_layers=6, int num_decoder_layers=6, int dim_feedforward=2048, float "
    "dropout=0.1, str activation='relu', Any custom_encoder=None, Any custom_decoder=None, float layer_norm_eps=1e-05, bool "
    "batch_first=False, bool norm_first=False, bool bias=True)",
    [](I width, I heads, I encoder_layers, I decoder_layers, I hidden, double dropout, const std::string& activation, const Value& encoder,
       const Value& decoder, double eps, bool batch_first, bool norm_first, bool bias) -> ModulePtr {
      return std::make_shared<Transformer>(Shape{width, heads, hidden, dropout, activation, eps, batch_first, norm_first, bias},
                                           encoder_layers, decoder_layers, module_argument("custom_encoder", encoder),
                                           module_argument("custom_decoder", decoder));
    }};

}  // namespace
}  // namespace memest::nn
