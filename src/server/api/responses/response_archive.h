// Stored responses as text, for a file that outlives the server: a line of JSON for each, those that others go on from
// before these. Any thread.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/responses/response_store.h"

namespace coppice::server {

struct ArchivedResponse {
  std::string id;
  ResponseOwner owner;
  std::optional<std::size_t> previous;  ///< index of the one it goes on from
  bool found = true;                    ///< false: it was deleted, and others stand on it
  std::vector<ConversationItem> input, output;
  std::string body;
};

std::string write_responses(const ResponseStore& store);
/// What is no such text, or of another version, holds none.
std::vector<ArchivedResponse> read_responses(std::string_view text);
/// Stores them again, as far as there is room: those of `tenants`. Returns how many could be found.
std::size_t restore(std::vector<ArchivedResponse> responses, const std::set<std::string>& tenants,
                    ResponseStore& store);

}  // namespace coppice::server
