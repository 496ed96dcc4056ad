// PieceNames: what a block or a state of the tree is called outside of the pool. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "executor/executor.h"
#include "kv/digest.h"
#include "kv/namespace.h"
#include "kv/text.h"
#include "tier/name.h"

namespace coppice::engine {

/// Raised with a release that changes what the same prompt computes to, beyond rounding: what older ones stored is then
/// another model's.
inline constexpr int kArithmetic = 1;

/// tier::Name::model: of all that decides the bytes of a piece besides its tokens. content: model::content_hash().
/// family: of devices whose results differ by rounding only, and whose pages are alike.
std::array<std::uint8_t, 16> model_name(const std::string& content, const std::string& family,
                                        const executor::ExecutorInfo& info);

/// tier::Name::space, of kv::Namespace::owner().
std::array<std::uint8_t, 16> owner_name(std::string_view owner);

/// What names have of a namespace.
struct SpaceName {
  std::array<std::uint8_t, 16> owner{}, whole{};
};
SpaceName space_name(const kv::Namespace& ns);

/// `group` as kv::Storable has it.
tier::Name piece_name(const std::array<std::uint8_t, 16>& model, const SpaceName& space, const kv::Digest& digest,
                      int group);

/// Bytes of the largest piece that there can be.
std::size_t largest_piece(const executor::ExecutorInfo& info);

}  // namespace coppice::engine
