// A typed bag of configuration values: what a config.json says of a model, with the defaults of its class behind it.
// Absent, null and zero are three things: an absent key takes the class's default, null is a value that the file gives.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"

namespace memest {

struct ConfigMember;

/// A JSON value without its library.
struct ConfigValue {
  using List = std::vector<ConfigValue>;
  using Object = std::vector<ConfigMember>;  ///< in the file's order
  std::variant<std::monostate, bool, std::int64_t, double, std::string, List, Object> value;

  bool is_null() const { return value.index() == 0; }
  const Object* object() const { return std::get_if<Object>(&value); }
  const List* list() const { return std::get_if<List>(&value); }
  /// The member of an object; null where there is none.
  const ConfigValue* find(const std::string& key) const;
  /// "null", "3", "'silu'", "a list of 4", for messages.
  std::string describe() const;
};

struct ConfigMember {
  ConfigMember(std::string name, ConfigValue v) : first(std::move(name)), second(std::move(v)) {}
  std::string first;
  ConfigValue second;
};

/// One configuration or a section of one. Copies are cheap and share the values.
class Config {
 public:
  Config() : Config({}, {}, {}, {}, {}) {}
  /// `file`: what was given, `defaults`: the class's own, both objects; `aliases`: other names of keys ("hidden_size" -> "n_embd");
  /// `pointer`: the JSON pointer of the section.
  Config(std::string model_type, ConfigValue file, ConfigValue defaults, std::map<std::string, std::string> aliases, std::string pointer);

  const std::string& model_type() const { return data_->model_type; }
  const std::string& pointer() const { return data_->pointer; }

  /// The value of a key: the file's, else the class's default; null where neither has it.
  const ConfigValue* find(const std::string& key) const;
  /// Given in the file, null included.
  bool given(const std::string& key) const;
  /// There and not null.
  bool has(const std::string& key) const;

  // ---- required values; each throws Error that names the key where it is missing or null, and what was found where it is of another kind
  std::int64_t integer(const std::string& key) const;
  /// An integer of at least 1: sizes.
  std::int64_t size(const std::string& key) const;
  double number(const std::string& key) const;
  bool boolean(const std::string& key) const;
  std::string text(const std::string& key) const;
  std::vector<std::string> texts(const std::string& key) const;
  std::vector<std::int64_t> integers(const std::string& key) const;

  // ---- getattr(config, key, default): absent and null give nothing
  std::optional<std::int64_t> integer_if(const std::string& key) const;
  std::optional<double> number_if(const std::string& key) const;
  std::optional<bool> boolean_if(const std::string& key) const;
  std::optional<std::string> text_if(const std::string& key) const;
  std::int64_t integer_or(const std::string& key, std::int64_t otherwise) const { return integer_if(key).value_or(otherwise); }
  std::int64_t size_or(const std::string& key, std::int64_t otherwise) const;
  double number_or(const std::string& key, double otherwise) const { return number_if(key).value_or(otherwise); }
  bool boolean_or(const std::string& key, bool otherwise) const { return boolean_if(key).value_or(otherwise); }
  std::string text_or(const std::string& key, std::string otherwise) const { return text_if(key).value_or(std::move(otherwise)); }

  /// A nested object; a section with defaults of its own where one was set, else the plain object. Throws Error where it is missing.
  Config section(const std::string& key) const;
  std::optional<Config> section_if(const std::string& key) const;
  void set_section(const std::string& key, Config section);
  /// Overrides a value (for what a class computes after it has read the file).
  void set(const std::string& key, ConfigValue value);

  /// An Error at a key of this section.
  Error error(const std::string& key, const std::string& message, const std::string& hint = {}) const;

 private:
  struct Data {
    std::string model_type, pointer;
    ConfigValue file, defaults;
    std::map<std::string, std::string> aliases;
    std::map<std::string, Config> sections;
  };
  const std::string& resolved(const std::string& key) const;
  const ConfigValue& needed(const std::string& key) const;
  std::shared_ptr<Data> data_;
};

}  // namespace memest
