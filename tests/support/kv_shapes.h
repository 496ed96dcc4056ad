// The shapes that every kv test runs with: layer groups x block size x hash.
#pragma once

#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include "kv/cache.h"
#include "support/sanitized.h"

namespace coppice::test {

enum class Groups { kFull, kFullAndSliding, kFullAndFiveSliding, kFullAndChunked, kFullAndRecurrent, kAllKinds };
inline constexpr Groups kAllGroups[] = {Groups::kFull,           Groups::kFullAndSliding,   Groups::kFullAndFiveSliding,
                                        Groups::kFullAndChunked, Groups::kFullAndRecurrent, Groups::kAllKinds};
inline constexpr int kStatePages = 2;

/// Layer groups as models have them. Windows are stated in blocks and a bit, so that they end inside blocks.
inline std::vector<kv::GroupSpec> make_groups(Groups groups, int block_size) {
  const auto sliding = [](int window, std::vector<int> layers) {
    return kv::GroupSpec{
        .kind = kv::GroupKind::kSliding, .window = window, .layers = std::move(layers), .bytes_per_token = 64};
  };
  std::vector<kv::GroupSpec> specs = {{.kind = kv::GroupKind::kFull, .layers = {0, 1}, .bytes_per_token = 64}};
  if (groups == Groups::kFullAndSliding) {  // one window, whose layers need two pages
    specs.push_back(sliding(block_size + block_size / 2, {2, 3}));
    specs.push_back(sliding(block_size + block_size / 2, {4}));
  }
  if (groups == Groups::kAllKinds) specs.push_back(sliding(block_size + block_size / 2, {2, 3}));
  if (groups == Groups::kAllKinds || groups == Groups::kFullAndRecurrent) {
    specs.push_back({.kind = kv::GroupKind::kRecurrent, .layers = {8, 9}, .state_pages = kStatePages});
  }
  if (groups == Groups::kFullAndFiveSliding) {
    // Shorter than a block, whole blocks, ends inside a block; the last two have one window; one in chunks.
    specs.push_back(sliding(block_size / 2 + 1, {2}));
    specs.push_back(sliding(block_size, {3, 4}));
    specs.push_back(sliding(2 * block_size - 3, {5}));
    specs.back().chunked = true;
    specs.push_back(sliding(2 * block_size + 3, {6, 7}));
    specs.push_back(sliding(2 * block_size + 3, {8}));
  }
  if (groups == Groups::kFullAndChunked) {
    // Borders between blocks, of layers that need two pages; in the middle of a block and between two; inside each
    // block.
    for (const int chunk : {2 * block_size, 2 * block_size, block_size + block_size / 2, block_size / 2 - 1}) {
      specs.push_back(sliding(chunk, {static_cast<int>(specs.size()) + 1}));
      specs.back().chunked = true;
    }
  }
  return specs;
}

/// A hash that tells nothing apart: text must still be right.
inline kv::Digest constant_hash(std::span<const std::byte>) {
  return {};
}

struct Shape {
  Groups groups = Groups::kFull;
  int block_size = 16;
  bool constant_hash = false;
};

inline std::string to_text(Groups groups) {
  switch (groups) {
    case Groups::kFull:
      return "Full";
    case Groups::kFullAndSliding:
      return "FullSliding";
    case Groups::kFullAndFiveSliding:
      return "FullFiveSliding";
    case Groups::kFullAndChunked:
      return "FullChunked";
    case Groups::kFullAndRecurrent:
      return "FullRecurrent";
    case Groups::kAllKinds:
      return "AllKinds";
  }
  return "";
}

/// `blocks` per group, so that tests can count in blocks of tokens; and for half as many states.
inline kv::CacheConfig make_config(const Shape& shape, int blocks) {
  kv::CacheConfig config;
  config.block_size = shape.block_size;
  config.groups = make_groups(shape.groups, shape.block_size);
  const auto tables = static_cast<int>(kv::n_table_groups(config.groups));
  const bool states = std::cmp_less(tables, config.groups.size());
  config.num_blocks = 1 + blocks * (tables + (states ? 1 : 0));
  if (states) config.state_stride = 2 * shape.block_size;
  config.bytes_per_block = static_cast<std::size_t>(shape.block_size) * 64;
  config.model = "model";
  config.layout = "layout";
  if (shape.constant_hash) config.hash = constant_hash;
  return config;
}

}  // namespace coppice::test
