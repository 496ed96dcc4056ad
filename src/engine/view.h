// View: what somebody who watches the engine is shown: a picture of the tree, and its requests. Plain data, of one
// namespace.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cache_report.h"
#include "kv/namespace.h"
#include "kv/tree_picture.h"

namespace coppice::engine {

enum class RequestStage : std::uint8_t {
  kQueued,
  kFollowing,  ///< in the queue, until another one has computed what both need
  kPrefill,
  kDecode,
  kEnded,
};

struct RequestView {
  std::uint64_t id = 0;
  RequestStage stage = RequestStage::kQueued;
  std::int32_t prompt_tokens = 0;
  std::int32_t cached_tokens = 0;      ///< of these, at its first admission
  std::int32_t loaded_tokens = 0;      ///< of these: from a store outside of the pool
  std::int32_t computed_tokens = 0;    ///< in the pool; of the sample that has most
  std::int32_t completion_tokens = 0;  ///< over all samples
  int samples = 0;
  bool answered = false;                      ///< kEnded: its samples came to their ends
  double seconds = 0;                         ///< since it came; kEnded: since it ended
  double queue_seconds = 0;                   ///< until its first admission, or until now
  double first_token_seconds = 0;             ///< since it came; 0: none yet
  double total_seconds = 0;                   ///< kEnded: until then, since it came
  std::vector<std::uint64_t> stands_on;       ///< PictureNode::serial, for each sample that runs; 0: no node yet
  std::shared_ptr<const CacheReport> report;  ///< of those who were admitted while somebody watched
};

struct View {
  kv::TreePicture tree;
  double now = 0;                     ///< PictureNode::last_used counts from the same moment
  std::vector<RequestView> requests;  ///< who runs and waits, then who ended, the last to end first
  std::int32_t left_out = 0;          ///< at least so many who run or wait are not in it
};

/// Asks for a View.
struct Question {
  kv::Namespace ns;  ///< whose tree and requests are wanted
  kv::PictureLimits limits;
};

}  // namespace coppice::engine
