#include "torch/player.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "torch/phases.h"

namespace memest::plugin {
namespace {
using c10::IValue;

/// The element type of a list or an optional, else the type itself.
c10::TypePtr inner(const c10::TypePtr& type) {
  if (const auto optional = type->cast<c10::OptionalType>()) return optional->getElementType();
  return type;
}

double number_of(const Json& j) {
  if (!j.is_object()) return j.get<double>();
  const std::string text = j.at("float");
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  return text == "inf" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
}

c10::MemoryFormat memory_format_of(const std::string& name) {
  if (name == "channels_last") return c10::MemoryFormat::ChannelsLast;
  if (name == "channels_last_3d") return c10::MemoryFormat::ChannelsLast3d;
  return name == "preserve" ? c10::MemoryFormat::Preserve : c10::MemoryFormat::Contiguous;
}

/// Ops that look into a tensor at places which another tensor holds.
bool is_indexing(const std::string& name) {
  static const std::set<std::string> names{"aten::embedding",      "aten::embedding_bag", "aten::index",        "aten::index_select",
                                           "aten::index_put",      "aten::index_put_",    "aten::index_add",    "aten::index_add_",
                                           "aten::index_copy",     "aten::index_copy_",   "aten::gather",       "aten::scatter",
                                           "aten::scatter_",       "aten::scatter_add",   "aten::scatter_add_", "aten::take",
                                           "aten::take_along_dim", "aten::index_fill",    "aten::index_fill_",  "aten::one_hot",
                                           "aten::nll_loss",       "aten::nll_loss_nd",   "aten::nll_loss2d",   "aten::cross_entropy_loss"};
  return names.contains(name);
}

/// Zeros into all of a tensor's storage, behind autograd's back.
void clear(const at::Tensor& x) {
  at::AutoDispatchBelowADInplaceOrView below;
  const auto bytes = std::int64_t(x.storage().nbytes());
  at::empty({0}, x.options().dtype(c10::kByte)).set_(x.storage(), 0, {bytes}).zero_();
}

}  // namespace

Player::Player(const Json& program, c10::Device device, Memory& memory, std::optional<c10::ScalarType> autocast)
    : device_(device), memory_(memory), autocast_(autocast) {
  const std::vector<std::string> modules = program.at("modules");
  for (const Json& j : program.at("states")) states_.push_back(read_make(j));
  std::size_t region = 0;
  for (const Json& j : program.at("instructions")) {
    if (j.contains("call")) {
      instructions_.emplace_back(read_call(j, modules));
    } else if (j.contains("drop")) {
      instructions_.emplace_back(Drop{j.at("drop")});
    } else if (j.contains("make")) {
      instructions_.emplace_back(read_make(j));
    } else if (j.contains("phase")) {
      instructions_.emplace_back(Mark(Step{j.at("phase"), j.at("step"), j.at("micro")}));
    } else if (j.contains("backward")) {
      instructions_.emplace_back(Mark(Backward{j.at("backward")}));
    } else if (j.contains("clear_autocast")) {
      instructions_.emplace_back(ClearAutocast{});
    } else if (j.at("region").get<bool>()) {
      region = instructions_.size();
      instructions_.emplace_back(BeginRegion{0, j.at("holds")});
    } else {
      read_region(region, instructions_.size());
      instructions_.emplace_back(EndRegion{});
    }
  }
}

void Player::read_region(std::size_t begin, std::size_t end) {
  BeginRegion region{end, {}};
  const std::vector<int>& holds = std::get<BeginRegion>(instructions_[begin]).from;
  std::set<int> inside, outside(holds.begin(), holds.end());
  std::function<void(const Result&)> made = [&](const Result& r) {
    inside.insert(r.value);
    for (const Result& item : r.items) made(item);
  };
  for (std::size_t i = begin + 1; i < end; ++i) {
    if (auto* m = std::get_if<Make>(&instructions_[i])) inside.insert(m->value);
    auto* c = std::get_if<Call>(&instructions_[i]);
    if (!c) continue;
    for (const Argument& a : c->arguments)
      for (int id : a.ids)
        if (id >= 0 && !inside.contains(id)) outside.insert(id);
    for (const Result& r : c->results) made(r);
  }
  region.from.assign(outside.begin(), outside.end());
  instructions_[begin] = std::move(region);
}

void Player::load() {
  for (const Make& m : states_) make(m);
  storages_.clear();
}

Player::Make Player::read_make(const Json& j) const {
  Make m;
  m.value = j.at("make");
  m.category = j.at("category");
  m.sizes = j.at("shape").get<std::vector<std::int64_t>>();
  m.strides = j.at("strides").get<std::vector<std::int64_t>>();
  m.dtype = type_named(j.at("dtype"));
  m.requires_grad = j.value("requires_grad", false);
  m.host = j.value("host", false);
  if (j.contains("storage")) {
    const Json& storage = j.at("storage");
    m.storage = storage.at("id"), m.bytes = storage.at("bytes"), m.offset = storage.at("offset");
  }
  return m;
}

Player::Call Player::read_call(const Json& j, const std::vector<std::string>& modules) {
  const std::string name = j.at("call"), overload = j.value("overload", "");
  const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!op) throw BadRequest{"this LibTorch has no op " + name + (overload.empty() ? "" : "." + overload), ""};
  Call c{*op,
         {},
         {},
         modules.at(j.at("module")),
         j.value("grad", true),
         j.value("autocast", false),
         j.value("host", false),
         is_indexing(name)};
  if (name == "aten::lstm") run_lstm_by_steps(device_);
  const Json& given = j.at("args");
  std::size_t used = 0;
  for (const c10::Argument& a : op->schema().arguments()) {
    const auto it = given.find(a.name());
    if (it != given.end()) ++used;
    if (it == given.end() && a.default_value() && inner(a.real_type())->kind() != c10::TypeKind::DeviceObjType)
      c.arguments.push_back({Argument::Kind::constant, *a.default_value(), {}});
    else
      c.arguments.push_back(read_argument(it == given.end() ? Json() : *it, a, name, c.host));
  }
  if (used != given.size()) {
    for (auto& [key, value] : given.items())
      if (!op->schema().argumentIndexWithName(key)) throw BadRequest{"this LibTorch's " + name + " has no argument '" + key + "'", ""};
  }
  const Json& result = j.at("result");
  if (op->schema().returns().size() == 1)
    c.results.push_back(read_result(result));
  else if (result.is_array())
    for (const Json& r : result) c.results.push_back(read_result(r));
  return c;
}

