// CacheFeed: what those see who look into the cache: it asks the engine, and makes one frame for all pages of a
// namespace.
//
// Belongs to the io thread. However many pages are open, the engine is asked at most once a kTick for each namespace,
// and not at all while nothing happens. Who asks the same at the same time shares one answer. JSON of views is made on
// `worker`, which nobody else waits for.
//
// Those who look, the frames that are kept for them and the questions that wait are counted, by key and in all.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "check/thread_role.h"
#include "engine/view.h"
#include "server/base/key_quota.h"
#include "server/jobs/ask.h"
#include "server/jobs/model.h"
#include "server/jobs/work_queue.h"

namespace coppice::server {

class CacheFeed {
 public:
  static constexpr std::chrono::milliseconds kTick{250};
  static constexpr KeyQuota::Limits kLookers{.all = 256, .of_key = 32};
  static constexpr KeyQuota::Limits kFrames{.all = 32, .of_key = 8};
  static constexpr KeyQuota::Limits kQuestions{.all = 32, .of_key = 4};
  static constexpr std::size_t kBytesPerSecond = std::size_t{64} << 20;  ///< of frames, to all pages together

  CacheFeed(boost::asio::io_context& io, WorkQueue& worker) : io_(io), worker_(worker) {}
  CacheFeed(const CacheFeed&) = delete;
  CacheFeed& operator=(const CacheFeed&) = delete;

  /// For as long as somebody looks. `key`: its tenant, here and below. Throws RequestError (429).
  KeyQuota::Permit enter(const std::string& key);

  using View = std::shared_ptr<const engine::View>;
  /// Null: the engine gave no answer, as the server ends or its memory is short. Throws RequestError (429).
  boost::asio::awaitable<View> ask(Model& model, engine::Question question, const std::string& key);

  /// A namespace's frame, shared by its pages; it goes with the last of them.
  struct Frame {
    const engine::Question question;
    const std::string key;  ///< of who looked first, who pays for it
    const KeyQuota::Permit permit;
    std::shared_ptr<const std::string> text;  ///< null: none yet
    std::int64_t version = 0;                 ///< another one whenever something has changed
    std::chrono::steady_clock::time_point made;
    std::int64_t stamp = -1;  ///< of the engine's figures: the same if nothing has happened
    bool making = false;
  };
  using MakeText = std::function<std::string(const engine::View&, const engine::Snapshot&)>;
  /// Throws RequestError (429).
  std::shared_ptr<Frame> frame(engine::Question question, const std::string& key);
  /// Brings a frame up to date, unless it is younger than a tick, somebody else does it just now, or too many ask.
  /// `make` is called on the worker.
  boost::asio::awaitable<void> refresh(std::shared_ptr<Frame> frame, Model& model, const MakeText& make);
  /// Between two frames of so many bytes to one page.
  std::chrono::steady_clock::duration pause(std::size_t bytes) const;

 private:
  /// What a question asks for.
  struct Subject {
    kv::Namespace ns;
    int nodes = 0, depth = 0, head_tokens = 0;
    auto operator<=>(const Subject&) const = default;
  };
  static Subject subject_of(const engine::Question& question);
  /// A question that the engine has. It is dropped with the last of those who wait for its answer.
  struct Asked {
    Asked(boost::asio::io_context& io, KeyQuota::Permit p) : permit(std::move(p)), view(io) {}
    const KeyQuota::Permit permit;
    Ask<engine::View> view;
  };
  std::shared_ptr<Asked> asked(Model& model, const engine::Question& question, const std::string& key);

  check::ThreadRole io_thread_;
  boost::asio::io_context& io_;
  WorkQueue& worker_;
  KeyQuota lookers_{kLookers}, frame_quota_{kFrames}, question_quota_{kQuestions};
  std::map<Subject, std::weak_ptr<Asked>> asked_;
  std::map<Subject, std::weak_ptr<Frame>> frames_;
};

}  // namespace coppice::server
