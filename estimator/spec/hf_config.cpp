// Hugging Face config.json, alone or in a folder: the configuration with its class's defaults, and the network of that class.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <set>

#include "base/text.h"
#include "fake/runtime.h"
#include "models/hf/encoder_decoder.h"
#include "models/hf/family.h"
#include "models/hf/generate.h"
#include "models/hf/liger.h"
#include "models/hf/parts.h"
#include "models/hf/release.h"
#include "models/hf/weights_only.h"
#include "spec/config_values.h"
#include "spec/diffusers_config.h"
#include "spec/hf_quantization.h"
#include "spec/hf_weights.h"
#include "spec/json.h"
#include "spec/reader.h"

namespace memest::spec {
namespace fs = std::filesystem;
namespace {

struct ClassDefaults {
  const char* model_type;
  const char* json;
};
constexpr ClassDefaults kDefaults[] = {
#include "spec/hf_defaults.inc"
};

const Json& defaults_of(const std::string& model_type) {
  static thread_local std::map<std::string, Json> parsed;
  static const Json none = Json::object();
  if (auto it = parsed.find(model_type); it != parsed.end()) return it->second;
  for (auto& d : kDefaults)
    if (model_type == d.model_type) return parsed.emplace(model_type, Json::parse(d.json)).first->second;
  return none;
}

Json member(const Json& object, const char* key) { return object.contains(key) ? object[key] : Json::object(); }

/// CLIPConfig.__post_init__: text_config_dict and vision_config_dict, with the defaults of their classes, go before the sections.
std::string section_name(const Json& file, const std::string& model_type, const std::string& key) {
  const std::string older = key + "_dict";
  return model_type == "clip" && file.contains(older) && file[older].is_object() ? older : key;
}

/// A configuration as its class has it: aliases resolved (a field of the class's own name first, as its constructor takes them), sections
/// with the defaults of their classes.
Config config_of(const Json& file, const std::string& model_type, const std::string& pointer, const Json& init = Json::object()) {
  const Json& facts = defaults_of(model_type);
  const Json fields = member(facts, "fields"), aliases = member(facts, "aliases"), sections = member(facts, "sections");
  std::map<std::string, std::string> names;
  for (auto& [from, to] : aliases.items()) names[from] = to.get<std::string>();
  Json defaults = fields, given = Json::object();
  for (auto& [key, value] : init.items()) defaults[names.contains(key) ? names[key] : key] = value;
  for (auto& [key, value] : file.items())
    if ((!key.starts_with("_") || fields.contains(key)) && !names.contains(key)) given[key] = value;
  for (auto& [key, value] : file.items())
    if (names.contains(key)) given[names[key]] = value;
  Config config(model_type, setting_of(given), setting_of(defaults), names, pointer);
  for (auto& [key, spec] : sections.items()) {
    const std::string name = section_name(given, model_type, key);
    const bool there = given.contains(name) && given[name].is_object();
    if (given.contains(name) && !there && !given[name].is_null())
      throw Error("expected an object, found " + std::string(given[name].type_name())).within(pointer + "/" + name);
    if (!there && spec.value("optional", false)) continue;
    const bool flat = !there && spec.value("flat", false);  // written before the class had sections
    const Json own = there ? given[name] : flat ? file : Json::object();
    std::string type = spec["model_type"].get<std::string>();
    if (there && own.contains("model_type") && own["model_type"].is_string() && own["model_type"] != model_type &&
        !defaults_of(own["model_type"].get<std::string>()).empty())
      type = own["model_type"].get<std::string>();
    config.set_section(key, config_of(own, type, flat ? pointer : pointer + "/" + name,
                                      there && !spec.value("merged", false) ? Json::object() : member(spec, "fields")));
  }
  return config;
}

/// The first of the file's architectures; empty where it names none.
std::string named_class(const Json& file) {
  if (!file.contains("architectures") || !file["architectures"].is_array() || file["architectures"].empty() ||
      !file["architectures"][0].is_string())
    return {};
  return file["architectures"][0].get<std::string>();
}

/// The model_type whose family has that class; empty where none has.
std::string model_type_of_class(const Json& file) {
  const std::string name = named_class(file);
  for (auto* family : hf::all_families())
    for (auto& c : family->classes)
      if (name == c.class_name) return family->model_types[0];
  return {};
}

/// Files of before 2020 have no model_type (formats: the class's name, else tell-tale fields).
std::string inferred_model_type(const Node& top) {
  const Json& j = top.json();
  auto has = [&](const char* key) { return j.contains(key); };
  if (const std::string named = model_type_of_class(j); !named.empty()) return named;
  if (const std::string name = named_class(j); !name.empty()) {
    static constexpr std::pair<const char*, const char*> kStarts[] = {
        {"GPT2", "gpt2"},     {"Roberta", "roberta"}, {"DistilBert", "distilbert"},
        {"Albert", "albert"}, {"Electra", "electra"}, {"Bert", "bert"},
        {"T5", "t5"},         {"XLNet", "xlnet"}};
    for (auto& [start, type] : kStarts)
      if (name.starts_with(start)) return type;
  }
  if (has("n_embd") && has("n_layer")) return "gpt2";
  if (has("relative_attention") || has("pos_att_type")) return "deberta";
  if (j.value("type_vocab_size", 0) == 1 && j.value("vocab_size", 0) == 50265) return "roberta";
  if (has("embedding_size") && has("hidden_size") && j["embedding_size"] != j["hidden_size"]) return "albert";
  if (has("d_ff") && has("num_heads")) return "t5";
  if (j.value("type_vocab_size", 0) == 2) return "bert";
  return "";
}

/// Files that lie beside a config.json, by keys that only they have.
struct Sibling {
  std::vector<const char*> keys;
  const char* what;
};
const std::vector<Sibling>& siblings() {
  static const std::vector<Sibling> list{{{"dim", "n_layers", "n_heads"}, "the params.json of a model's own release"},
                                         {{"peft_type"}, "the adapter_config.json of peft, an adapter's and not a model's"},
                                         {{"tokenizer_class"}, "a tokenizer_config.json"},
                                         {{"image_processor_type"}, "a preprocessor_config.json"},
                                         {{"weight_map"}, "the index of a model's weights"},
                                         {{"bos_token_id", "transformers_version"}, "a generation_config.json"}};
  return list;
}
const Sibling* sibling_of(const Json& file) {
  for (auto& sibling : siblings())
    if (std::all_of(sibling.keys.begin(), sibling.keys.end(), [&](const char* key) { return file.contains(key); })) return &sibling;
  return nullptr;
}

/// Where the file names a class of one of its sections' types (Gemma3ForCausalLM in a file of gemma3), that class reads the section, or the
/// file itself where it has none (PreTrainedConfig.from_dict with base_config_key).
struct Part {
  std::string model_type, section;
};
std::optional<Part> named_part(const Json& file, const std::string& model_type, const hf::Family& family) {
  const std::string name = named_class(file);
  for (auto& c : family.classes)
    if (name == c.class_name) return {};
  const Json sections = member(defaults_of(model_type), "sections");
  for (auto& [key, spec] : sections.items()) {
    const std::string type = spec["model_type"].get<std::string>();
    const hf::Family* part = hf::find_family(type);
    if (!part) continue;
    for (auto& c : part->classes)
      if (name == c.class_name) return Part{type, file.contains(key) && file[key].is_object() ? key : ""};
  }
  return {};
}

const hf::TaskClass& class_for(const ReadOptions& options, const hf::Family& family, const Json& file) {
  auto of_task = [&](hf::Task task) {
    return std::find_if(family.classes.begin(), family.classes.end(), [&](auto& c) { return c.task == task; });
  };
  if (!options.task.empty()) {
    std::vector<std::string> names;
    for (auto& c : family.classes) names.emplace_back(hf::name_of(c.task));
    auto task = hf::task_from(options.task);
    if (!task || of_task(*task) == family.classes.end())
      throw Error(fmt::format("--task: '{}' is none that memest builds for {}", options.task.substr(0, 60), family.model_types[0]),
                  "it builds " + join(names, ", "));
    return *of_task(*task);
  }
  if (const std::string name = named_class(file); !name.empty()) {
    for (auto& c : family.classes)
      if (name == c.class_name) return c;
    // A class of somebody's own code ("DFlashDraftModel") tells nothing by its ending: Auto takes the family's first.
    const hf::Task task = hf::task_of_class(name).value_or(hf::Task::base);
    const auto built = of_task(task);
    const auto& taken = task == hf::Task::base || built == family.classes.end() ? family.classes[0] : *built;
    runtime().diagnostics.add(
        {Diagnostic::Severity::warning, "other-class",
         fmt::format("the file names {}, which memest does not build: taken as {}, whose head may have other parameters",
                     name.substr(0, 80), taken.class_name),
         "/architectures/0", "choose the head with --task"});
    return taken;
  }
  return family.classes[0];
}

/// Whether the command line gives a size one of these symbols.
bool gives(const ReadOptions& options, std::initializer_list<const char*> symbols) {
  return std::any_of(options.sizes.begin(), options.sizes.end(), [&](auto& size) {
    return std::any_of(symbols.begin(), symbols.end(), [&](auto* symbol) { return size.first == symbol; });
  });
}

/// The network as the run calls it.
class HfModel final : public nn::Model {
 public:
  using CacheKind = hf::Generation::CacheKind;
  HfModel(hf::NetworkPtr network, const Config& config, const hf::Options& options, CacheKind cache, TransformersVersion release)
      : network_(std::move(network)), config_(config), options_(options), cache_(cache), release_(release) {
    root = network_;
  }
  bool generates() const override { return network_->generates(); }
  Value generate(const Tensors& batch, const nn::Generation& g) override {
    hf::release() = release_;
    if (g.all_logits && dynamic_cast<const hf::EncoderDecoder*>(network_.get()))
      throw Error("--logits all: the decoder of an encoder-decoder starts from one token", "leave it out");
    const std::int64_t prompt = dynamic_cast<const hf::EncoderDecoder*>(network_.get()) ? 1 : batch[0].size(-1);
    if (const std::int64_t all = prompt + g.new_tokens - 1; generates_at_most > 0 && all > generates_at_most)  // the last is not fed back
      runtime().diagnostics.add({Diagnostic::Severity::warning, "positions",
                                 fmt::format("a real run stops: {} tokens, and the model has positions for {}", all, generates_at_most), "",
                                 "ask for fewer --new-tokens"});
    hf::Batch call = call_of(batch);
    hf::X attention_mask;
    for (auto& [role, x] : call.others)
      if (role == "attention_mask") attention_mask = x;
    hf::X sequences = hf::generate(*network_, config_, options_, std::move(call), std::move(attention_mask),
                                   {g.new_tokens, g.all_logits, options_.use_cache, cache_, g.on_decode});
    check_attention();
    return Tensor(std::move(sequences));
  }
  std::optional<nn::CacheBytes> cache_bytes() override {
    hf::release() = release_;
    hf::Batch call;
    if (network_->generates() && options_.use_cache) call.cache = network_->new_generation_cache();
    if (!call.cache) return {};
    if (cache_ == CacheKind::fp8) call.cache->make_fp8();
    const hf::CachePtr cache = call.cache;
    call.input = empty({1, 1}, DType::int64);
    call.position_ids = empty({1, 1}, DType::int64);
    call.logits_to_keep = 1;
    network_->step(std::move(call));
    nn::CacheBytes bytes;
    auto size = [](T x) { return x ? x.numel() * item_size(x.dtype()) : Bytes{0}; };
    for (auto& layer : cache->layers()) {
      const Bytes of_token = size(layer.keys) + size(layer.values);
      bytes.per_token += of_token;
      if (layer.window) bytes.sliding_per_token += of_token, bytes.sliding_window = layer.window;
      for (auto& state : layer.states) bytes.state += size(state);
    }
    return bytes;
  }
  std::optional<nn::ParameterParts> parameter_parts() const override { return hf::parameter_parts(*root, output_embeddings()); }
  nn::Outcome forward(const Tensors& batch) override {
    hf::release() = release_;
    nn::Outcome outcome = network_->run(call_of(batch));
    check_attention();
    return outcome;
  }
  std::int64_t generates_at_most = 0;  ///< tokens that the table of positions of what generates has; 0: it has none
  bool computes_loss() const override { return options_.labels; }
  bool checkpoints_itself() const override { return true; }
  bool is_transformers() const override { return true; }
  std::string output_embeddings() const override {
    for (const char* head : {"lm_head", "embed_out", "language_model.lm_head"})
      if (root->find(head)) return head;
    return {};
  }

