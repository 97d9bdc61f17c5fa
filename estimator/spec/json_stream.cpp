#include "spec/json_stream.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "base/text.h"

namespace memest::spec {
namespace {

constexpr std::size_t kBuffer = 256 * 1024;

/// Characters of a string that are taken as they are: no quote, backslash, control character or byte above 127.
constexpr auto kPlain = [] {
  std::array<bool, 256> plain{};
  for (int c = 0x20; c < 0x80; ++c) plain[std::size_t(c)] = c != '"' && c != '\\';
  return plain;
}();

}  // namespace

JsonStream::JsonStream(Source source, std::string what) : source_(std::move(source)), what_(std::move(what)) { buffer_.resize(kBuffer); }

bool JsonStream::fill() {
  if (ended_) return false;
  consumed_ += end_;
  at_ = 0;
  end_ = source_(buffer_.data(), buffer_.size());
  ended_ = end_ < buffer_.size();
  return end_ > 0;
}

std::string JsonStream::where() const {
  std::string pointer;
  for (std::size_t i = 0; i < path_.size(); ++i) {
    if (path_.size() > 20 && i == 10) {  // the middle of a deep place says nothing
      pointer += "/...";
      i = path_.size() - 5;
    }
    pointer += '/';
    if (path_[i].index >= 0) {
      pointer += std::to_string(path_[i].index);
      continue;
    }
    for (char c : path_[i].key.substr(0, 100)) pointer += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  }
  return what_ + (pointer.empty() ? "" : ": " + pointer);
}

Error JsonStream::error(const std::string& message, const std::string& hint) const {
  Error e(message, hint);
  e.within(where());
  return e;
}
Error JsonStream::malformed(const std::string& what) const {
  return error(fmt::format("this is no JSON: {} at byte {}", what, position()));
}

void JsonStream::space() {
  for (int c = look(); c == ' ' || c == '\n' || c == '\t' || c == '\r'; c = look()) ++at_;
}

JsonStream::Kind JsonStream::peek() {
  space();
  switch (look()) {
    case '{': return Kind::object;
    case '[': return Kind::array;
    case '"': return Kind::string;
    case 't':
    case 'f': return Kind::boolean;
    case 'n': return Kind::null;
    case -1: throw malformed("the text ends early");
    default: break;
  }
  const int c = look();
  if (c == '-' || (c >= '0' && c <= '9')) return Kind::number;
  throw malformed(c >= 0x20 && c < 0x7f ? fmt::format("'{}' begins no value", char(c)) : fmt::format("byte {:#04x} begins no value", c));
}

Error JsonStream::found(const char* wanted) {
  static constexpr const char* names[] = {"an object", "a list", "a text", "a number", "true or false", "null"};
  const Kind kind = peek();
  std::string what = names[int(kind)];
  if (kind == Kind::string) what = "'" + std::string(string().substr(0, 40)) + "'";
  return error(fmt::format("expected {}, found {}", wanted, what));
}

void JsonStream::begin(char open, const char* what) {
  if (peek() != (open == '{' ? Kind::object : Kind::array)) throw found(what);
  if (open_.size() >= kDeepest) throw malformed(fmt::format("it nests deeper than {} levels", kDeepest));
  open_.push_back(open);
  ++at_;
}

bool JsonStream::next_key(std::size_t i) {
  space();
  int c = look();
  if (c == '}') {
    ++at_;
    open_.pop_back();
    return false;
  }
  if (i > 0) {
    if (c != ',') throw malformed(c < 0 ? "the text ends early" : "a ',' or '}' is missing");
    ++at_;
    space();
    c = look();
  }
  if (c != '"') throw malformed(c < 0 ? "the text ends early" : "a key is a text in double quotes");
  text(&key_);
  space();
  if (look() != ':') throw malformed("a ':' is missing after a key");
  ++at_;
  Place& place = path_.push_back();
  place.key = key_;
  place.index = -1;
  return true;
}

bool JsonStream::next_element(std::size_t i) {
  space();
  const int c = look();
  if (c == ']') {
    ++at_;
    open_.pop_back();
    return false;
  }
  if (i > 0) {
    if (c != ',') throw malformed(c < 0 ? "the text ends early" : "a ',' or ']' is missing");
    ++at_;
  } else if (c < 0) {
    throw malformed("the text ends early");
  }
  path_.push_back().index = std::int64_t(i);
  return true;
}

unsigned JsonStream::hex4() {
  unsigned value = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const int c = look();
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) throw malformed("\\u is followed by four hexadecimal digits");
    value = value * 16 + unsigned(digit);
  }
  return value;
}

void JsonStream::escape(std::string* into) {
  const int c = look();
  ++at_;
  const char* simple = "\"\\/bfnrt";
  const char* meant = "\"\\/\b\f\n\r\t";
  for (int i = 0; simple[i]; ++i)
    if (c == simple[i]) {
      if (into) into->push_back(meant[i]);
      return;
    }
  if (c != 'u') throw malformed("an unknown escape in a text");
  unsigned code = hex4();
  if (code >= 0xd800 && code < 0xdc00) {
    if (look() != '\\') throw malformed("half a surrogate pair in a text");
    ++at_;
    if (look() != 'u') throw malformed("half a surrogate pair in a text");
    ++at_;
    const unsigned low = hex4();
    if (low < 0xdc00 || low > 0xdfff) throw malformed("half a surrogate pair in a text");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  } else if (code >= 0xdc00 && code < 0xe000) {
    throw malformed("half a surrogate pair in a text");
  }
  if (!into) return;
  if (code < 0x80) {
    into->push_back(char(code));
  } else if (code < 0x800) {
    into->push_back(char(0xc0 | code >> 6));
    into->push_back(char(0x80 | (code & 0x3f)));
  } else if (code < 0x10000) {
    into->push_back(char(0xe0 | code >> 12));
    into->push_back(char(0x80 | (code >> 6 & 0x3f)));
    into->push_back(char(0x80 | (code & 0x3f)));
  } else {
    into->push_back(char(0xf0 | code >> 18));
    into->push_back(char(0x80 | (code >> 12 & 0x3f)));
    into->push_back(char(0x80 | (code >> 6 & 0x3f)));
    into->push_back(char(0x80 | (code & 0x3f)));
  }
}

