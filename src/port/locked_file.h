// A file that one process writes at a time, and that grows at its end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

namespace coppice::port {

class LockedFile {
 public:
  /// Opens or makes it. Throws std::system_error; std::errc::resource_unavailable_try_again: another process has it.
  explicit LockedFile(const std::filesystem::path& path);
  ~LockedFile();
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

  // Each throws std::system_error.
  std::uint64_t size() const;
  /// How many bytes came; less than asked only at its end.
  std::size_t read(std::uint64_t at, std::span<char> into) const;
  void append(std::span<const char> bytes);
  void empty();
  /// What was written is on the disk when this returns.
  void sync();

 private:
  int file_;
};

}  // namespace coppice::port
