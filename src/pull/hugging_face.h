// Files of Hugging Face's hub, into the cache of its own tools: hub/models--OWNER--REPO/{blobs/SHA256,
// snapshots/COMMIT/FILE, refs/REVISION}.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pull/download.h"
#include "pull/names.h"
#include "pull/web_client.h"

namespace coppice::pull {

struct Hub {
  std::string endpoint = "https://huggingface.co";
  std::string token{};            ///< empty: none
  std::filesystem::path cache{};  ///< the folder "hub"
};

struct PulledModel {
  std::filesystem::path file;         ///< in the cache, that is served: of parts the first
  std::vector<HubFile> projectors{};  ///< beside it in the repository, whose files were listed as none was named
};

/// Downloads it; of a model in parts, all parts. Throws as download(), and std::runtime_error: there is no such file,
/// or several, which it lists.
PulledModel pull_from_hub(WebClient& client, const Hub& hub, HubFile wanted, Progress& progress);

/// The file that pull_from_hub() would name, without asking anybody; none: the cache doesn't have it, or not all of
/// its parts. Throws std::runtime_error: several may be meant, which it lists.
std::optional<std::filesystem::path> find_in_hub_cache(const std::filesystem::path& cache, HubFile wanted);

}  // namespace coppice::pull
