// A folder of its own, pieces to put there, and what a DiskFolder says.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tier/disk/disk_folder.h"
#include "tier/disk/piece_path.h"
#include "tier/disk/real_files.h"
#include "tier/piece.h"

namespace coppice::test {

inline tier::Name name_of(int i, int model = 0, int space = 0) {
  tier::Name name;
  name.model.fill(static_cast<std::uint8_t>(model));
  name.space.fill(static_cast<std::uint8_t>(space));
  name.piece[0] = static_cast<std::uint8_t>(16 * i);
  name.piece[1] = static_cast<std::uint8_t>(i / 16);
  name.piece[2] = static_cast<std::uint8_t>(i / 4096);
  return name;
}

/// A piece whose payload is drawn from its name.
inline void fill_piece(tier::Buffer& buffer, const tier::Name& name, std::size_t payload_bytes) {
  buffer.set_size(tier::piece_size(4, 5, payload_bytes));
  const std::byte text[4] = {};
  const auto payload = tier::begin_piece(buffer.bytes(), name, text, "about", payload_bytes);
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(name.piece[0] + 7 * i);
  tier::seal_piece(buffer.bytes());
}

class DiskTest : public testing::Test {
 protected:
  DiskTest() {
    char pattern[] = "/tmp/coppice-disk-XXXXXX";
    path_ = std::filesystem::path(::mkdtemp(pattern)) / "cache";
  }
  ~DiskTest() override { std::filesystem::remove_all(path_.parent_path()); }

  tier::Buffer piece(const tier::Name& name, std::size_t payload_bytes = 10'000) {
    tier::Buffer buffer = buffers_.take();
    fill_piece(buffer, name, payload_bytes);
    return buffer;
  }
  /// False: it was not taken.
  bool put(tier::DiskFolder& folder, const tier::Name& name, std::size_t payload_bytes = 10'000) {
    tier::Buffer buffer = piece(name, payload_bytes);
    if (folder.take(name, buffer.size()) != tier::DiskFolder::Taken::kTaken) return false;
    folder.write(name, buffer, 0);
    return true;
  }
  /// Whether it reads as what put() wrote.
  bool reads(tier::DiskFolder& folder, const tier::Name& name) {
    tier::Buffer into = buffers_.take();
    folder.read(name, into);
    return into.size() > 0 && tier::open_piece(into.bytes(), &name).has_value();
  }
  std::filesystem::path file(const tier::Name& name) const { return path_ / tier::path_of(name); }

  std::filesystem::path path_;
  tier::Buffers buffers_{8, 1 << 20};
  std::vector<std::string> said_;
};

/// A folder on real files, as a server has it.
struct RealFolder {
  explicit RealFolder(const std::filesystem::path& path,
                      const tier::DiskLimits& limits = {.bytes = 1 << 30, .free_share = 0})
      : files(tier::make_real_files(path)),
        folder(*files, limits, [this](const std::string& line) { said.push_back(line); }) {}

  std::unique_ptr<tier::FileSystem> files;
  std::vector<std::string> said;
  tier::DiskFolder folder;
};

}  // namespace coppice::test
