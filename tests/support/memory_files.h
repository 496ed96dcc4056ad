// MemoryFiles: a FileSystem in memory on which nothing fails, for tests that want a folder and no disk. One thread.
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tier/disk/file_system.h"

namespace coppice::test {

class MemoryFiles final : public tier::FileSystem {
 public:
  template <class T>
  using Result = tier::Result<T>;

  /// Of all that are files, by path.
  std::map<std::string, std::vector<std::byte>*> files() {
    std::map<std::string, std::vector<std::byte>*> found;
    for (auto& [path, node] : nodes_)
      if (!node->is_folder) found.emplace(path, &node->bytes);
    return found;
  }

  std::string name() const override { return "memory"; }
  Result<Status> open_root() override {
    add("", true);
    return status(std::string());
  }
  Result<void> hide_root() override { return {}; }
  Result<Number> lock(const std::string& path) override { return open_node(add(path, false)); }
  Result<void> make_folder(const std::string& path) override {
    add(path, true);
    return {};
  }
  Result<void> list(const std::string& path, const std::function<void(std::string_view)>& entry) override {
    const std::string before = path.empty() ? "" : path + "/";
    for (const auto& [each, node] : nodes_) {
      const std::string_view rest = std::string_view(each).substr(std::min(before.size(), each.size()));
      if (each.starts_with(before) && !rest.empty() && !rest.contains('/')) entry(rest);
    }
    return {};
  }
  Result<Status> status(const std::string& path) override {
    const auto found = nodes_.find(path);
    if (found == nodes_.end()) return std::unexpected(ENOENT);
    return status_of(*found->second);
  }
  Result<Status> status(Number file) override { return status_of(*open_.at(file)); }
  Result<Room> room() override { return Room{.all = std::uint64_t{1} << 40, .free = std::uint64_t{1} << 39}; }

  Result<Number> create(const std::string& path) override {
    if (nodes_.contains(path)) return std::unexpected(EEXIST);
    return open_node(add(path, false));
  }
  Result<Number> reopen(const std::string& path) override { return open(path); }
  Result<Number> open(const std::string& path) override {
    const auto found = nodes_.find(path);
    if (found == nodes_.end()) return std::unexpected(ENOENT);
    return open_node(found->second);
  }
  void close(Number file) noexcept override { open_.erase(file); }

  Result<std::size_t> write(Number file, std::uint64_t offset, std::span<const std::byte> bytes) override {
    auto& to = open_.at(file)->bytes;
    to.resize(std::max<std::size_t>(to.size(), offset + bytes.size()));
    std::ranges::copy(bytes, to.begin() + static_cast<std::ptrdiff_t>(offset));
    return bytes.size();
  }
  Result<std::size_t> read(Number file, std::uint64_t offset, std::span<std::byte> into) override {
    const auto& from = open_.at(file)->bytes;
    const std::size_t at = std::min<std::size_t>(offset, from.size()), n = std::min(into.size(), from.size() - at);
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(at), n, into.begin());
    return n;
  }
  Result<void> set_length(Number file, std::uint64_t bytes) override {
    open_.at(file)->bytes.resize(bytes);
    return {};
  }
  Result<void> sync(Number) override { return {}; }
  Result<void> touch(Number file) override {
    open_.at(file)->used = now();
    return {};
  }
  Result<void> rename(const std::string& from, const std::string& to) override {
    const auto found = nodes_.find(from);
    if (found == nodes_.end()) return std::unexpected(ENOENT);
    nodes_[to] = found->second;
    nodes_.erase(from);
    return {};
  }
  Result<void> remove(const std::string& path) override {
    if (nodes_.erase(path) == 0) return std::unexpected(ENOENT);
    return {};
  }
  std::int64_t now() override { return 1'800'000'000; }
  Clock::time_point ticks() override { return Clock::time_point(std::chrono::hours(1)); }

 private:
  struct Node {
    std::uint64_t id = 0;
    bool is_folder = false;
    std::vector<std::byte> bytes;
    std::int64_t used = 0;
  };
  static Status status_of(const Node& node) {
    return {.id = node.id,
            .is_file = !node.is_folder,
            .is_folder = node.is_folder,
            .is_mine = true,
            .bytes = node.bytes.size(),
            .used = node.used};
  }
  std::shared_ptr<Node> add(const std::string& path, bool is_folder) {
    auto& node = nodes_[path];
    if (!node)
      node = std::make_shared<Node>(Node{.id = ++last_id_, .is_folder = is_folder, .bytes = {}, .used = now()});
    return node;
  }
  Number open_node(std::shared_ptr<Node> node) {
    open_.emplace(++last_number_, std::move(node));
    return last_number_;
  }

  std::map<std::string, std::shared_ptr<Node>> nodes_;
  std::map<Number, std::shared_ptr<Node>> open_;
  std::uint64_t last_id_ = 0;
  Number last_number_ = 0;
};

}  // namespace coppice::test