 private:
  hf::NetworkPtr network_;
  /// The arguments of a call, by the inputs' names.
  hf::Batch call_of(const Tensors& batch) const {
    hf::Batch b;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const std::string& role = inputs[i].name;
      hf::X& argument = i == 0                                                                       ? b.input
                        : role == "decoder_input_ids"                                                ? b.decoder_input
                        : role == "end_positions"                                                    ? b.end_positions
                        : role == "next_sentence_label"                                              ? b.next_sentence_label
                        : role == "labels" || role == "start_positions" || role == "bool_masked_pos" ? b.labels
                        : role == "pixel_values"                                                     ? b.pixel_values
                        : role == "token_type_ids"                                                   ? b.token_type_ids
                                                   : b.others.emplace_back(role, hf::X()).second;
      argument = batch[i];
    }
    return b;
  }
  /// --attn flash, where no attention of the model took it.
  void check_attention() const {
    if (options_.attention == hf::Attention::flash && !*options_.takes_flash)
      throw Error("--attn flash: " + root->type() + " has no flash attention in memest",
                  "use --attn sdpa, which takes flash kernels where it can");
  }

  Config config_;
  hf::Options options_;
  CacheKind cache_;
  TransformersVersion release_;  ///< whose code a call follows
};

/// from_pretrained's dtype="auto": the config's type, else that of the weights.
DType dtype_of(const Config& config, std::optional<DType> stored) {
  const char* key = config.has("dtype") ? "dtype" : "torch_dtype";
  std::string name = config.text_or(key, "auto");
  if (name == "auto") return stored.value_or(DType::float32);
  if (name.starts_with("torch.")) name = name.substr(6);
  const auto type = dtype_from(name);
  if (!type || !is_floating(*type)) throw config.error(key, "a floating type of PyTorch, found '" + name.substr(0, 60) + "'");
  if (stored && *stored != *type)
    runtime().diagnostics.add({Diagnostic::Severity::warning, "weights-dtype",
                               fmt::format("the files hold {} and the config says {}", name_of(*stored), name_of(*type)),
                               std::string("/") + key, "transformers converts them as it loads; --precision chooses"});
  return *type;
}

/// GenerationConfig.use_cache: of a generation_config.json beside the file, with its own default; else what the configuration says.
bool generation_cache(const fs::path& folder, bool of_config) {
  const fs::path beside = folder / "generation_config.json";
  if (fs::is_regular_file(beside)) {
    const Json file = parse_json(read_file(beside.string(), 64 * kMiB));
    return !file.is_object() || !file.contains("use_cache") || !file["use_cache"].is_boolean() || file["use_cache"].get<bool>();
  }
  if (!of_config)
    runtime().diagnostics.add(
        {Diagnostic::Severity::note, "no-cache",
         "the configuration says use_cache=false, and generate() does as it says: each token runs the whole sequence again", "/use_cache",
         "--use-cache yes"});
  return of_config;
}

HfModel::CacheKind cache_kind(const ReadOptions& options, const hf::Options& o) {
  if (options.cache.empty()) return HfModel::CacheKind::dynamic;
  if (!options.generates) throw Error("--cache: a plain forward fills a DynamicCache", "add --new-tokens, for generate()");
  if (!o.use_cache && options.use_cache) throw Error("--cache and --use-cache no exclude each other");
  if (!o.use_cache) throw Error("--cache: the configuration says use_cache=false, and generate() keeps none", "add --use-cache yes");
  if (options.cache == "fp8") return HfModel::CacheKind::fp8;
  if (o.attention == hf::Attention::flash)
    throw Error("--cache static: memest does not model flash attention over it", "use --attn sdpa or eager");
  return HfModel::CacheKind::fixed;
}

class HfConfig final : public Reader {
 public:
  HfConfig() : Reader("hf-config") {}

