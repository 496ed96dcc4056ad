// MappedFile: a file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace coppice::model {

/// Owns the mapping. Any thread may read it.
class MappedFile {
 public:
  /// Throws LoadError when the file can't be opened or mapped.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  /// Gives back the memory of the pages that lie wholly inside [offset, offset + size). They are read from the file again
  /// when they are touched again.
  void let_go(std::size_t offset, std::size_t size) const;

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace coppice::model
