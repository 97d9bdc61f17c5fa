#include "ops/recorder.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace memest {
namespace {

struct Nothing final : Packed {
  Tensor unpack() override { throw Error("a recording keeps no saved tensors"); }
};
struct Forget final : SavedTensorHooks {
  std::unique_ptr<Packed> pack(T) override { return std::make_unique<Nothing>(); }
};

bool on_host(const Value& result) {
  Tensors made;
  collect_tensors(result, made);
  for (auto& x : made)
    if (x) return x.on_host();
  return false;
}

Value tagged(const char* tag, Value v) {
  auto dict = std::make_shared<Dict>();
  dict->items.emplace_back(tag, std::move(v));
  return dict;
}

}  // namespace

Recorder::Recorder() : rt_(runtime()) {
  rt_.observer = this;
  rt_.calls = this;
}
Recorder::~Recorder() {
  rt_.observer = nullptr;
  rt_.calls = nullptr;
}

Program Recorder::finish() { return std::move(program_); }

Program::Make Recorder::make(T x, int value, const std::string& name) const {
  const Storage& storage = *x->storage;
  return {value,        name,          x.sizes(),     x.strides(), x.dtype(), storage.category, x->requires_grad,
          storage.host, storage.block, storage.bytes, x->offset};
}

int Recorder::add(T x) { return ids_[x.get()] = values_++; }

void Recorder::made(T x) {
  if (depth_ > 0 || !loaded_) return;
  if (x->storage->refs > 1) {
    shared_.insert(x.get());
  } else if (!x.on_host()) {
    program_.instructions.emplace_back(make(x, add(x)));
    unused_[x.get()] = rt_.op;
  }
}

void Recorder::died(const TensorImpl* x) {
  shared_.erase(x);
  unused_.erase(x);
  const auto it = ids_.find(x);
  if (it == ids_.end()) return;
  if (depth_ > 0)
    dead_.push_back(it->second);
  else
    drop({it->second});
  ids_.erase(it);
}

void Recorder::drop(const std::vector<int>& values) {
  auto& list = program_.instructions;
  if (values.empty()) return;
  if (list.empty() || !std::holds_alternative<Program::Drop>(list.back())) list.emplace_back(Program::Drop{});
  auto& dropped = std::get<Program::Drop>(list.back()).values;
  dropped.insert(dropped.end(), values.begin(), values.end());
}

void Recorder::phase(Phase phase, int step, int micro) {
  if (phase == Phase::load) return;
  if (!std::exchange(loaded_, true)) {
    program_.modules = rt_.trace.modules;
    std::stable_sort(program_.states.begin(), program_.states.end(), [](auto& a, auto& b) { return a.block < b.block; });
  }
  program_.instructions.emplace_back(Program::Step{phase, step, micro});
}

void Recorder::state(const std::string& name, T x) {
  if (!ids_.contains(x.get())) program_.states.push_back(make(x, add(x), name));
}

void Recorder::begin_region(const Region& region) {
  if (regions_++ > 0) return;
  closures_.emplace_back(program_.instructions.size(), region);
  program_.instructions.emplace_back(Program::Region{true});
}
void Recorder::end_region() {
  if (--regions_ == 0) program_.instructions.emplace_back(Program::Region{false});
}

/// Backward lets go of the last region first: a value goes with the first region whose closure has it.
void Recorder::backward(T loss) {
  for (; !closures_.empty(); closures_.pop_back()) {
    ++depth_;
    closures_.back().second = nullptr;
    --depth_;
    std::get<Program::Region>(program_.instructions[closures_.back().first]).holds = dead_;
    drop(std::exchange(dead_, {}));
  }
  program_.instructions.emplace_back(Program::Backward{id_of(loss)});
}

Ref<SavedTensorHooks> Recorder::hooks() { return Ref<SavedTensorHooks>(new Forget); }

bool Recorder::begin() { return depth_++ == 0; }

void Recorder::arguments(const OpRecord& op, const Values& values) {
  Program::Call call{&op, {}, None{}, rt_.module, rt_.grad_mode && !rt_.inference_mode, rt_.autocast.enabled, false};
  for (auto& v : values) call.arguments.push_back(encoded(v));
  program_.instructions.emplace_back(std::move(call));
}

void Recorder::end(const Value& result) {
  if (--depth_ > 0) return;
  auto& call = std::get<Program::Call>(program_.instructions.back());
  call.host = on_host(result);
  call.result = encoded(result);
  drop(std::exchange(dead_, {}));
}

/// The number of a tensor that an instruction names. One from before the first step that nobody has named yet is part of the state.
int Recorder::id_of(T x) {
  if (const auto made = unused_.find(x.get()); made != unused_.end()) {
    if (x->grad_fn)  // history that no op gave it
      throw Error(std::string("a probe cannot run this model: LibTorch has no op '") + made->second + "'");
    unused_.erase(made);
  }
  if (const auto it = ids_.find(x.get()); it != ids_.end()) return it->second;
  if (shared_.contains(x.get())) throw Error("a probe cannot run this model: a tensor shares another's bytes outside of LibTorch's ops");
  program_.states.push_back(make(x, add(x)));
  return values_ - 1;
}

Value Recorder::encoded(const Value& v) {
  if (auto* x = std::get_if<Tensor>(&v)) {
    if (!*x) return None{};
    if ((*x)->wrapped_number) return tagged("number", x->dtype());
    return tagged("value", std::int64_t{depth_ > 0 || ids_.contains(x->get()) ? id_of(*x) : add(*x)});
  }
  if (auto* list = std::get_if<std::shared_ptr<List>>(&v)) {
    Values items;
    for (auto& item : (*list)->items) items.push_back(encoded(item));
    return make_list(std::move(items));
  }
  return v;
}

}  // namespace memest