Player::Argument Player::read_argument(const Json& j, const c10::Argument& argument, const std::string& op, bool host) {
  const c10::TypePtr type = inner(argument.real_type());
  if (type->kind() == c10::TypeKind::DeviceObjType) return {Argument::Kind::constant, host ? c10::Device(c10::kCPU) : device_, {}};
  const bool optional = argument.real_type()->kind() == c10::TypeKind::OptionalType;
  if (type->kind() == c10::TypeKind::TensorType) {
    if (j.is_null()) return {Argument::Kind::constant, optional ? IValue() : IValue(at::Tensor()), {}};
    if (j.is_object() && j.contains("value")) return {Argument::Kind::value, {}, {j.at("value").get<int>()}};
    return {Argument::Kind::constant, number(j.at("number"), op), {}};
  }
  if (const auto list = type->cast<c10::ListType>();
      list && inner(list->getElementType())->kind() == c10::TypeKind::TensorType && !j.is_null()) {
    const bool gaps = list->getElementType()->kind() == c10::TypeKind::OptionalType;
    Argument a{gaps ? Argument::Kind::optional_values : Argument::Kind::values, {}, {}};
    for (const Json& item : j) a.ids.push_back(item.is_null() ? -1 : item.at("value").get<int>());
    return a;
  }
  return {Argument::Kind::constant, read_constant(j, type, op + " " + argument.name()), {}};
}

