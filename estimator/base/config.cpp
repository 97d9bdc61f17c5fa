#include "base/config.h"

#include <cmath>

namespace memest {
namespace {

constexpr double kMostExact = 9007199254740992.0;             // 2^53
constexpr std::int64_t kLargestSize = std::int64_t(1) << 30;  // products of two sizes, and sums of a few of them, fit 64 bits

std::optional<std::int64_t> as_integer(const ConfigValue& s) {
  if (auto* i = std::get_if<std::int64_t>(&s.value)) return *i;
  if (auto* d = std::get_if<double>(&s.value); d && std::floor(*d) == *d && std::abs(*d) < kMostExact) return std::int64_t(*d);  // 4096.0
  return {};
}
std::optional<double> as_number(const ConfigValue& s) {
  if (auto* d = std::get_if<double>(&s.value)) return *d;
  if (auto* i = std::get_if<std::int64_t>(&s.value)) return double(*i);
  return {};
}
std::optional<bool> as_boolean(const ConfigValue& s) {
  if (auto* b = std::get_if<bool>(&s.value)) return *b;
  if (auto* i = std::get_if<std::int64_t>(&s.value); i && (*i == 0 || *i == 1)) return *i == 1;
  return {};
}
std::optional<std::string> as_text(const ConfigValue& s) {
  if (auto* t = std::get_if<std::string>(&s.value)) return *t;
  return {};
}

}  // namespace

const ConfigValue* ConfigValue::find(const std::string& key) const {
  if (auto* o = object())
    for (auto& [name, v] : *o)
      if (name == key) return &v;
  return nullptr;
}

std::string ConfigValue::describe() const {
  switch (value.index()) {
    case 0: return "null";
    case 1: return std::get<bool>(value) ? "true" : "false";
    case 2: return std::to_string(std::get<std::int64_t>(value));
    case 3: return std::to_string(std::get<double>(value));
    case 4: return "'" + std::get<std::string>(value).substr(0, 60) + "'";
    case 5: return "a list of " + std::to_string(list()->size());
    default: return "an object";
  }
}

Config::Config(std::string model_type, ConfigValue file, ConfigValue defaults, std::map<std::string, std::string> aliases,
               std::string pointer)
    : data_(std::make_shared<Data>(
          Data{std::move(model_type), std::move(pointer), std::move(file), std::move(defaults), std::move(aliases), {}})) {}

const std::string& Config::resolved(const std::string& key) const {
  auto it = data_->aliases.find(key);
  return it == data_->aliases.end() ? key : it->second;
}

const ConfigValue* Config::find(const std::string& key) const {
  const std::string& name = resolved(key);
  if (auto* s = data_->file.find(name)) return s;
  return data_->defaults.find(name);
}
bool Config::given(const std::string& key) const { return data_->file.find(resolved(key)) != nullptr; }
bool Config::has(const std::string& key) const {
  auto* s = find(key);
  return s && !s->is_null();
}

Error Config::error(const std::string& key, const std::string& message, const std::string& hint) const {
  Error e(message, hint);
  e.within(data_->pointer + "/" + key);
  return e;
}

const ConfigValue& Config::needed(const std::string& key) const {
  auto* s = find(key);
  if (!s)
    throw error(key, "this field is missing, and " +
                         (data_->model_type.empty() ? std::string("the class") : "model_type '" + data_->model_type + "'") +
                         " has no default for it");
  if (s->is_null()) throw error(key, "this field is null, but a value is needed");
  return *s;
}

namespace {
template <class V>
V checked(const Config& c, const std::string& key, const ConfigValue& s, std::optional<V> v, const char* wanted) {
  if (v) return *v;
  throw c.error(key, std::string("expected ") + wanted + ", found " + s.describe());
}
}  // namespace

std::int64_t Config::integer(const std::string& key) const {
  auto& s = needed(key);
  return checked(*this, key, s, as_integer(s), "an integer");
}
std::int64_t Config::size(const std::string& key) const {
  const std::int64_t n = integer(key);
  if (n < 1) throw error(key, "expected a positive integer, found " + std::to_string(n));
  if (n > kLargestSize) throw error(key, "expected at most " + std::to_string(kLargestSize) + ", found " + std::to_string(n));
  return n;
}
std::int64_t Config::size_or(const std::string& key, std::int64_t otherwise) const { return has(key) ? size(key) : otherwise; }
double Config::number(const std::string& key) const {
  auto& s = needed(key);
  return checked(*this, key, s, as_number(s), "a number");
}
bool Config::boolean(const std::string& key) const {
  auto& s = needed(key);
  return checked(*this, key, s, as_boolean(s), "true or false");
}
std::string Config::text(const std::string& key) const {
  auto& s = needed(key);
  return checked(*this, key, s, as_text(s), "a string");
}
std::vector<std::string> Config::texts(const std::string& key) const {
  auto& s = needed(key);
  if (!s.list()) throw error(key, "expected a list, found " + s.describe());
  std::vector<std::string> all;
  for (auto& item : *s.list()) all.push_back(checked(*this, key, item, as_text(item), "a list of strings"));
  return all;
}
std::vector<std::int64_t> Config::integers(const std::string& key) const {
  auto& s = needed(key);
  if (!s.list()) throw error(key, "expected a list, found " + s.describe());
  std::vector<std::int64_t> all;
  for (auto& item : *s.list()) all.push_back(checked(*this, key, item, as_integer(item), "a list of integers"));
  return all;
}

std::optional<std::int64_t> Config::integer_if(const std::string& key) const {
  return has(key) ? std::optional(integer(key)) : std::nullopt;
}
std::optional<double> Config::number_if(const std::string& key) const { return has(key) ? std::optional(number(key)) : std::nullopt; }
std::optional<bool> Config::boolean_if(const std::string& key) const { return has(key) ? std::optional(boolean(key)) : std::nullopt; }
std::optional<std::string> Config::text_if(const std::string& key) const { return has(key) ? std::optional(text(key)) : std::nullopt; }

std::optional<Config> Config::section_if(const std::string& key) const {
  const std::string& name = resolved(key);
  if (auto it = data_->sections.find(name); it != data_->sections.end()) return it->second;
  auto* s = find(name);
  if (!s || s->is_null()) return {};
  if (!s->object()) throw error(key, "expected an object, found " + s->describe());
  return Config("", *s, {}, {}, data_->pointer + "/" + name);
}
Config Config::section(const std::string& key) const {
  if (auto c = section_if(key)) return *c;
  needed(key);
  return {};
}
void Config::set_section(const std::string& key, Config section) { data_->sections.insert_or_assign(key, std::move(section)); }

void Config::set(const std::string& key, ConfigValue value) {
  const std::string& name = resolved(key);
  if (!data_->file.object()) data_->file.value = ConfigValue::Object{};
  auto& object = std::get<ConfigValue::Object>(data_->file.value);
  for (auto& [k, v] : object)
    if (k == name) {
      v = std::move(value);
      return;
    }
  object.emplace_back(name, std::move(value));
}

}  // namespace memest
