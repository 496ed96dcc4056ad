// MappedFile: a file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace coppice::model {

/// Which file it is, and in which state: one that was written or replaced since has another.
struct FileIdentity {
  std::uint64_t device = 0, inode = 0, size = 0;
  std::int64_t changed_ns = 0;  ///< when its contents last changed, since 1970
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};
/// Of an open file.
FileIdentity identity_of(int descriptor);
/// Of the file that has this name by now; empty: there is none.
FileIdentity identity_of(const std::string& path);

/// Owns the mapping. Any thread may read it.
class MappedFile {
 public:
  /// Throws LoadError when the file can't be opened or mapped.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  const FileIdentity& identity() const { return identity_; }  ///< when it was mapped
  /// Gives back the memory of the pages that lie wholly inside [offset, offset + size). They are read from the file
  /// again when they are touched again.
  void let_go(std::size_t offset, std::size_t size) const;

 private:
  std::span<const std::byte> bytes_;
  FileIdentity identity_;
};

}  // namespace coppice::model
