// Downloads of large files whose SHA-256 is known: what came once is not fetched again, and nothing takes its place
// before it is right.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "pull/progress.h"
#include "pull/web_client.h"

namespace coppice::pull {

struct WantedFile {
  std::string name;  ///< for people
  server::Url url;
  std::string authorization{};    ///< of its server; empty: none
  std::filesystem::path target;   ///< where it will lie
  std::filesystem::path growing;  ///< where it grows until then
  std::string sha256;             ///< hex, lower case
  std::uint64_t size = 0;         ///< bytes; 0: not known
  std::string forbidden{};        ///< what is said if the server answers 401 or 403; empty: that it does
};

/// Nothing is done where the file lies in its place in this size. A connection that breaks is opened again, some times.
/// If it is wrong, and began in an earlier call, it is fetched again, as what lay there may not have been its
/// beginning. Throws WebFailure, std::system_error; std::runtime_error: other bytes came than were wanted, and are
/// gone.
void download(WebClient& client, const WantedFile& file, Progress& progress);

}  // namespace coppice::pull