void JsonStream::utf8(std::string* into) {
  const int first = look();
  const int more = first >= 0xc2 && first <= 0xdf ? 1 : first >= 0xe0 && first <= 0xef ? 2 : first >= 0xf0 && first <= 0xf4 ? 3 : 0;
  if (more == 0) throw malformed("a byte that is not UTF-8");
  if (into) into->push_back(char(first));
  ++at_;
  for (int i = 0; i < more; ++i, ++at_) {
    const int c = look();
    int lowest = 0x80, highest = 0xbf;
    if (i == 0 && first == 0xe0) lowest = 0xa0;
    if (i == 0 && first == 0xed) highest = 0x9f;
    if (i == 0 && first == 0xf0) lowest = 0x90;
    if (i == 0 && first == 0xf4) highest = 0x8f;
    if (c < lowest || c > highest) throw malformed("a byte that is not UTF-8");
    if (into) into->push_back(char(c));
  }
}

void JsonStream::text(std::string* into) {
  ++at_;  // the quote
  if (into) into->clear();
  for (;;) {
    std::size_t run = at_;
    while (run < end_ && kPlain[std::uint8_t(buffer_[run])]) ++run;
    if (into) into->append(buffer_, at_, run - at_);
    at_ = run;
    if (at_ == end_) {
      if (look() < 0) throw malformed("a text is not closed");
      continue;
    }
    const int c = look();
    if (c == '"') {
      ++at_;
      return;
    }
    if (c == '\\') {
      ++at_;
      escape(into);
    } else if (c >= 0x80) {
      utf8(into);
    } else {
      throw malformed("a control character in a text");
    }
  }
}

std::string_view JsonStream::string() {
  if (peek() != Kind::string) throw found("a text");
  text(&scratch_);
  return scratch_;
}

std::string_view JsonStream::number_text() {
  scratch_.clear();
  for (int c = look(); (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E'; c = look()) {
    if (scratch_.size() >= 400) throw malformed("a number of more than 400 digits");
    scratch_.push_back(char(c));
    ++at_;
  }
  std::string_view t(scratch_);
  auto digits = [&t] {
    std::size_t n = 0;
    while (n < t.size() && t[n] >= '0' && t[n] <= '9') ++n;
    t.remove_prefix(n);
    return n;
  };
  if (t.starts_with('-')) t.remove_prefix(1);
  const bool zero = t.starts_with('0');
  const std::size_t whole = digits();
  bool fits = whole > 0 && !(zero && whole > 1);
  if (t.starts_with('.')) {
    t.remove_prefix(1);
    fits = digits() > 0 && fits;
  }
  if (t.starts_with('e') || t.starts_with('E')) {
    t.remove_prefix(1);
    if (t.starts_with('-') || t.starts_with('+')) t.remove_prefix(1);
    fits = digits() > 0 && fits;
  }
  if (!fits || !t.empty()) throw malformed(fmt::format("'{}' is no number", scratch_.substr(0, 40)));
  return scratch_;
}

std::int64_t JsonStream::integer() {
  if (peek() != Kind::number) throw found("an integer");
  const std::string_view t = number_text();
  auto value = parse_int(t);
  if (!value) throw error(fmt::format("expected an integer of 64 bits, found {}", t.substr(0, 40)));
  return *value;
}

double JsonStream::number() {
  if (peek() != Kind::number) throw found("a number");
  const std::string_view t = number_text();
  double value = 0;
  auto [end, problem] = std::from_chars(t.data(), t.data() + t.size(), value);
  if (problem != std::errc() || end != t.data() + t.size()) throw error(fmt::format("'{}' is no number of 64 bits", t.substr(0, 40)));
  return value;
}

void JsonStream::word(const char* expected) {
  for (const char* p = expected; *p; ++p, ++at_)
    if (look() != *p) throw malformed(fmt::format("'{}' is spelt wrongly", expected));
}
bool JsonStream::boolean() {
  if (peek() != Kind::boolean) throw found("true or false");
  const bool value = look() == 't';
  word(value ? "true" : "false");
  return value;
}
void JsonStream::null() {
  if (peek() != Kind::null) throw found("null");
  word("null");
}

void JsonStream::skip() {
  switch (peek()) {
    case Kind::object: return object([this](std::string_view) { skip(); });
    case Kind::array: return array([this] { skip(); });
    case Kind::string: return text(nullptr);
    case Kind::number: number_text(); return;
    case Kind::boolean: boolean(); return;
    case Kind::null: return null();
  }
}

void JsonStream::finish() {
  space();
  if (look() >= 0) throw malformed("something follows the value");
}

}  // namespace memest::spec
