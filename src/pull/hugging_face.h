// Files of Hugging Face's hub, into the cache of its own tools: hub/models--OWNER--REPO/{blobs/SHA256,
// snapshots/COMMIT/FILE, refs/REVISION}.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "pull/download.h"
#include "pull/names.h"
#include "pull/web_client.h"

namespace coppice::pull {

struct Hub {
  std::string endpoint = "https://huggingface.co";
  std::string token{};            ///< empty: none
  std::filesystem::path cache{};  ///< the folder "hub"
};

/// Downloads it; of a model in parts, all parts. Returns the file in the cache that is served: of parts the first.
/// Throws as download(), and std::runtime_error: there is no such file, or several, which it lists.
std::filesystem::path pull_from_hub(WebClient& client, const Hub& hub, HubFile wanted, Progress& progress);

/// The file that pull_from_hub() would return, without asking anybody; none: the cache doesn't have it, or not all of
/// its parts. Throws std::runtime_error: several may be meant, which it lists.
std::optional<std::filesystem::path> find_in_hub_cache(const std::filesystem::path& cache, HubFile wanted);

}  // namespace coppice::pull
