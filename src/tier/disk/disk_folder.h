// DiskFolder: pieces as files of one folder: what is written, read, found, and what goes when. Its threads are
// disk_store.h's.
//
// Thread-safe. open(), write(), read(), put_aside() and tidy() wait for the disk, and nobody waits for them: the lock
// is free meanwhile.
//
// 1. Only the process that has locked the folder changes it.
// 2. A piece is found only once its file is whole, safe (sync), and has its name.
// 3. What the index counts is on the disk, or less: a file's bytes count from before it is written until it is removed.
// 4. When a write begins, there is room for it within all limits: what was used least recently has been removed.
// 5. What is damaged is read once.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "check/mutex.h"
#include "tier/breaker.h"
#include "tier/disk/allowance.h"
#include "tier/disk/file_system.h"
#include "tier/disk/locked_folder.h"
#include "tier/disk/piece_index.h"
#include "tier/store.h"
#include "tier/store_observer.h"

namespace coppice::tier {

struct DiskLimits {
  std::uint64_t bytes = 0;                         ///< of the disk, that all files may take
  double free_share = 0.1;                         ///< of the file system, that stays free
  std::optional<std::chrono::seconds> unused_for;  ///< pieces that were not used for so long go
  std::uint64_t writes_a_day = 0;                  ///< bytes; 0: no limit
};

class DiskFolder {
 public:
  /// One line for the log, a sentence about the folder; called under no lock.
  using Say = std::function<void(const std::string&)>;
  /// `files` outlives it.
  DiskFolder(FileSystem& files, const DiskLimits& limits, Say say);

  /// Locks the folder and finds what it holds. "": it is on. Else why not, as lock_folder() says it. REQUIRES: it is
  /// off.
  std::string open();
  /// open() gives up, and fails.
  void stop_opening() { stop_ = true; }
  /// It is off from now on: nothing is found or taken. The lock is kept.
  void end();
  bool is_open() const;
  /// Neither open, nor is anything under way: open() may be called.
  bool at_rest() const;

  bool find(const Name& name);

  enum class Taken : std::uint8_t {
    kDropped,
    kThere,  ///< it is held, or will be
    kTaken,  ///< write() or give_up() must follow
  };
  /// Whether a piece of so many bytes is to be written.
  Taken take(const Name& name, std::size_t bytes);
  /// What is behind piece.bytes() may be written over. `writer`: each thread's own small number. head: what it begins
  /// with before it is sealed, for an observer (observes()).
  void write(const Name& name, Buffer& piece, int writer, std::span<const std::byte> head = {});
  void give_up(const Name& name);

  /// Reads into all of its memory; size() == 0: a miss.
  void read(const Name& name, Buffer& into);
  /// It was read, and doesn't open. False: it isn't held any more, and is no damage.
  bool put_aside(const Name& name);

  /// Store::observe(), with the model's name outside.
  void observe(StoreObserver& observer, const std::array<std::uint8_t, 16>& model);
  bool observes(const Name& name) const;
  /// Makes the first bytes of a sealed piece what they were, by its last Seal::kBytes. False: it can't.
  using Unseal = std::function<bool(const Name& name, std::span<std::byte> head, std::span<const std::byte> end)>;
  /// Tells of some of what was held before it was observed. `unseal`: empty, if nothing is sealed. True: there is more
  /// to do at once.
  bool tell_some(const Unseal& unseal);

  /// Found no more when it returns.
  void forget(const Which& which);
  /// Some of what is due: removes what is to go, looks at the lock and at the file system's room. True: there is more
  /// to do at once.
  bool tidy();

  Counters counters() const;
  /// Recomputes what is counted: "" or what is wrong. For tests.
  std::string check() const;

 private:
  /// Keeps open() away while a call is under way.
  struct UnderWay {
    explicit UnderWay(DiskFolder& f) : folder(f) {}
    ~UnderWay() { end(); }
    void end() const {  // the compiler looks at no locks in destructors
      const check::Lock lock(folder.mutex_);
      --folder.under_way_;
    }
    DiskFolder& folder;
  };
  /// For a piece that is to be written: its bytes count now, unless there is none, or nobody wants it any more.
  enum class Room : std::uint8_t { kNone, kFree, kInOldFile };

  std::uint64_t limit(const Result<FileSystem::Room>& room) const COPPICE_REQUIRES(mutex_);
  Room make_room(const Name& name, std::uint64_t bytes, const std::string& aside);
  Result<void> write_file(const Name& name, Buffer& piece, const std::string& aside, bool is_there);
  bool remove(const Name& name);
  bool is_cancelled(const Name& name);
  void evict(PieceIndex::Piece& piece) COPPICE_REQUIRES(mutex_);
  void watch(PieceIndex& index) COPPICE_REQUIRES(mutex_);
  void tell(const Name& name, PieceIndex::Piece& piece, std::span<const std::byte> head) COPPICE_REQUIRES(mutex_);
  std::optional<Name> next_untold() COPPICE_REQUIRES(mutex_);
  std::string failed(Breaker& breaker, const char* what, int error) COPPICE_REQUIRES(mutex_);
  std::string judge_room(const Result<FileSystem::Room>& room) COPPICE_REQUIRES(mutex_);
  void say(const std::string& line) const;
  void shut(const char* why) COPPICE_REQUIRES(mutex_);

  FileSystem& files_;
  const DiskLimits limits_;
  const Say say_;

  std::atomic<bool> stop_ = false;

  mutable check::Mutex mutex_;
  bool open_ COPPICE_GUARDED_BY(mutex_) = false;
  int under_way_ COPPICE_GUARDED_BY(mutex_) = 0;  ///< calls, and pieces that were taken
  LockedFolder folder_ COPPICE_GUARDED_BY(mutex_);
  PieceIndex index_ COPPICE_GUARDED_BY(mutex_);
  StoreObserver* observer_ COPPICE_GUARDED_BY(mutex_) = nullptr;
  std::array<std::uint8_t, 16> observed_ COPPICE_GUARDED_BY(mutex_){};  ///< of which model
  std::vector<Name> untold_ COPPICE_GUARDED_BY(mutex_);                 ///< the last is next
  Allowance allowance_ COPPICE_GUARDED_BY(mutex_);
  Breaker writing_ COPPICE_GUARDED_BY(mutex_);
  Breaker reading_ COPPICE_GUARDED_BY(mutex_);
  std::string off_because_ COPPICE_GUARDED_BY(mutex_);
  std::uint64_t full_at_ COPPICE_GUARDED_BY(mutex_);  ///< bytes at which the system last said that there is no room
  FileSystem::Clock::time_point full_until_ COPPICE_GUARDED_BY(mutex_);
  std::uint64_t largest_ COPPICE_GUARDED_BY(mutex_) = kBufferAlignment;  ///< bytes of the disk that a piece has wanted
  bool no_room_ COPPICE_GUARDED_BY(mutex_) = false;                      ///< there was none for such a one
  std::size_t n_bad_ COPPICE_GUARDED_BY(mutex_) = 0;
  std::uint64_t bad_bytes_ COPPICE_GUARDED_BY(mutex_) = 0;
  Counters counters_ COPPICE_GUARDED_BY(mutex_);
};

}  // namespace coppice::tier
