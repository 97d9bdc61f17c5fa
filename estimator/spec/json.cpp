#include "spec/json.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"

namespace memest::spec {
namespace {

constexpr int kDeepest = 200;

std::string escaped(std::string_view key) {  // RFC 6901
  std::string out;
  for (char c : key) {
    if (c == '~')
      out += "~0";
    else if (c == '/')
      out += "~1";
    else
      out += c;
  }
  return out;
}

std::string place(const std::string& text, std::size_t byte) {
  byte = std::min(byte > 0 ? byte - 1 : 0, text.size());
  std::size_t line = 1, start = 0;
  for (std::size_t i = 0; i < byte; ++i)
    if (text[i] == '\n') ++line, start = i + 1;
  return fmt::format("line {}, column {}", line, byte - start + 1);
}

}  // namespace

std::string read_file(const std::string& path, Bytes most) {
  std::error_code problem;
  const auto status = std::filesystem::status(path, problem);
  if (problem || !std::filesystem::exists(status)) throw Error("there is no such file").within(path);
  if (std::filesystem::is_directory(status)) throw Error("this is a folder, a file is needed").within(path);
  if (!std::filesystem::is_regular_file(status)) throw Error("this is no regular file").within(path);
  const auto size = std::filesystem::file_size(path, problem);
  if (!problem && Bytes(size) > most)
    throw Error(fmt::format("the file has {}, more than {} are not read", human(Bytes(size)), human(most))).within(path);
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error("the file cannot be opened").within(path);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

namespace {

/// Nesting and repeated keys, in one pass before the parser: nlohmann's own callback for them makes parsing twice as slow. Text that is no
/// JSON passes; the parser tells.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}
  void run() {
    for (at_ = 0; at_ < text_.size(); ++at_) {
      switch (text_[at_]) {
        case '{':
        case '[': open(text_[at_] == '{'); break;
        case '}':
        case ']': close(); break;
        case ',': expect_key_ = !objects_.empty() && objects_.back(); break;
        case '"': string(); break;
        default: break;
      }
    }
  }

 private:
  void open(bool object) {
    if (objects_.size() >= kDeepest) throw Error(fmt::format("the JSON nests deeper than {} levels", kDeepest));
    objects_.push_back(object);
    starts_.push_back(keys_.size());
    expect_key_ = object;
  }
  void close() {
    if (objects_.empty()) return;
    objects_.pop_back();
    keys_.resize(starts_.back());
    starts_.pop_back();
    expect_key_ = false;
  }
  void string() {
    const std::size_t start = ++at_;
    while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    if (!expect_key_ || at_ >= text_.size()) return;
    expect_key_ = false;
    const std::string_view key = text_.substr(start, at_ - start);
    // Objects of a spec have few keys; a large one is a table of modules, whose keys are sought among themselves only when hashes meet.
    const std::size_t hash = std::hash<std::string_view>{}(key);
    for (std::size_t i = starts_.back(); i < keys_.size(); ++i)
      if (keys_[i].first == hash && keys_[i].second == key)
        throw Error(fmt::format("the key \"{}\" appears twice in one object", key.substr(0, 80)));
    if (keys_.size() - starts_.back() < kMostKeys) keys_.emplace_back(hash, key);
  }

  static constexpr std::size_t kMostKeys = 2000;  // beyond, repeats are not sought
  std::string_view text_;
  std::size_t at_ = 0;
  bool expect_key_ = false;
  std::vector<bool> objects_;
  std::vector<std::size_t> starts_;
  std::vector<std::pair<std::size_t, std::string_view>> keys_;
};

}  // namespace

Json parse_json(const std::string& text) {
  if (text.find_first_not_of(" \t\r\n") == std::string::npos)
    throw Error("the file is empty", "a spec is a JSON object that starts with { \"memest_spec\": 1, ...");
  if (auto nul = text.find('\0'); nul != std::string::npos)  // the parser would take it as the end of the text
    throw Error(fmt::format("{}: this is no JSON: a NUL byte", place(text, nul + 1)));
  Scanner(text).run();
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& e) {
    std::string what = e.what();
    if (auto colon = what.find("syntax error"); colon != std::string::npos)
      what = what.substr(colon);
    else if (auto bracket = what.find("] "); bracket != std::string::npos)
      what = what.substr(bracket + 2);
    throw Error(fmt::format("{}: this is no JSON: {}", place(text, e.byte), what.substr(0, 200)));
  } catch (const Json::exception& e) {
    throw Error(fmt::format("this is no JSON: {}", std::string(e.what()).substr(0, 200)));
  }
}

Error Node::error(const std::string& message, const std::string& hint) const {
  Error e(message, hint);
  e.within(where());
  return e;
}

std::string Node::found() const {
  if (json_->is_array()) return fmt::format("a list of {}", json_->size());
  if (json_->is_object()) return "an object";
  if (json_->is_null()) return "null";
  std::string text = json_->dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 60) + "…" : text;
}

std::string Node::where() const {
  if (!parent_) return "/";
  const std::string above = parent_->parent_ ? parent_->where() : std::string();
  return above + "/" + (parent_->json_->is_object() ? escaped(key_) : std::to_string(index_));
}

Node Node::at(const char* key) const& {
  object();
  auto it = json_->find(key);
  if (it == json_->end()) throw error(fmt::format("\"{}\" is missing", key));
  return Node(*it, *this, key, 0);
}
Node Node::at(std::size_t index) const& { return Node((*json_)[index], *this, {}, index); }
const Node& Node::object() const {
  if (!json_->is_object()) throw error("an object is needed here, found " + found());
  return *this;
}
const Node& Node::array() const {
  if (!json_->is_array()) throw error("a list is needed here, found " + found());
  return *this;
}
std::string Node::text() const {
  if (!json_->is_string()) throw error("a text is needed here, found " + found());
  return json_->get<std::string>();
}
std::int64_t Node::integer() const {
  if (!json_->is_number_integer() || (json_->is_number_unsigned() && json_->get<std::uint64_t>() > std::uint64_t(INT64_MAX)))
    throw error("an integer is needed here, found " + found());
  return json_->get<std::int64_t>();
}
bool Node::boolean() const {
  if (!json_->is_boolean()) throw error("true or false is needed here, found " + found());
  return json_->get<bool>();
}
void Node::allow(std::initializer_list<const char*> keys) const {
  for (auto& [key, value] : object().json().items()) {
    bool known = false;
    for (auto* k : keys) known |= key == k;
    if (known) continue;
    std::vector<std::string> names(keys.begin(), keys.end());
    std::string near = did_you_mean(key, names);
    throw error(fmt::format("unknown key \"{}\"", key.substr(0, 60)), near.empty() ? "allowed here: " + join(names, ", ") : near);
  }
}
void Node::each(const std::function<void(const std::string&, const Node&)>& f) const {
  for (auto& [key, value] : object().json().items()) f(key, Node(value, *this, key, 0));
}

}  // namespace memest::spec
