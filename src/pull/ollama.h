// Models of Ollama's registry, into its own folder: manifests/HOST/NAMESPACE/NAME/TAG, and blobs/sha256-HASH of what a
// manifest lists.
#pragma once

#include <filesystem>
#include <string>

#include "pull/download.h"
#include "pull/names.h"
#include "pull/web_client.h"

namespace coppice::pull {

/// Downloads all that its manifest lists, and then writes that. `registry`: its URL. Returns the model's file. Throws
/// as download(), and std::runtime_error: there is no such model.
std::filesystem::path pull_from_ollama(WebClient& client, const std::string& registry,
                                       const std::filesystem::path& folder, const OllamaName& wanted,
                                       Progress& progress);

}  // namespace coppice::pull
