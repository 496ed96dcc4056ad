// SimulatedDisk: a disk in memory, what goes wrong with it, and the processes that use one folder of it. All chances
// come from one seed.
//
// Each call of FileSystem is a point where other fibers may run, where its process may be killed, and where the disk
// may fail. Names of files are safe once the disk says so, contents once they were synced: the rest is anything after a
// power loss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "support/dice.h"
#include "tier/disk/fibers.h"
#include "tier/disk/file_system.h"

namespace coppice::test {

/// What a call of a process that was killed ends with.
struct Killed {};

/// How the disk is just now. Chances are of a thousand.
struct Weather {
  int fails = 0;             ///< any call
  int lies = 0;              ///< reads with a flipped bit
  int shorts = 200;          ///< reads and writes of less than was asked for: no fault
  bool dead = false;         ///< all calls fail
  bool fixed = false;        ///< nothing can be changed (EROFS)
  std::uint64_t others = 0;  ///< bytes that others hold of the file system
};

struct SimulatedFile {
  std::uint64_t id = 0;
  bool is_folder = false, is_link = false, is_mine = true;
  bool is_safe = true;  ///< its contents outlive a power loss
  bool sync_failed = false;
  bool was_touched = false;  ///< somebody else, or the weather, changed it
  std::vector<std::byte> bytes;
  std::int64_t used = 0;
  int lock = 0;  ///< the process that has locked it; 0: none
};

class SimulatedDisk {
 public:
  using File = std::shared_ptr<SimulatedFile>;
  static constexpr std::uint64_t kAll = 4 << 20;

  SimulatedDisk(Dice& dice, Fibers& fibers);

  std::map<std::string, File> files;  ///< by path; "" is the root
  Weather weather;
  std::chrono::steady_clock::time_point ticks{std::chrono::hours(1)};
  std::int64_t now = 1'800'000'000;
  std::string failure;                 ///< the first thing that must not be; empty: none
  std::uint64_t calls = 0, trace = 0;  ///< how many; a hash of which, in their order

  Dice& dice() { return dice_; }
  Fibers& fibers() { return fibers_; }
  void must(bool holds, std::string_view what) {
    if (!holds && failure.empty()) failure = what;
  }

  std::vector<std::string> in_folder(std::string_view path) const;  ///< names
  std::uint64_t bytes_in(std::string_view path) const;              ///< of this user's files, as disk_bytes() counts
  std::uint64_t free() const;
  File add(const std::string& path);
  void change_names(const std::function<void(std::map<std::string, File>&)>& change);
  void commit_names();
  /// What wasn't safe is anything. REQUIRES: no process lives.
  void lose_power();

  /// Somebody does what nobody should, to one of the pieces: which, or "".
  std::string meddle();
  void remove_lock();

 private:
  Dice& dice_;
  Fibers& fibers_;
  std::uint64_t last_id_ = 0;
  std::map<std::string, File> safe_files_;
  std::vector<std::function<void(std::map<std::string, File>&)> > unsafe_changes_;
};

/// The disk as one process has it.
class SimulatedFiles final : public tier::FileSystem {
 public:
  /// `process`: not 0.
  SimulatedFiles(SimulatedDisk& disk, int process) : disk_(disk), process_(process) {}

  void kill() { is_killed_ = true; }
  bool is_killed() const { return is_killed_; }
  /// Its lock's file was removed: until it sees that, it may change things.
  void excuse() { is_excused_ = true; }

  std::string name() const override { return "disk"; }
  tier::Result<Status> open_root() override;
  tier::Result<void> hide_root() override;
  tier::Result<Number> lock(const std::string& path) override;
  tier::Result<void> make_folder(const std::string& path) override;
  tier::Result<void> list(const std::string& path, const std::function<void(std::string_view)>& entry) override;
  tier::Result<Status> status(const std::string& path) override;
  tier::Result<Status> status(Number file) override;
  tier::Result<Room> room() override;
  tier::Result<Number> create(const std::string& path) override;
  tier::Result<Number> reopen(const std::string& path) override;
  tier::Result<Number> open(const std::string& path) override;
  void close(Number file) noexcept override;
  tier::Result<std::size_t> write(Number file, std::uint64_t offset, std::span<const std::byte> bytes) override;
  tier::Result<std::size_t> read(Number file, std::uint64_t offset, std::span<std::byte> into) override;
  tier::Result<void> set_length(Number file, std::uint64_t bytes) override;
  tier::Result<void> sync(Number file) override;
  tier::Result<void> touch(Number file) override;
  tier::Result<void> rename(const std::string& from, const std::string& to) override;
  tier::Result<void> remove(const std::string& path) override;
  std::int64_t now() override { return disk_.now; }
  Clock::time_point ticks() override { return disk_.ticks; }

 private:
  using File = SimulatedDisk::File;

  /// Other fibers run; then: 0, or the error that this call fails with. `changes`: it changes what lies on the disk.
  int enter(int kind, bool changes);
  Number add_handle(File file);
  Status status_of(const SimulatedFile& file) const;
  bool holds_lock() const;

  SimulatedDisk& disk_;
  const int process_;
  bool is_killed_ = false, is_excused_ = false;
  std::map<Number, File> handles_;
  Number next_ = 3;
};

}  // namespace coppice::test
