// What the operator sets of the API.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "server/api/base/generation_defaults.h"

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
  std::string alias;              ///< empty: none
  std::vector<std::string> more;  ///< further ones
  std::string unlisted;           ///< one that /v1/models doesn't tell; empty: none
  bool any = false;               ///< every name is taken

  /// Is it one of these, "default", or empty?
  bool known(const std::string& name) const {
    return any || name.empty() || name == "default" || name == unlisted || is_listed(name);
  }
  bool is_listed(const std::string& name) const {
    return name == id || (!alias.empty() && name == alias) || std::ranges::find(more, name) != more.end();
  }
  /// All of them, each once.
  std::vector<std::string> list() const {
    std::vector<std::string> names = {id};
    if (!alias.empty() && alias != id) names.push_back(alias);
    names.insert(names.end(), more.begin(), more.end());
    return names;
  }
  /// What answers say: the name asked for, or the id.
  const std::string& resolve(const std::string& name) const { return is_listed(name) ? name : id; }
};

struct ApiConfig {
  ServedNames names;
  std::size_t max_pending_bytes = std::size_t{1} << 20;      ///< per stream, not taken by its client
  std::size_t max_answer_bytes = std::size_t{16} << 20;      ///< of JSON, of an answer that is not a stream
  std::size_t response_store_bytes = std::size_t{64} << 20;  ///< of ResponseStore; 0: nothing is stored
  double request_seconds = 0;                                ///< deadline of a request; 0: none
  double ping_seconds = 5;                                   ///< a stream's longest silence; 0: no limit
  std::string api_keys_file;                                 ///< see ApiKeys
  std::vector<std::string> api_keys;  ///< more of them. Without file and keys everybody may come in
  std::string operator_keys_file;     ///< of those who may reset the cache; empty: nobody, where there
                                      ///< are other keys, else everybody
  bool keeps_billing = false;         ///< see parse_anthropic_request()
  std::string cors_origins;           ///< see Cors
  std::string host = "127.0.0.1";     ///< what the server listens on
  std::string hosts;                  ///< see BrowserGuard
  bool serves_page = true;            ///< the page at "/" and its files
  bool serves_slots = true;           ///< /slots
  GenerationDefaults defaults;        ///< for requests that don't say
  std::string model_path;             ///< as the operator wrote it
  std::string version = "0";          ///< of this server
  bool isolate_keys = false;          ///< no key's requests share the cache with another's
  CacheReports cache_reports = CacheReports::kText;
  std::vector<std::string> media_hosts;             ///< see MediaHosts; empty: nothing is fetched
  double media_seconds = 10;                        ///< for a request's images
  std::size_t media_bytes = std::size_t{16} << 20;  ///< of a request's images
  std::string request_log;                          ///< see RequestLog; empty: none
  bool verbose = false;                             ///< chats' answers say their prompts
};

}  // namespace coppice::server
