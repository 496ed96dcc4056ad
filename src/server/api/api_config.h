// What the operator sets of the API.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace coppice::server {

/// How much of a cache report the operator lets out.
enum class CacheReports : std::uint8_t {
  kText,     ///< also how the cached text goes on: it may be another client's, of the same salt
  kLengths,  ///< only the client's own text
  kOff,      ///< requests that ask are refused
};

/// The names a request may call the model by.
struct ServedNames {
  std::string id;
  std::string alias;  ///< empty: none

  /// Is it the id, the alias, "default", or empty?
  bool known(const std::string& name) const {
    return name.empty() || name == id || name == "default" || (!alias.empty() && name == alias);
  }
  /// What answers say: the name asked for, or the id.
  const std::string& resolve(const std::string& name) const { return !alias.empty() && name == alias ? alias : id; }
};

struct ApiConfig {
  ServedNames names;
  std::size_t max_pending_bytes = std::size_t{1} << 20;  ///< per stream, not taken by its client
  std::size_t max_answer_bytes = std::size_t{16} << 20;  ///< of JSON, of an answer that is not a stream
  double request_seconds = 0;                            ///< deadline of a request; 0: none
  double ping_seconds = 5;                               ///< a stream's longest silence; 0: no limit
  std::string api_keys_file;                             ///< see ApiKeys; empty: everybody may come in
  bool isolate_keys = false;                             ///< no key's requests share the cache with another's
  CacheReports cache_reports = CacheReports::kText;
};

}  // namespace coppice::server
