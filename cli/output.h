// Where a result goes: a file opened before the work starts; "-" is stdout; "" is nowhere.
#pragma once
#include <fmt/core.h>

#include <fstream>
#include <string>

#include "base/error.h"

namespace memest::cli {

class Output {
 public:
  explicit Output(const std::string& path) : path_(path) {
    if (path.empty() || path == "-") return;
    file_.open(path, std::ios::binary);
    if (!file_) throw Error("cannot be written").within(path);
  }
  void write(const std::string& text) {
    if (path_.empty()) return;
    if (path_ == "-") {
      fmt::print("{}", text);
    } else if (!(file_ << text << std::flush)) {
      throw Error("cannot be written").within(path_);
    }
  }

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace memest::cli
