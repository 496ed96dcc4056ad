// Zeroed memory that the system maps for this process alone.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace coppice::port {

class Mapping {
 public:
  Mapping() = default;
  /// `size`: bytes. Throws std::bad_alloc.
  explicit Mapping(std::size_t size);

  std::byte* data() const { return memory_.get(); }  ///< page aligned; null: none
  std::size_t size() const { return memory_.get_deleter().size; }
  std::span<std::byte> bytes() const { return {data(), size()}; }

 private:
  struct Unmap {
    std::size_t size;
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte[], Unmap> memory_;
};

/// Asks for huge pages, which the system need not have. `part`: page aligned.
void prefer_huge_pages(std::span<std::byte> part);

/// Gives the whole pages of a mapping's part back: their bytes are lost, their addresses stay.
void give_back_pages(std::span<std::byte> part);
void give_back_whole_pages(std::span<std::byte> pages);  ///< page aligned

/// Takes the pages of a mapping's part now, and not with the first write to each. False: there is no such memory. True
/// also where the system can't do that. Thread safe.
bool take_pages(std::span<std::byte> part);

}  // namespace coppice::port
