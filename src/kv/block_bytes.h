// BlockBytes: a block's text, and where that stands, as bytes that outlive the process: for what is kept outside of the
// pool. Any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "kv/namespace.h"
#include "kv/text.h"
#include "kv/types.h"

namespace coppice::kv {

/// All that makes up a text: its symbols, its media with their whole digests. Equal texts, and no others, give equal
/// bytes.
std::vector<std::byte> spell(TextView text);
/// None: they are no text of so many symbols.
std::optional<Text> read_text(std::span<const std::byte> bytes, std::size_t symbols);

/// What a full block's digest is made of, besides its text.
struct BlockOrigin {
  Digest parent{};        ///< of the text before it; of the namespace, if nothing is before it
  bool is_first = false;  ///< nothing is before it
  Namespace ns;
  friend bool operator==(const BlockOrigin&, const BlockOrigin&) = default;
};
std::vector<std::byte> spell(const BlockOrigin& origin);
/// None: they are no origin.
std::optional<BlockOrigin> read_origin(std::span<const std::byte> bytes);

}  // namespace coppice::kv
