// JSON read as it arrives: nothing is kept but the place. For files of any size; what nobody asks for is skipped, checked all the same.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace memest::spec {

class JsonStream {
 public:
  /// Fills the buffer, fewer bytes only at the end.
  using Source = std::function<std::size_t(char* into, std::size_t most)>;
  /// `what` names the text in messages.
  JsonStream(Source source, std::string what);

  enum class Kind { object, array, string, number, boolean, null };
  /// What the next value is.
  Kind peek();
  /// f(key) for each member, which reads or skips the value; a key stays valid until then.
  template <class F>
  void object(F f) {
    begin('{', "an object");
    for (std::size_t i = 0; next_key(i); ++i) {
      f(std::string_view(key_));
      leave();
    }
  }
  /// f() for each element, which reads or skips it.
  template <class F>
  void array(F f) {
    begin('[', "a list");
    for (std::size_t i = 0; next_element(i); ++i) {
      f();
      leave();
    }
  }
  /// Valid until the next call.
  std::string_view string();
  std::int64_t integer();
  double number();
  bool boolean();
  void null();
  /// The next value, whatever it is.
  void skip();
  /// After the top value: throws Error where anything but space follows.
  void finish();

  /// With the JSON pointer of the value that is being read.
  Error error(const std::string& message, const std::string& hint = {}) const;
  std::string where() const;
  std::uint64_t position() const { return consumed_ + at_; }

 private:
  static constexpr int kDeepest = 200;
  void begin(char open, const char* what);
  bool next_key(std::size_t i);
  bool next_element(std::size_t i);
  void leave() { path_.pop_back(); }
  bool fill();
  int look() { return at_ < end_ || fill() ? std::uint8_t(buffer_[at_]) : -1; }
  void space();
  void text(std::string* into);
  void escape(std::string* into);
  unsigned hex4();
  void utf8(std::string* into);
  std::string_view number_text();
  void word(const char* word);
  Error found(const char* wanted);
  Error malformed(const std::string& what) const;

  struct Place {
    std::string key;
    std::int64_t index = -1;  ///< of an element
  };
  Source source_;
  std::string what_, buffer_, scratch_, key_;
  std::size_t at_ = 0, end_ = 0;
  std::uint64_t consumed_ = 0;
  bool ended_ = false;
  std::vector<char> open_;  ///< brackets
  // places are reused, so that keys need no allocation
  class Path {
   public:
    Place& push_back() {
      if (size_ == places_.size()) places_.emplace_back();
      return places_[size_++];
    }
    void pop_back() { --size_; }
    std::size_t size() const { return size_; }
    const Place& operator[](std::size_t i) const { return places_[i]; }

   private:
    std::vector<Place> places_;
    std::size_t size_ = 0;
  } path_;
};

}  // namespace memest::spec