IValue Player::read_constant(const Json& j, const c10::TypePtr& type, const std::string& where) {
  if (j.is_null()) return {};
  switch (type->kind()) {
    case c10::TypeKind::BoolType: return j.is_boolean() ? j.get<bool>() : j.get<std::int64_t>() != 0;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType: return j.is_boolean() ? std::int64_t(j.get<bool>()) : j.get<std::int64_t>();
    case c10::TypeKind::FloatType: return number_of(j);
    case c10::TypeKind::NumberType:
      if (j.is_boolean()) return j.get<bool>();
      return j.is_number_integer() ? IValue(j.get<std::int64_t>()) : IValue(number_of(j));
    case c10::TypeKind::StringType: return j.get<std::string>();
    case c10::TypeKind::ScalarTypeType: return std::int64_t(type_named(j.at("dtype")));
    case c10::TypeKind::MemoryFormatType: return std::int64_t(memory_format_of(j.at("memory_format")));
    case c10::TypeKind::ListType: {
      const c10::TypePtr element = type->cast<c10::ListType>()->getElementType();
      const Json items = j.is_array() ? j : Json::array({j});
      switch (inner(element)->kind()) {
        case c10::TypeKind::IntType:
        case c10::TypeKind::SymIntType: return items.get<std::vector<std::int64_t>>();
        case c10::TypeKind::FloatType: {
          std::vector<double> list;
          for (const Json& item : items) list.push_back(number_of(item));
          return list;
        }
        case c10::TypeKind::BoolType: {
          c10::List<bool> list;
          for (const Json& item : items) list.push_back(item.get<bool>());
          return list;
        }
        default: break;
      }
      break;
    }
    default: break;
  }
  throw BadRequest{where + " has the type " + type->str() + ", which a probe does not give", ""};
}

Player::Result Player::read_result(const Json& j) const {
  Result r;
  if (j.is_object() && j.contains("value")) r.value = j.at("value");
  if (j.is_array())
    for (const Json& item : j) r.items.push_back(read_result(item));
  return r;
}

/// What a number was is not recorded: one that is added is 0, so that places stay where they are; a factor or a divisor is 1.
at::Tensor Player::number(const std::string& dtype, const std::string& op) {
  const Uncounted host(memory_);
  const int value = op.starts_with("aten::add") || op.starts_with("aten::sub") ? 0 : 1;
  at::Tensor x =
      dtype == "bool" ? at::scalar_tensor(value != 0, c10::kBool) : at::scalar_tensor(value, dtype == "int64" ? c10::kLong : c10::kDouble);
  x.unsafeGetTensorImpl()->set_wrapped_number(true);
  return x;
}

void Player::set_autocast(bool on) const {
  if (!autocast_ || at::autocast::is_autocast_enabled(device_.type()) == on) return;
  at::autocast::set_autocast_enabled(device_.type(), on);
  at::autocast::set_autocast_dtype(device_.type(), *autocast_);  // of the thread
}

void Player::make(const Make& m) {
  std::optional<Uncounted> host;
  if (m.host) host.emplace(memory_);
  const at::TensorOptions options = at::TensorOptions().dtype(m.dtype).device(m.host ? c10::Device(c10::kCPU) : device_);
  at::Tensor x;
  if (m.storage < 0) {
    x = at::empty_strided(m.sizes, m.strides, options);
  } else {
    at::Tensor& shared = storages_[m.storage];
    if (!shared.defined()) shared = at::empty({m.bytes}, options.dtype(c10::kByte));
    x = at::empty({0}, options).set_(shared.storage(), m.offset, m.sizes, m.strides);
  }
  if (!x.is_meta()) x.zero_();
  x.requires_grad_(m.requires_grad);
  const auto place = std::size_t(m.value);
  if (values_.size() <= place) values_.resize(place + 1);
  if (categories_.size() <= place) categories_.resize(place + 1);
  values_[place] = std::move(x);
  categories_[place] = m.category;
}

