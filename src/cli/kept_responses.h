// Stored responses in the folder of --kv-dir, as a piece of their own, sealed where blocks are. Only who has locked the
// folder may call them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "tier/seal.h"

namespace coppice::cli {

/// What the server before has left. Empty: nothing, or it doesn't open.
std::string left_responses(const std::filesystem::path& folder, const std::optional<tier::Seal>& seal);
/// Once they are there again: what is deleted then doesn't come back after a kill.
void forget_responses(const std::filesystem::path& folder);
/// "": they are safe. Else why not.
std::string keep_responses(const std::filesystem::path& folder, const std::optional<tier::Seal>& seal,
                           std::string_view text);

}  // namespace coppice::cli