  bool builds() const override { return true; }
  bool recognises(const std::string& path, const std::string& head) const override {
    if (fs::is_directory(path))
      return fs::is_regular_file(fs::path(path) / "config.json") || fs::is_regular_file(fs::path(path) / "model_index.json");
    return looks_like_hf_config(path, head);
  }

  std::unique_ptr<nn::Model> read(const std::string& path, const ReadOptions& options) const override {
    const bool folder = fs::is_directory(path);
    if (folder && !fs::is_regular_file(fs::path(path) / "config.json")) refuse_pipeline((fs::path(path) / "model_index.json").string());
    const std::string file_path = folder ? (fs::path(path) / "config.json").string() : path;
    const Json file = parse_json(read_file(file_path, 64 * kMiB));
    const Node top(file);
    if (!file.is_object()) throw top.error("a config.json is an object, found " + top.found());
    if (is_diffusers_config(file)) return read_diffusers_config(file, file_path, options);
    std::string model_type;
    Runtime& rt = runtime();
    if (top.has("model_type")) {
      model_type = top.at("model_type").text();
    } else {
      model_type = inferred_model_type(top);
      if (model_type.empty()) {
        if (auto* sibling = sibling_of(file))
          throw Error(fmt::format("this is {}", sibling->what), "memest reads the config.json of transformers, which lies beside it")
              .within("/model_type");
        throw Error("this field is missing, and nothing in the file says which model it is").within("/model_type");
      }
      rt.diagnostics.add({Diagnostic::Severity::note, "guessed-model-type", "the file names no model_type; taken as " + model_type,
                          "/model_type", "add \"model_type\" to the file"});
    }
    const hf::Family* family = hf::find_family(model_type);
    if (const std::string named = family ? "" : model_type_of_class(file); !named.empty()) {
      rt.diagnostics.add({Diagnostic::Severity::note, "guessed-model-type",
                          fmt::format("memest does not know the model_type '{}'; the file's class, {}, is one of {}",
                                      model_type.substr(0, 60), named_class(file).substr(0, 80), named),
                          "/model_type", ""});
      model_type = named;
      family = hf::find_family(model_type);
    }
    if (!family) {
      const std::string near = did_you_mean(model_type, hf::all_model_types());
      throw Error(fmt::format("memest does not know the model_type '{}'", model_type.substr(0, 60)),
                  (near.empty() ? "" : near + " ") + "'memest list models' lists those it knows")
          .within("/model_type");
    }

    std::string section;
    if (auto part = named_part(file, model_type, *family); part && options.task.empty()) {
      model_type = part->model_type;
      section = part->section;
      family = hf::find_family(model_type);
    }
    Config config = section.empty() ? config_of(file, model_type, "") : config_of(file[section], model_type, "/" + section);
    for (auto& [symbol, value] : options.sizes)
      if (symbol == "classes") {
        config.set("num_labels", {value});
        config.set("id2label", {});
      }
    for (auto& [symbol, value] : options.sizes)  // what only the values of an input would tell
      if (symbol == "height" || symbol == "width") config.set("image_" + symbol, {value});
    const TransformersVersion release = options.transformers.value_or(TransformersVersion::beside(rt.settings.torch));
    hf::Options o;
    const hf::TaskClass& made = class_for(options, *family, file);
    o.task = made.task;
    o.class_name = made.class_name;
    o.images = o.task == hf::Task::image_text_to_text || o.task == hf::Task::zero_shot_image_cls;
    for (auto& [symbol, value] : options.sizes)
      if (symbol == "images") o.images = value;
    o.attention = options.attention == "eager"   ? hf::Attention::eager
                  : options.attention == "flash" ? hf::Attention::flash
                                                 : hf::Attention::sdpa;
    if (!release.has_experts_implementations()) o.experts = "eager";
    if (!options.experts.empty()) {
      if (options.experts != "eager" && !release.has_experts_implementations())
        throw Error(fmt::format("--experts {}: experts are modules of their own in transformers {}", options.experts, release.name()),
                    "leave it out, or choose a later --transformers-version");
      o.experts = options.experts;
    }
    const Config text = config.section_if("text_config").value_or(config);
    o.use_cache = options.use_cache.value_or(config.boolean_or("use_cache", text.boolean_or("use_cache", true)));
    o.labels = options.training && o.task != hf::Task::base && o.task != hf::Task::text_encoding;
    if (options.generates && !options.use_cache) o.use_cache = generation_cache(fs::path(file_path).parent_path(), o.use_cache);
    o.logits_to_keep = options.logits_to_keep;
    o.chunked_loss = options.chunked_loss;
    if (options.generates) o.packed = o.padded = false;  // one prompt a sample, and all of one length
    if (!release.finds_packed_sequences()) o.packed = false;
    if (options.checkpoint && !defaults_of(model_type).value("gradient_checkpointing", true))
      throw Error(fmt::format("{} does not support gradient checkpointing in transformers", made.class_name), "leave out --checkpoint");
    o.checkpoint = options.checkpoint;
    o.reentrant = options.reentrant;
    o.target = gives(options, {"tgt_seq"});
    auto weights = folder ? WeightFiles::find(path) : std::nullopt;
    const DType file_dtype = dtype_of(config, weights ? weights->dtype() : std::nullopt);
    if (options.file_dtype && (file_dtype == DType::bfloat16 || file_dtype == DType::float16)) rt.default_dtype = file_dtype;
    hf::release() = release;
    hf::NetworkPtr network = made.make(config, o);
    if (o.chunked_loss) check_chunked_loss(*network, model_type);
    check_images(*network, *family, o, options);
    auto model = std::make_unique<HfModel>(network, config, o, cache_kind(options, o), release);
    model->kind = name;
    model->file_dtype = file_dtype;
    model->most_tokens = config.integer_or("max_encoder_position_embeddings", config.integer_or("max_position_embeddings", 0));
    if (release != TransformersVersion::newest())
      rt.diagnostics.add({Diagnostic::Severity::note, "older-transformers",
                          fmt::format("transformers {} is followed in its attention, caches, masks and buffers as far as memest knows them",
                                      release.name()),
                          "", "docs/accuracy.md says how far; --transformers-version chooses another"});
    if (dynamic_cast<const hf::WeightsOnly*>(network.get())) note_weights_only(network->type(), options);
    model->quantization = read_quantization(config);
    if (weights) model->stored = weights->compared_with(*network, model->quantization != nullptr);
    model->name = name_of(path, folder, file, model_type);
    for (auto& [symbol, value] : network->default_sizes()) (*model->symbols)[symbol] = value;
    for (auto& [symbol, value] : options.sizes) (*model->symbols)[symbol] = value;
    model->inputs = network->inputs();
    if (options.generates) {
      if (!network->generates())
        throw Error(fmt::format("--new-tokens: {} with the task {} does not generate in memest", model_type, hf::name_of(o.task)),
                    "it works for most decoders of text, encoder-decoders and models of images and text: docs/accuracy.md has the list");
      if (dynamic_cast<const hf::EncoderDecoder*>(network.get())) {
        if (o.target) throw Error("--tgt-seq: generate() starts the decoder from one token", "--new-tokens says how many tokens follow");
        if (!options.cache.empty())
          throw Error("--cache: memest runs generate() of an encoder-decoder with its default cache only",
                      "leave --cache and --cache-dtype out");
        model->inputs.resize(1);
      }
      if (dynamic_cast<const hf::Transcribes*>(network.get())) {
        for (auto& [symbol, value] : options.sizes)
          if (symbol == "seq" || symbol == "src_seq")
            throw Error("--seq: a segment of sound has the configuration's length, and the decoder starts from its first tokens",
                        "--new-tokens says how many tokens follow");
      } else {
        nn::InputSpec mask = model->inputs.at(0);
        mask.name = "attention_mask";
        model->inputs.insert(model->inputs.begin() + 1, mask);
      }
    }
    bind_lengths(*model, options, made.class_name, takes_images(config, *network));
    check_positions(*model, *network, config, options);
    if (!options.inputs.empty()) override_inputs(*model, options);
    return model;
  }

