// DiskStore: a Store that keeps pieces as files of a folder (disk_folder.h, piece_path.h). One server uses a folder at
// a time; whoever comes second keeps its store off, says so, and has the folder when the first one ends.
//
// Threads: one keeps the folder (opens it, tidies it up each second), one answers find(), some read, one or more write.
// Those that write and keep are nicer than the others.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "check/mutex.h"
#include "tier/disk/disk_folder.h"
#include "tier/queued_store.h"

namespace coppice::tier {

class DiskStore final : public QueuedStore {
 public:
  struct Threads {
    int readers = 4;
    int writers = 1;
  };
  /// Returns at once; the folder is opened by and by. `say`: a line for the log, any thread. `seal`: closes what is
  /// written, and opens what is read; then buffers need Seal::kBytes more. None: pieces lie there as they are.
  DiskStore(std::unique_ptr<FileSystem> files, const DiskLimits& limits, Threads threads, DiskFolder::Say say,
            std::optional<Seal> seal = std::nullopt);
  ~DiskStore() override;  ///< REQUIRES: no call is running
  DiskStore(const DiskStore&) = delete;
  DiskStore& operator=(const DiskStore&) = delete;

  bool offer(const Name& name, Buffer piece) override;
  void forget(const Which& which) override;
  void observe(StoreObserver& observer, const std::array<std::uint8_t, 16>& model) override;
  bool is_at(StoreKind place) const override { return place == StoreKind::kDisk; }
  Counters counters() const override { return folder_.counters(); }
  void stop(Clock::time_point until) override;

 private:
  void keep();
  void answer(Find find);
  void answer(Load load);
  void answer(Write write, int writer);

  const std::unique_ptr<FileSystem> files_;
  const DiskFolder::Say say_;
  DiskFolder folder_;
  bool tidy_now_ COPPICE_GUARDED_BY(mutex_) = false;
};

}  // namespace coppice::tier
