// What the chat library sees of tools' schemas. It makes a parser of each property, and reads answers by it: so what it
// gets is bounded before. Grammars that hold calls are ours, and don't come from what it sees (ToolSpec::held).
//
// Functions without state; any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "text/tool_chat.h"

namespace coppice::text {

/// docs/operations.md names them. All tools of a chat together.
struct SchemaBounds {
  static constexpr std::size_t kBytes = std::size_t{1} << 20U;
  static constexpr std::size_t kValues = 32768;     ///< JSON values of any kind
  static constexpr std::size_t kProperties = 2048;  ///< at any depth
};

/// A schema of objects that have the names of its first `most` properties, and nothing more.
std::string names_alone(const std::string& parameters, std::size_t most = SchemaBounds::kProperties);

/// Schemas that are too large lose all but the names of their properties, those for which nothing is left these, too:
/// any object is read then. The first tools get what there is.
void bound_schemas(std::span<ToolSpec> tools);

}  // namespace coppice::text