 private:
  /// --images of a class that takes none, or one.
  static void check_images(const hf::Network& network, const hf::Family& family, const hf::Options& o, const ReadOptions& options) {
    const bool given = gives(options, {"images"});
    const auto sizes = network.default_sizes();
    if (!given || o.images == 0 || o.task == hf::Task::image_text_to_text ||
        std::any_of(sizes.begin(), sizes.end(), [](auto& size) { return size.first == "images"; }))
      return;
    if (o.task == hf::Task::zero_shot_image_cls) {
      if (o.images == 1) return;
      throw Error(fmt::format("--images {}: {} takes as many images as texts", o.images, network.type()),
                  "leave it out, --batch is of both");
    }
    const bool other =
        std::any_of(family.classes.begin(), family.classes.end(), [](auto& c) { return c.task == hf::Task::image_text_to_text; });
    throw Error(fmt::format("--images {}: {} takes no images beside text", o.images, network.type()),
                other ? "--task image-text-to-text builds the class that does" : "leave it out");
  }
  /// --loss chunked: transformers/monkey_patch.py of liger_kernel 0.8.5 says which families it knows.
  static void check_chunked_loss(const hf::Network& network, const std::string& model_type) {
    static const std::set<std::string> kPatched{"llama",       "mistral",  "ministral",   "mixtral",   "gemma",       "gemma2",
                                                "gemma3_text", "qwen2",    "qwen3",       "qwen3_moe", "phi3",        "olmo2",
                                                "olmo3",       "glm4",     "smollm3",     "exaone4",   "deepseek_v2", "gpt_oss",
                                                "llama4_text", "nemotron", "deepseek_v3", "qwen3_next"};
    if (!dynamic_cast<const hf::ChunksLoss*>(&network))
      throw Error(fmt::format("--loss chunked: {} computes no loss of a causal language model that memest can chunk", network.type()),
                  "it works for --task causal-lm of decoder-only models");
    if (!kPatched.contains(model_type))
      runtime().diagnostics.add({Diagnostic::Severity::warning, "assumed-loss",
                                 fmt::format("liger_kernel 0.8.5 does not patch {}: the loss is taken as if it did", model_type), "", ""});
  }
  static void note_weights_only(const std::string& type, const ReadOptions& options) {
    const std::string knows = "memest knows the parameters of " + type + ", and not its run";
    if (options.training || options.generates) throw Error(knows, "--mode infer says what loading them takes");
    runtime().diagnostics.add(
        {Diagnostic::Severity::warning, "weights-only", knows + ": the figures are what loading takes, and nothing runs", "", ""});
  }
  static std::string name_of(const std::string& path, bool folder, const Json& file, const std::string& model_type) {
    if (file.contains("_name_or_path") && file["_name_or_path"].is_string() && !file["_name_or_path"].get<std::string>().empty() &&
        file["_name_or_path"].get<std::string>().size() < 80)
      return file["_name_or_path"].get<std::string>();
    const fs::path p(path);
    if (folder) return p.filename().empty() ? p.parent_path().filename().string() : p.filename().string();
    return p.filename() == "config.json" ? model_type : p.stem().string();
  }
  /// Tables of learned (or stored) positions, by the names that transformers gives them: a longer text reads past their end, which stops a
  /// real run. A default length is shortened to them. Some tables grow (M2M100's kind), and those of images are no tables of a text.
  static void check_positions(HfModel& model, nn::Module& network, const Config& config, const ReadOptions& options) {
    static constexpr const char* kTables[] = {".wpe.weight", ".embed_positions.weight", ".position_embeddings.weight",
                                              ".position_embedding.weight"};
    if (model.inputs.empty() || model.inputs[0].name != "input_ids") return;
    for (auto& named : network.named_parameters()) {
      const std::string& name = named.first;
      const Tensor& table = named.second;
      const bool is_table = std::any_of(std::begin(kTables), std::end(kTables), [&](auto* ending) { return name.ends_with(ending); });
      const bool of_text = name.find("vision") == std::string::npos && name.find("visual") == std::string::npos &&
                           name.find("audio") == std::string::npos && name.find("image") == std::string::npos &&
                           name.find("entity") == std::string::npos;
      if (!is_table || !of_text || table.dim() != 2) continue;
      const nn::Module* module = network.find(name.substr(0, name.rfind('.')));
      if (!module || module->type().find("Sinusoidal") != std::string::npos) continue;
      const bool decodes = name.find("decoder.") != std::string::npos;
      const char* symbol = decodes && model.symbols->contains("tgt_seq")                                      ? "tgt_seq"
                           : name.find("encoder.") != std::string::npos && model.symbols->contains("src_seq") ? "src_seq"
                                                                                                              : "seq";
      const auto length = model.symbols->find(symbol);
      std::int64_t most = table.size(0);
      const char* part = decodes ? "max_decoder_position_embeddings" : "max_encoder_position_embeddings";
      if (const std::int64_t own = config.integer_or(part, model.most_tokens); own > 0) most = std::min(most, own);
      if (name.find("encoder.") == std::string::npos) model.generates_at_most = most;
      if (length == model.symbols->end() || length->second <= most) continue;
      const bool given = gives(options, {symbol, "seq"});
      if (!given)
        length->second = most;
      else
        runtime().diagnostics.add({Diagnostic::Severity::warning, "positions",
                                   fmt::format("a real run stops: {} tokens, and {} has positions for {}", length->second, name, most), "",
                                   "ask for no longer texts"});
    }
  }
  /// Whether a size of images says anything of the model, also where this call gives it none.
  static bool takes_images(const Config& config, const hf::Network& network) {
    for (auto& [symbol, value] : network.default_sizes())
      if (symbol == "image" || symbol == "height" || symbol == "width") return true;
    return config.has("vision_config");
  }
  /// The source's and the target's length: those of --seq unless they are given. Sizes that the model does not have are refused.
  static void bind_lengths(nn::Model& model, const ReadOptions& options, const std::string& class_name, bool has_images) {
    std::vector<std::string> used;
    for (auto& input : model.inputs)
      for (auto& size : input.shape)
        for (auto& symbol : size.symbols()) used.push_back(symbol);
    static const std::set<std::string> kOptions{"batch", "seq", "src_seq", "tgt_seq", "image", "height", "width", "images", "classes"};
    for (auto& [symbol, value] : options.sizes)
      if (!kOptions.contains(symbol) && std::find(used.begin(), used.end(), symbol) == used.end())
        throw Error(fmt::format("--set {}: {} has no such size", symbol.substr(0, 80), class_name), did_you_mean(symbol, used));
    const auto uses = [&](std::initializer_list<const char*> symbols) {
      return std::any_of(symbols.begin(), symbols.end(),
                         [&](auto* symbol) { return std::find(used.begin(), used.end(), symbol) != used.end(); });
    };
    if (gives(options, {"seq"}) && !uses({"seq", "src_seq", "tgt_seq"}) && !model.inputs.empty())
      throw Error(fmt::format("--seq: {} takes no text", class_name), "leave it out");
    if (uses({"image"}) && !uses({"height", "width"})) {
      std::int64_t height = 0, width = 0;
      for (auto& [symbol, value] : options.sizes) {
        if (symbol == "height") height = value;
        if (symbol == "width") width = value;
      }
      if (height != width)
        throw Error(fmt::format("--image {}x{}: memest runs {} on square images", height, width, class_name), "give one number");
    }
    if (gives(options, {"image", "height", "width"}) && !has_images && !uses({"image", "height", "width"}) && !model.inputs.empty())
      throw Error(fmt::format("--image: {} takes no images", class_name), "leave it out");
    for (const std::string symbol : {"src_seq", "tgt_seq"}) {
      const bool given = gives(options, {symbol.c_str()});
      if (std::find(used.begin(), used.end(), symbol) == used.end()) {
        const bool source = symbol == "src_seq";
        if (given)
          throw Error(fmt::format("--{}: {} takes no {} of its own length", source ? "src-seq" : "tgt-seq", class_name,
                                  source ? "source" : "target"),
                      "its length is --seq");
      } else if (auto seq = model.symbols->find("seq"); !given && seq != model.symbols->end()) {
        model.symbols->insert_or_assign(symbol, seq->second);
      }
    }
  }
};
const HfConfig hf_config_reader;

}  // namespace

bool looks_like_hf_config(const std::string& path, const std::string& head) {
  const auto first = head.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
  if (first == std::string::npos || head[first] != '{' || head.find("\"memest_spec\"") != std::string::npos) return false;
  if (path.ends_with("config.json")) return true;
  auto tells = [](const std::string& text) {
    for (auto* key : {"\"model_type\"", "\"architectures\"", "\"_class_name\"", "\"transformers_version\""})
      if (text.find(key) != std::string::npos) return true;
    return std::any_of(siblings().begin(), siblings().end(), [&](auto& sibling) {
      return std::all_of(sibling.keys.begin(), sibling.keys.end(),
                         [&](const char* key) { return text.find('"' + std::string(key) + '"') != std::string::npos; });
    });
  };
  if (tells(head)) return true;
  if (head.size() < 4096) return false;
  std::ifstream file(path, std::ios::binary);
  std::string all(1 << 20, '\0');
  file.read(all.data(), std::streamsize(all.size()));
  all.resize(std::size_t(file.gcount()));
  return all.find("\"memest_spec\"") == std::string::npos && tells(all);
}

}  // namespace memest::spec