void Player::call(const Call& c, Values& values) {
  torch::jit::Stack stack;
  stack.reserve(c.arguments.size());
  for (const Argument& a : c.arguments) {
    if (a.kind == Argument::Kind::constant) {
      stack.push_back(a.constant);
      continue;
    }
    if (a.kind == Argument::Kind::value) {
      stack.emplace_back(values.at(std::size_t(a.ids[0])));
    } else if (a.kind == Argument::Kind::values) {
      c10::List<at::Tensor> list;
      for (int id : a.ids) list.push_back(id < 0 ? at::Tensor() : values.at(std::size_t(id)));
      stack.emplace_back(std::move(list));
    } else {
      c10::List<std::optional<at::Tensor>> list;
      for (int id : a.ids) list.push_back(id < 0 ? std::nullopt : std::optional(values.at(std::size_t(id))));
      stack.emplace_back(std::move(list));
    }
    if (!c.indexes || device_.is_meta()) continue;
    for (int id : a.ids) {  // places that were computed from numbers that nobody knows are all the first
      if (id < 0) continue;
      const at::Tensor& x = values[std::size_t(id)];
      if (x.defined() && (x.scalar_type() == c10::kLong || x.scalar_type() == c10::kInt)) clear(x);
    }
  }
  at::AutoGradMode grad(c.grad && at::GradMode::is_enabled());
  set_autocast(c.autocast);
  std::optional<Uncounted> host;
  if (c.host) host.emplace(memory_);
  running_ = &c;
  try {
    c.op.callBoxed(&stack);
  } catch (const StopRecomputation&) {
    running_ = nullptr;
    throw;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const std::exception& e) {
    throw BadRequest{c.op.schema().name() + (c.module.empty() ? "" : " in " + c.module) + ": " + message_of(e), ""};
  }
  running_ = nullptr;
  for (std::size_t i = 0; i < c.results.size() && i < stack.size(); ++i) assign(c.results[i], stack[i], values);
}

void Player::assign(const Result& r, const IValue& v, Values& values) {
  if (r.value >= 0 && v.isTensor()) {
    const auto place = std::size_t(r.value);
    if (values.size() <= place) values.resize(place + 1);
    if (!values[place].is_same(v.toTensor())) values[place] = v.toTensor();
  }
  if (r.items.empty() || !v.isList()) return;
  const auto items = v.toListRef();
  for (std::size_t i = 0; i < r.items.size() && i < items.size(); ++i) assign(r.items[i], items[i], values);
}

/// The values that the region takes live as long as what it saved.
void Player::begin_region(const BeginRegion& region) {
  Values from(values_.size());
  for (int id : region.from) from[std::size_t(id)] = values_[std::size_t(id)];
  region_ = std::make_unique<Region>([this, begin = next_, end = region.end, from = std::move(from)] { run_again(begin, end, from); });
}

void Player::run_again(std::size_t begin, std::size_t end, Values values) {
  struct AutocastEnds {  // however the run ends: the mode is the thread's, and an outermost context clears its cache
    const Player& player;
    ~AutocastEnds() {
      player.set_autocast(false);
      if (player.autocast_) at::autocast::clear_cache();
    }
  } ends{*this};
  for (std::size_t i = begin; i < end; ++i) {
    if (auto* c = std::get_if<Call>(&instructions_[i])) call(*c, values);
    if (auto* d = std::get_if<Drop>(&instructions_[i]))
      for (int id : d->values)
        if (std::size_t(id) < values.size()) values[std::size_t(id)].reset();
  }
}

const std::variant<Player::Step, Player::Backward>* Player::next() {
  while (next_ < instructions_.size()) {
    const Instruction& instruction = instructions_[next_++];
    if (auto* m = std::get_if<Mark>(&instruction)) {
      set_autocast(false);
      return m;
    }
    if (auto* m = std::get_if<Make>(&instruction)) make(*m);
    if (auto* c = std::get_if<Call>(&instruction)) call(*c, values_);
    if (auto* d = std::get_if<Drop>(&instruction)) {
      for (int id : d->values)
        if (std::size_t(id) < values_.size()) values_[std::size_t(id)].reset();
    }
    if (std::holds_alternative<ClearAutocast>(instruction)) at::autocast::clear_cache();
    if (auto* r = std::get_if<BeginRegion>(&instruction)) begin_region(*r);
    if (std::holds_alternative<EndRegion>(instruction)) region_.reset();
  }
  return nullptr;
}

std::vector<at::Tensor> Player::of(const std::string& category) const {
  std::vector<at::Tensor> tensors;
  for (std::size_t i = 0; i < categories_.size() && i < values_.size(); ++i)
    if (categories_[i] == category && values_[i].defined()) tensors.push_back(values_[i]);
  return tensors;
}

}  // namespace memest::plugin
