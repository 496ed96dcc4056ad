#include "tier/disk/disk_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <tuple>
#include <utility>

#include "check/assert.h"
#include "tier/disk/piece_path.h"
#include "tier/disk/piece_transfer.h"
#include "tier/faults.h"

namespace coppice::tier {

namespace {

using Stage = PieceIndex::Stage;

constexpr std::int64_t kStampSeconds = 600;  ///< a file's time of use is as old at most
constexpr int kRemovalsInTurn = 64;
constexpr std::chrono::minutes kFullFor{10};
constexpr int kReadsMayFail = 2;  ///< in a row: one bad place is not a bad disk

bool is_full(int error) {
  return error == ENOSPC || error == EDQUOT;
}

double seconds_since(FileSystem::Clock::time_point begun, FileSystem::Clock::time_point now) {
  return std::chrono::duration<double>(now - begun).count();
}

}  // namespace

DiskFolder::DiskFolder(FileSystem& files, const DiskLimits& limits, Say say)
    : files_(files),
      limits_(limits),
      say_(std::move(say)),
      allowance_(limits.writes_a_day),
      reading_(kReadsMayFail),
      off_because_("the folder isn't open yet"),
      full_at_(std::numeric_limits<std::uint64_t>::max()) {}

std::string DiskFolder::open() {
  {
    const check::Lock lock(mutex_);
    COPPICE_ASSERT(!open_ && under_way_ == 0);
    folder_ = LockedFolder();
  }
  auto folder = lock_folder(files_);
  std::string why = folder ? "" : folder.error();
  PieceIndex index;
  FolderContents contents;
  if (why.empty()) {
    const auto scanned = scan_folder(files_, [&](const Name& name, const FileSystem::Status& status) {
      index.enter(name, disk_bytes(status.bytes), std::min(status.used, files_.now()));
      return !stop_;
    });
    if (scanned) contents = *scanned;
    if (!scanned) why = "can't be read: " + error_text(scanned.error());
  }
  index.sort_by_use();
  const check::Lock lock(mutex_);
  off_because_ = why;
  if (!why.empty()) return why;
  folder_ = std::move(*folder);
  index_ = std::move(index);
  watch(index_);
  n_bad_ = contents.bad;
  bad_bytes_ = contents.bad_bytes;
  open_ = true;
  return "";
}

void DiskFolder::end() {
  const check::Lock lock(mutex_);
  shut("it has ended");
}

// What it holds stays there: nobody is told that it went.
void DiskFolder::shut(const char* why) {
  open_ = false;
  off_because_ = why;
}

bool DiskFolder::is_open() const {
  const check::Lock lock(mutex_);
  return open_;
}

bool DiskFolder::at_rest() const {
  const check::Lock lock(mutex_);
  return !open_ && under_way_ == 0;
}

bool DiskFolder::find(const Name& name) {
  const check::Lock lock(mutex_);
  ++counters_.finds;
  const PieceIndex::Piece* piece = open_ ? index_.find(name) : nullptr;
  const bool held = piece != nullptr &&
                    (piece->stage == Stage::kHeld || (fault(Fault::kFoundTooEarly) && piece->stage < Stage::kHeld));
  if (held) ++counters_.found;
  return held;
}

DiskFolder::Taken DiskFolder::take(const Name& name, std::size_t bytes) {
  const check::Lock lock(mutex_);
  const auto now = files_.ticks();
  largest_ = std::max(largest_, disk_bytes(bytes));
  if (PieceIndex::Piece* const piece = open_ ? index_.find(name) : nullptr) {
    if (piece->stage == Stage::kHeld) index_.use(*piece, files_.now());
    if (piece->stage <= Stage::kHeld) return Taken::kThere;
  } else if (open_ && writing_.allows(now) && !(fault(Fault::kNeverOnAgain) && writing_.off()) &&
             disk_bytes(bytes) <= limits_.bytes && allowance_.spend(disk_bytes(bytes), now)) {
    index_.take(name);
    ++under_way_;
    ++counters_.pending;
    return Taken::kTaken;
  }
  ++counters_.dropped;
  return Taken::kDropped;
}

void DiskFolder::give_up(const Name& name) {
  const check::Lock lock(mutex_);
  index_.erase(name);
  --under_way_;
  --counters_.pending;
  ++counters_.dropped;
}

void DiskFolder::write(const Name& name, Buffer& piece, int writer, std::span<const std::byte> head) {
  const auto begun = files_.ticks();
  std::string aside;
  {
    const check::Lock lock(mutex_);
    aside = fmt::format("new/{}-{}", folder_.lock_id, writer);
  }
  const Room room = make_room(name, disk_bytes(piece.size()), aside);
  if (room == Room::kNone) return give_up(name);
  const Result<void> written = write_file(name, piece, aside, room == Room::kInOldFile);
  std::string line;
  {
    const check::Lock lock(mutex_);
    PieceIndex::Piece& entry = *index_.find(name);
    counters_.write_seconds += seconds_since(begun, files_.ticks());
    --under_way_;
    --counters_.pending;
    if (written && entry.stage == Stage::kWriting) {
      index_.hold(entry, files_.now());
      tell(name, entry, head);
      ++counters_.writes;
      counters_.write_bytes += static_cast<std::int64_t>(piece.size());
      if (writing_.succeed()) line = "takes pieces again";
    } else {
      index_.abandon(entry);
      ++counters_.dropped;
    }
    if (!written) {
      if (is_full(written.error())) {
        full_at_ = index_.bytes() - std::min(index_.bytes(), 2 * entry.bytes);
        full_until_ = files_.ticks() + kFullFor;
      }
      line = failed(writing_, "takes no pieces", written.error());
    }
  }
  say(line);
}

/// What all may take of the disk now.
std::uint64_t DiskFolder::limit(const Result<FileSystem::Room>& room) const {
  std::uint64_t limit = limits_.bytes - std::min(limits_.bytes, bad_bytes_);
  if (files_.ticks() < full_until_) limit = std::min(limit, full_at_);
  if (room && !fault(Fault::kNoReserve)) {
    const auto reserve = static_cast<std::uint64_t>(limits_.free_share * static_cast<double>(room->all));
    const std::uint64_t there = index_.bytes() + room->free;
    limit = std::min(limit, there - std::min(there, reserve));
  }
  return limit;
}

/// The last piece that must go leaves its file to the new one, as `aside`: its room on the disk is written over, which
/// is some three times as fast as giving it back and taking other room (docs/decisions.md, "Pieces are files").
DiskFolder::Room DiskFolder::make_room(const Name& name, std::uint64_t bytes, const std::string& aside) {
  for (;;) {
    const auto room = files_.room();
    Name victim;
    bool is_last = false;
    {
      const check::Lock lock(mutex_);
      PieceIndex::Piece& piece = *index_.find(name);
      if (!open_ || piece.stage != Stage::kTaken) return Room::kNone;
      const std::uint64_t most = limit(room);
      if (fault(Fault::kNoEviction) || index_.bytes() + bytes <= most) {
        index_.begin_write(piece, bytes);
        return Room::kFree;
      }
      PieceIndex::Piece* const oldest = index_.oldest();
      if (bytes > most || (index_.n_to_remove() == 0 && oldest == nullptr)) return Room::kNone;
      if (index_.n_to_remove() == 0) evict(*oldest);
      victim = *index_.begin_removal();
      is_last = index_.bytes() + bytes <= most + index_.find(victim)->bytes;
      if (is_last) index_.begin_write(piece, bytes);  // counts beside the victim's: no other takes its room
    }
    if (!is_last) {
      if (!remove(victim)) return Room::kNone;
      continue;
    }
    const auto moved = files_.rename(path_of(victim), aside);
    if (!moved) {
      remove(victim);
      return Room::kFree;
    }
    const check::Lock lock(mutex_);
    index_.erase(victim);
    return Room::kInOldFile;
  }
}

void DiskFolder::evict(PieceIndex::Piece& piece) {
  index_.doom(piece);
  ++counters_.evicted;
}

Result<void> DiskFolder::write_file(const Name& name, Buffer& piece, const std::string& aside, bool is_there) {
  const std::string& path = fault(Fault::kWrittenInPlace) ? path_of(name) : aside;
  Result<void> written = write_piece(files_, path, piece, is_there && path == aside);
  if (written && !is_cancelled(name)) {
    written = files_.rename(path, path_of(name));
    if (written) return written;
  }
  std::ignore = files_.remove(aside);  // else its next writer does
  return written;
}

bool DiskFolder::is_cancelled(const Name& name) {
  const check::Lock lock(mutex_);
  return index_.find(name)->stage == Stage::kCancelled && !fault(Fault::kForgottenReturns);
}

void DiskFolder::read(const Name& name, Buffer& into) {
  into.set_size(0);
  const auto begun = files_.ticks();
  std::uint64_t bytes = 0;
  bool stamp = false;
  {
    const check::Lock lock(mutex_);
    PieceIndex::Piece* const piece = open_ && reading_.allows(begun) ? index_.find(name) : nullptr;
    if (piece == nullptr || piece->stage != Stage::kHeld) {
      ++counters_.load_misses;
      return;
    }
    index_.use(*piece, files_.now());
    bytes = piece->bytes;
    stamp = piece->used >= piece->stamped + kStampSeconds;
    if (stamp) piece->stamped = piece->used;
    ++under_way_;
  }
  const UnderWay under_way(*this);
  const Result<std::size_t> got = read_piece(files_, path_of(name), bytes, into.memory(), stamp);
  std::string line;
  bool damaged = false;
  {
    const check::Lock lock(mutex_);
    counters_.load_seconds += seconds_since(begun, files_.ticks());
    if (got) {
      into.set_size(*got);
      ++counters_.loads;
      counters_.load_bytes += static_cast<std::int64_t>(*got);
      if (reading_.succeed()) line = "gives pieces again";
    } else {
      ++counters_.load_misses;
      damaged = got.error() == EBADMSG || got.error() == EIO;
      PieceIndex::Piece* const piece = index_.find(name);
      const bool gone = got.error() == ENOENT || got.error() == ELOOP;
      if (gone && piece != nullptr && piece->stage == Stage::kHeld) index_.doom(*piece);
      if (!gone && got.error() != EBADMSG) line = failed(reading_, "gives no pieces", got.error());
    }
  }
  say(line);
  if (damaged) put_aside(name);
}

bool DiskFolder::put_aside(const Name& name) {
  bool keep = false;
  {
    const check::Lock lock(mutex_);
    PieceIndex::Piece* const piece = index_.find(name);
    if (!open_ || piece == nullptr || piece->stage != Stage::kHeld)
      return false;  // its file may be another piece's by now
    ++counters_.damaged;
    if (fault(Fault::kDamageStays)) return true;
    index_.begin_removal(*piece);
    keep = n_bad_ < kMostBad || fault(Fault::kBadWithoutEnd);
    if (keep) {
      ++n_bad_;
      bad_bytes_ += piece->bytes;
    }
    ++under_way_;
  }
  const UnderWay under_way(*this);
  if (keep && files_.rename(path_of(name), "bad/" + to_string(name))) {
    const check::Lock lock(mutex_);
    index_.erase(name);
  } else {
    remove(name);
  }
  return true;
}

/// REQUIRES: it is kRemoving. False: it stays, to be removed.
bool DiskFolder::remove(const Name& name) {
  const auto removed = files_.remove(path_of(name));
  std::string line;
  {
    const check::Lock lock(mutex_);
    if (removed || removed.error() == ENOENT) {
      index_.erase(name);
      return true;
    }
    index_.abandon(*index_.find(name));
    line = failed(writing_, "takes no pieces", removed.error());
  }
  say(line);
  return false;
}

void DiskFolder::forget(const Which& which) {
  const check::Lock lock(mutex_);
  const std::int64_t now = files_.now();
  index_.doom_all([&](const Name& name, const PieceIndex::Piece& piece) {
    return (!which.model || *which.model == name.model) && (!which.space || *which.space == name.space) &&
           (!which.unused_for ||
            (piece.stage == Stage::kHeld && now - std::int64_t{piece.used} >= which.unused_for->count()));
  });
}

bool DiskFolder::tidy() {
  std::uint64_t lock_id = 0;
  {
    const check::Lock lock(mutex_);
    if (!open_) return false;
    lock_id = folder_.lock_id;
    ++under_way_;
  }
  const UnderWay under_way(*this);
  if (!still_locked(files_, lock_id)) {
    {
      const check::Lock lock(mutex_);
      if (open_ && observer_ != nullptr) observer_->emptied(StoreKind::kDisk);
      shut("somebody removed its lock");
    }
    say("is off: somebody removed its lock");
    return false;
  }
  const auto room = files_.room();
  std::string line;
  {
    const check::Lock lock(mutex_);
    line = judge_room(room);
    const std::uint64_t most = limit(room);
    while (index_.oldest() != nullptr && index_.bytes() - index_.bytes_to_remove() > most) evict(*index_.oldest());
    const std::int64_t now = files_.now();
    while (limits_.unused_for && index_.oldest() != nullptr &&
           now - std::int64_t{index_.oldest()->used} >= limits_.unused_for->count())
      evict(*index_.oldest());
  }
  say(line);
  for (int i = 0; i < kRemovalsInTurn; ++i) {
    Name name;
    {
      const check::Lock lock(mutex_);
      const Name* const next = writing_.allows(files_.ticks()) ? index_.begin_removal() : nullptr;
      if (next == nullptr) return false;
      name = *next;
    }
    if (!remove(name)) return false;
  }
  return true;
}

Counters DiskFolder::counters() const {
  const check::Lock lock(mutex_);
  Counters counters = counters_;
  counters.on = open_ && !writing_.off() && !reading_.off();
  if (!counters.on) counters.off_because = off_because_;
  counters.pieces = static_cast<std::int64_t>(index_.n_held());
  counters.bytes = static_cast<std::int64_t>(index_.held_bytes());
  counters.no_room = open_ && no_room_;
  counters.max_bytes = static_cast<std::int64_t>(limits_.bytes);
  return counters;
}

std::string DiskFolder::check() const {
  const check::Lock lock(mutex_);
  return index_.check();
}

/// A line for the log, or none.
std::string DiskFolder::failed(Breaker& breaker, const char* what, int error) {
  ++counters_.io_errors;
  if (!breaker.fail(files_.ticks())) return "";
  ++counters_.switch_offs;
  off_because_ = error_text(error);
  return fmt::format("{}: {}. It is tried again by and by", what, off_because_);
}

/// A line for the log when it has come to be too small, or isn't any more. That the system says so is no news.
std::string DiskFolder::judge_room(const Result<FileSystem::Room>& room) {
  constexpr double kMib = 1 << 20;
  if (!room || files_.ticks() < full_until_) return "";
  const bool none = limit(room) < largest_;
  if (none == std::exchange(no_room_, none)) return "";
  if (!none) return "has room for pieces again";
  if (limits_.bytes < largest_ + bad_bytes_)
    return fmt::format("has no room for pieces: it may take {:.1f} MiB, and one takes {:.1f}",
                       static_cast<double>(limits_.bytes) / kMib, static_cast<double>(largest_) / kMib);
  return fmt::format(
      "has no room for pieces: of its file system {:.0f} MiB are free, and {:.0f} % stay so, which is {:.0f}",
      static_cast<double>(room->free) / kMib, 100 * limits_.free_share,
      limits_.free_share * static_cast<double>(room->all) / kMib);
}

void DiskFolder::say(const std::string& line) const {
  if (!line.empty()) say_(files_.name() + " " + line);
}

}  // namespace coppice::tier
