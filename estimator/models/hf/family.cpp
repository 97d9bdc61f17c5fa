#include "models/hf/family.h"

#include <algorithm>

namespace memest::hf {
namespace {

std::vector<const Family*>& registered() {
  static std::vector<const Family*> families;
  return families;
}

constexpr std::pair<Task, const char*> kTasks[] = {{Task::causal_lm, "causal-lm"},
                                                   {Task::masked_lm, "masked-lm"},
                                                   {Task::seq_cls, "seq-cls"},
                                                   {Task::token_cls, "token-cls"},
                                                   {Task::question_answering, "question-answering"},
                                                   {Task::multiple_choice, "multiple-choice"},
                                                   {Task::pretraining, "pretraining"},
                                                   {Task::seq2seq, "seq2seq"},
                                                   {Task::image_cls, "image-cls"},
                                                   {Task::semantic_seg, "semantic-seg"},
                                                   {Task::masked_image, "masked-image"},
                                                   {Task::audio_cls, "audio-cls"},
                                                   {Task::ctc, "ctc"},
                                                   {Task::text_encoding, "text-encoding"},
                                                   {Task::base, "base"}};

}  // namespace

Family::Family(std::initializer_list<const char*> types, std::vector<TaskClass> list)
    : model_types(types.begin(), types.end()), classes(std::move(list)) {
  registered().push_back(this);
}
const std::vector<const Family*>& all_families() { return registered(); }
const Family* find_family(const std::string& model_type) {
  for (auto* f : registered())
    if (std::find(f->model_types.begin(), f->model_types.end(), model_type) != f->model_types.end()) return f;
  return nullptr;
}
std::vector<std::string> all_model_types() {
  std::vector<std::string> names;
  for (auto* f : registered()) names.insert(names.end(), f->model_types.begin(), f->model_types.end());
  std::sort(names.begin(), names.end());
  return names;
}

std::string_view name_of(Task task) {
  for (auto& [t, name] : kTasks)
    if (t == task) return name;
  return "";
}
std::optional<Task> task_from(std::string_view text) {
  for (auto& [t, name] : kTasks)
    if (text == name) return t;
  return {};
}
std::optional<Task> task_of_class(const std::string& name) {
  static constexpr std::pair<const char*, Task> kEndings[] = {{"ForCausalLM", Task::causal_lm},
                                                              {"LMHeadModel", Task::causal_lm},
                                                              {"ForMaskedLM", Task::masked_lm},
                                                              {"ForPreTraining", Task::pretraining},
                                                              {"ForSequenceClassification", Task::seq_cls},
                                                              {"ForTokenClassification", Task::token_cls},
                                                              {"ForQuestionAnswering", Task::question_answering},
                                                              {"ForMultipleChoice", Task::multiple_choice},
                                                              {"ForConditionalGeneration", Task::seq2seq},
                                                              {"ForImageClassification", Task::image_cls},
                                                              {"ForSemanticSegmentation", Task::semantic_seg},
                                                              {"ForMaskedImageModeling", Task::masked_image},
                                                              {"ForCTC", Task::ctc},
                                                              {"ForAudioClassification", Task::audio_cls},
                                                              {"EncoderModel", Task::text_encoding},
                                                              {"Model", Task::base}};
  for (auto& [ending, task] : kEndings)
    if (name.ends_with(ending)) return task;
  return {};
}

std::vector<nn::InputSpec> Network::inputs() const {
  std::vector<nn::InputSpec> list;
  const nn::SizeExpression batch("batch"), choices("choices"), seq("seq");
  if (options_.task == Task::multiple_choice)
    list.push_back({"input_ids", {batch, choices, seq}, DType::int64});
  else
    list.push_back({"input_ids", {batch, seq}, DType::int64});
  if (!options_.labels) return list;
  switch (options_.task) {
    case Task::seq_cls:
    case Task::multiple_choice: list.push_back({"labels", {batch}, DType::int64}); break;
    case Task::question_answering:
      list.push_back({"start_positions", {batch}, DType::int64});
      list.push_back({"end_positions", {batch}, DType::int64});
      break;
    default: list.push_back({"labels", {batch, seq}, DType::int64});
  }
  return list;
}

std::vector<std::pair<std::string, I>> Network::default_sizes() const {
  if (options_.task == Task::multiple_choice) return {{"choices", 4}, {"seq", 512}};
  return {{"seq", 512}};
}

I num_labels(const Config& config) {
  if (auto* s = config.find("id2label"); s && s->object()) return I(s->object()->size());
  return config.integer_or("num_labels", 2);
}

}  // namespace memest::hf
