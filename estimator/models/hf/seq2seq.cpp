#include "models/hf/seq2seq.h"

namespace memest::hf {

std::vector<nn::InputSpec> Seq2SeqNetwork::inputs() const {
  const nn::SizeExpression batch("batch"), src_seq("src_seq"), tgt_seq("tgt_seq");
  const bool classifies = options_.task == Task::seq_cls || options_.task == Task::question_answering;
  std::vector<nn::InputSpec> list = {{"input_ids", {batch, src_seq}, DType::int64}};
  if (options_.target && (classifies || !options_.labels)) list.push_back({"decoder_input_ids", {batch, tgt_seq}, DType::int64});
  if (!options_.labels) return list;
  if (options_.task == Task::question_answering) {
    list.push_back({"start_positions", {batch}, DType::int64});
    list.push_back({"end_positions", {batch}, DType::int64});
  } else if (classifies) {
    list.push_back({"labels", {batch}, DType::int64});
  } else {
    list.push_back({"labels", {batch, tgt_seq}, DType::int64});
  }
  return list;
}

X shift_tokens_right(X input_ids) {
  X shifted_input_ids = aten("new_zeros", {Tensor(input_ids), list_of(input_ids.sizes())});
  {
    X source = input_ids.slice(1, std::nullopt, -1).clone();
    aten("copy_", {Tensor(shifted_input_ids.slice(1, 1, std::nullopt)), Tensor(source), false});
  }
  aten("fill_", {Tensor(shifted_input_ids.select(1, 0)), I{0}});
  aten("masked_fill_", {Tensor(shifted_input_ids), Tensor(aten("eq", {Tensor(shifted_input_ids), I{-100}})), I{0}});
  return shifted_input_ids;
}

}  // namespace memest::hf
