#include "models/hf/padding.h"

namespace memest::hf {

void warn_if_padding(const Config& config, const X& input_ids) {
  if (!config.has("pad_token_id")) return;
  X ends;
  {
    X positions = empty({2}, DType::int64);
    ends = aten("index", {Tensor(input_ids), make_list({Value(), Tensor(positions)})});
  }
  X equal = aten("eq", {Tensor(ends), I{0}});  // pad_token_id in input_ids[:, [-1, 0]]
  X any = aten("any", {Tensor(equal)});
  leave(0, equal, any, ends);
}

}  // namespace memest::hf
