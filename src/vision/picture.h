// Picture: a picture as a prompt has it: tokens, and rows that are named and not yet encoded. A value.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "kv/text.h"
#include "kv/types.h"

namespace coppice::vision {

/// [rows][embedding_size] of a medium.
using Rows = std::shared_ptr<const std::vector<float>>;

/// Rows that stand together.
struct Piece {
  kv::Medium medium;
  int columns = 0;  ///< they lie on a grid so wide; 0: in a row, as tokens do
};

struct Picture {
  std::uint32_t width = 0, height = 0;  ///< pixels of the file, upright
  std::vector<std::variant<std::vector<kv::Token>, Piece>> parts;
};

/// How closely it is looked at: OpenAI's `detail`.
enum class Detail : std::uint8_t {
  kAuto,
  kLow,  ///< no more than kLowSide pixels wide or high
};
inline constexpr std::uint32_t kLowSide = 512;

}  // namespace coppice::vision
