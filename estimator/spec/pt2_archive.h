// Where a .pt2 file keeps what (torch/csrc/export/pt2_archive_constants.h, torch/export/pt2_archive/_package.py of 2.15;
// torch/export/__init__.py of 2.1 to 2.7). Weights are never read.
#pragma once
#include <map>
#include <string>

#include "spec/zip_file.h"

namespace memest::spec::pt2 {

class Archive {
 public:
  /// Throws Error for an archive without a program, with several of which none is named "model", or of an unknown version.
  explicit Archive(const std::string& path);
  /// Whether the members are those of a program that torch.export wrote.
  static bool recognises(const ZipFile& zip);

  const ZipFile& zip() const { return zip_; }
  const ZipMember& program() const { return *program_; }
  /// Of each weight's name the bytes in the file that hold it: tied weights share them.
  std::map<std::string, std::string> payloads() const;

 private:
  void configured(const ZipMember& config, std::map<std::string, std::string>& payloads) const;
  void pickled(const ZipMember& weights, std::map<std::string, std::string>& payloads) const;

  ZipFile zip_;
  std::string root_, name_;
  const ZipMember* program_ = nullptr;
};

}  // namespace memest::spec::pt2
