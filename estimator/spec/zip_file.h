// Zip archives, read only: the members that the central directory lists, and the bytes of one of them as a stream. Stored and deflated
// members, zip64 and data descriptors (APPNOTE.TXT 6.3.10). Sizes come from the central directory; nothing is written anywhere.
#pragma once
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace memest::spec {

struct ZipMember {
  std::string name;
  std::uint64_t size = 0, compressed = 0;  ///< bytes
  std::uint64_t header = 0;                ///< offset of its local header
  std::uint32_t crc = 0;
  std::uint16_t method = 0, flags = 0;
};

class ZipFile {
 public:
  /// Reads the central directory; throws Error for what is no zip, is cut off, or lists members that overlap or lie outside the file.
  explicit ZipFile(const std::string& path);
  /// An archive that is a stored member of another.
  ZipFile(const ZipFile& outer, const ZipMember& member);
  const std::vector<ZipMember>& members() const { return members_; }
  /// The member of that name; null where there is none. Throws Error where there are two.
  const ZipMember* find(std::string_view name) const;
  /// The whole member; throws Error for more than `most` bytes.
  std::string read(const ZipMember& member, std::uint64_t most) const;

  /// A member's bytes, in pieces. The checksum is compared at the end.
  class Stream {
   public:
    ~Stream();
    Stream(Stream&&) noexcept;
    /// Fills the buffer; fewer bytes only at the end.
    std::size_t read(char* into, std::size_t most);

   private:
    friend class ZipFile;
    struct State;
    explicit Stream(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
  };
  /// Throws Error for a member that is encrypted, packed in another way, or unpacks to more than 200 times its packed size.
  Stream open(const ZipMember& member) const;

 private:
  void read_directory();
  std::uint64_t start_of(std::ifstream& file, const ZipMember& member) const;

  std::string path_;
  std::uint64_t base_ = 0, size_ = 0;  ///< where the archive starts in the file, and its bytes
  std::vector<ZipMember> members_;
};

}  // namespace memest::spec
