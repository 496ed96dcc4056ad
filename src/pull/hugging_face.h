// Files of Hugging Face's hub, into the cache of its own tools: hub/models--OWNER--REPO/{blobs/SHA256,
// snapshots/COMMIT/FILE, refs/REVISION}.
#pragma once

#include <filesystem>
#include <string>

#include "pull/download.h"
#include "pull/web_client.h"

namespace coppice::pull {

struct HubFile {
  std::string repo;  ///< "OWNER/REPO"
  std::string revision = "main";
  std::string file;  ///< may be in a folder; empty: the repository's only GGUF file
};

/// "OWNER/REPO", "OWNER/REPO/FILE" or "OWNER/REPO@REVISION/FILE". Throws std::runtime_error: it is nothing of these.
HubFile parse_hub_file(const std::string& text);

struct Hub {
  std::string endpoint = "https://huggingface.co";
  std::string token{};            ///< empty: none
  std::filesystem::path cache{};  ///< the folder "hub"
};

/// Downloads it; of a model in parts, all parts. Returns the file in the cache that is served: of parts the first.
/// Throws as download(), and std::runtime_error: there is no such file, or several, which it lists.
std::filesystem::path pull_from_hub(WebClient& client, const Hub& hub, HubFile wanted, const Progress& progress);

}  // namespace coppice::pull
