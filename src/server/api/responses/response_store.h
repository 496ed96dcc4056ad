// ResponseStore: finished responses of OpenAI's Responses API, so that clients can read them again and go on from them
// (docs/decisions.md, "Stored responses").
//
// Responses that go on from one another are a tree: each holds its own turn, and refers to the one before. What is
// deleted stays in memory as long as others stand on it, but nobody finds it.
//
// Bounded in bytes, those of running requests included. When room is wanted, the owner that holds the most gives up
// what it used least recently. So an owner that holds no more than its share, an equal part of the budget, loses
// nothing to others.
//
// Thread safety: all methods may be called by any thread.
//
// Invariants
//   1. All turns together have at most `budget` bytes when a method returns.
//   2. What belongs to another owner or salt is never found.
//   3. Whenever a response is used, so are those that it stands on, later than itself: so no response goes before one
//      that stands on it, and each that goes gives back its room.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "check/mutex.h"

namespace coppice::server {

/// A part of a conversation in the API's words: a message, a call, a call's result.
struct ConversationItem {
  std::string id;
  std::string json;  ///< an object
};

/// Whose a response is: nobody else finds it.
struct ResponseOwner {
  std::string tenant;  ///< HttpRequest's
  std::string salt;    ///< the request's `cache_salt`
  bool operator==(const ResponseOwner&) const = default;
};

/// A response and the request it answers. Immutable once it is finished.
struct StoredResponse {
  ~StoredResponse();

  std::string id;
  ResponseOwner owner;
  /// The one it goes on from; null: none. Mutable: see the destructor.
  mutable std::shared_ptr<const StoredResponse> previous;
  std::vector<ConversationItem> input;  ///< of this request alone
  std::string body;                     ///< the response as JSON, without its output
  std::vector<ConversationItem> output;

 private:
  friend class ResponseStore;
  using Bytes = std::shared_ptr<std::atomic<std::size_t>>;
  void charge(std::size_t bytes);

  Bytes tenant_bytes_;            ///< of all that its tenant has
  std::size_t bytes_ = 0;         ///< of it that is this one's
  std::size_t bytes_before_ = 0;  ///< of those that it stands on
  bool listed_ = false;           ///< the rest: guarded by the store's mutex
  std::list<std::shared_ptr<StoredResponse>>::iterator place_;
};

struct ResponseStoreFigures {
  std::size_t responses = 0;  ///< that can be found
  std::size_t bytes = 0;
  std::int64_t evictions = 0;  ///< responses that made room for others
};

class ResponseStore {
 public:
  /// `budget`: bytes; 0: nothing is stored.
  explicit ResponseStore(std::size_t budget) : budget_(budget) {}

  bool on() const { return budget_ > 0; }

  /// Null: there is none, or it is somebody else's.
  std::shared_ptr<const StoredResponse> find(const std::string& id, const ResponseOwner& owner);

  /// A response whose request begins to run. Its input takes its room at once; if it is given up, it gives that back.
  /// Null: there is no room.
  std::shared_ptr<StoredResponse> begin(ResponseOwner owner, std::shared_ptr<const StoredResponse> previous,
                                        std::vector<ConversationItem> input);
  /// Stores it. Returns false if there was no room.
  bool finish(const std::shared_ptr<StoredResponse>& response, std::string id, std::string body,
              std::vector<ConversationItem> output);

  /// Returns false if there is none, or it is somebody else's.
  bool remove(const std::string& id, const ResponseOwner& owner);
  /// Removes what belongs to other tenants than these. From now on nothing of others is stored, be it begun already.
  void keep_tenants(std::set<std::string> tenants);

  ResponseStoreFigures figures() const;
  /// Those that can be found, of each owner the least recently used first.
  std::vector<std::shared_ptr<const StoredResponse>> all() const;
  bool holds(const std::string& id) const;

 private:
  struct Tenant {
    StoredResponse::Bytes bytes = std::make_shared<std::atomic<std::size_t>>(0);
    std::list<std::shared_ptr<StoredResponse>> used;  ///< its responses, the most recently used first
  };

  StoredResponse* lookup(const std::string& id, const ResponseOwner& owner) const COPPICE_REQUIRES(mutex_);
  void use(const StoredResponse& response) COPPICE_REQUIRES(mutex_);
  void unlist(StoredResponse& response) COPPICE_REQUIRES(mutex_);
  bool make_room() COPPICE_REQUIRES(mutex_);
  std::size_t bytes() const COPPICE_REQUIRES(mutex_);

  const std::size_t budget_;
  mutable check::Mutex mutex_;
  std::map<std::string, Tenant> tenants_ COPPICE_GUARDED_BY(mutex_);
  std::unordered_map<std::string, StoredResponse*> by_id_ COPPICE_GUARDED_BY(mutex_);
  std::int64_t evictions_ COPPICE_GUARDED_BY(mutex_) = 0;
  /// See keep_tenants(); none: everybody's.
  std::optional<std::set<std::string>> kept_ COPPICE_GUARDED_BY(mutex_);
};

/// From the first turn to this one, which is the last.
std::vector<const StoredResponse*> conversation(const StoredResponse& last);

}  // namespace coppice::server
