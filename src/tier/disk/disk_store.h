// DiskStore: a Store that keeps pieces as files of a folder (disk_folder.h, piece_path.h). One server uses a folder at a time; whoever comes
// second keeps its store off, says so, and has the folder when the first one ends.
//
// Threads: one keeps the folder (opens it, tidies it up each second), one answers find(), some read, one or more write. Those that write and keep are
// nicer than the others.
#pragma once

#include <cstddef>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "check/mutex.h"
#include "tier/disk/disk_folder.h"
#include "tier/seal.h"
#include "tier/store.h"

namespace coppice::tier {

class DiskStore final : public Store {
 public:
  struct Threads {
    int readers = 4;
    int writers = 1;
  };
  /// Returns at once; the folder is opened by and by. `say`: a line for the log, any thread. `seal`: closes what is written, and opens what is read;
  /// then buffers need Seal::kBytes more. None: pieces lie there as they are.
  DiskStore(std::unique_ptr<FileSystem> files, const DiskLimits& limits, Threads threads, DiskFolder::Say say,
            std::optional<Seal> seal = std::nullopt);
  ~DiskStore() override;  ///< REQUIRES: no call is running
  DiskStore(const DiskStore&) = delete;
  DiskStore& operator=(const DiskStore&) = delete;

  void find(std::vector<Name> names, Found done) override;
  void load(const Name& name, Buffer into, Loaded done) override;
  bool offer(const Name& name, Buffer piece) override;
  void forget(const Which& which) override;
  Counters counters() const override { return folder_.counters(); }
  void stop(Clock::time_point until) override;

 private:
  /// As the folder has it.
  Name outside(const Name& name) const { return seal_ ? seal_->outside(name) : name; }

  struct Find {
    std::vector<Name> names;
    Found done;
  };
  struct Load {
    Name name;  ///< outside()
    Buffer into;
    Loaded done;
  };
  struct Write {
    Name name;  ///< outside()
    Buffer piece;
  };
  /// What waits for threads of one kind.
  template <class T>
  struct Queue {
    check::Condition changed;
    std::deque<T> waiting;
  };

  void keep();
  bool ends();
  void answer(Find find);
  void answer(Load load);
  void answer(Write write, int writer);
  template <class T, class Work>
  void work(Queue<T> DiskStore::* queue_of, const Work& answer);

  const std::unique_ptr<FileSystem> files_;
  const DiskFolder::Say say_;
  const std::optional<Seal> seal_;
  DiskFolder folder_;

  check::Mutex mutex_;
  Queue<Find> finds_ COPPICE_GUARDED_BY(mutex_);
  Queue<Load> loads_ COPPICE_GUARDED_BY(mutex_);
  Queue<Write> writes_ COPPICE_GUARDED_BY(mutex_);
  check::Condition keeper_;
  bool tidy_now_ COPPICE_GUARDED_BY(mutex_) = false;
  std::optional<Clock::time_point> ends_
      COPPICE_GUARDED_BY(mutex_);  ///< stop() was called: it gives nothing, and writes until then
  std::vector<std::thread> threads_;
};

}  // namespace coppice::tier
