#include "tier/disk/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/dice.h"
#include "tier/disk/disk_folder.h"
#include "tier/disk/fibers.h"
#include "tier/disk/piece_path.h"
#include "tier/disk/simulated_disk.h"
#include "tier/piece.h"

namespace coppice::test {

namespace {

using tier::DiskFolder;
using tier::Name;

constexpr int kProcesses = 2, kWriters = 2, kReaders = 2;
constexpr std::size_t kMostPayload = 9000;
constexpr tier::DiskLimits kLimits{.bytes = 400'000, .free_share = 0.1};

/// What is kept, and what it must read as.
struct Known {
  Name name;
  std::vector<std::byte> bytes;
};

std::vector<Known> make_pieces(Dice& dice) {
  std::vector<Known> pieces(64);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    Name& name = pieces[i].name;
    name.model.fill(static_cast<std::uint8_t>(i % 2));
    name.space.fill(static_cast<std::uint8_t>(i % 3));
    for (auto& byte : name.piece) byte = static_cast<std::uint8_t>(dice.below(256));
    std::vector<std::byte> text(16, static_cast<std::byte>(i));
    const auto payload_bytes = static_cast<std::size_t>(dice.between(1, kMostPayload));
    pieces[i].bytes.resize(tier::piece_size(text.size(), 0, payload_bytes));
    const auto payload = tier::begin_piece(pieces[i].bytes, name, text, "", payload_bytes);
    std::ranges::generate(payload, [&] { return static_cast<std::byte>(dice.below(256)); });
    tier::seal_piece(pieces[i].bytes);
  }
  return pieces;
}

struct Process {
  Process(SimulatedDisk& disk, int number) : files(disk, number), folder(files, kLimits, [](const std::string&) {}) {}

  SimulatedFiles files;
  DiskFolder folder;
  std::set<std::size_t> put_aside, forgotten;  ///< and not taken since: must be a miss
};

class World {
 public:
  explicit World(std::uint64_t seed) : dice_(seed), disk_(dice_, fibers_), pieces_(make_pieces(dice_)) {}

  SimulationResult run() {
    for (int i = 0; i < kProcesses; ++i) processes_.push_back(std::make_unique<Process>(disk_, i + 1));
    const auto epochs = dice_.between(2, 5);
    for (std::int64_t epoch = 0; epoch < epochs && fine(); ++epoch) {
      const bool lock_lost = play();
      if (!fine()) break;
      if (lock_lost) restart_all();
      if (fine()) heal();
    }
    for (auto& process : processes_) count(*process);
    result_.failure = disk_.failure;
    result_.calls = static_cast<std::int64_t>(disk_.calls);
    result_.trace = disk_.trace;
    return result_;
  }

 private:
  bool fine() const { return disk_.failure.empty(); }

  // What the fibers do, until the epoch ends or their process is killed.

  void as_fiber(int i, void (World::*act)(Process&, int), int number) {
    ++alive_[static_cast<std::size_t>(i)];
    fibers_.start([this, i, act, number] {
      Process& process = *processes_[static_cast<std::size_t>(i)];
      try {
        while (!quiet_ && fine() && !process.files.is_killed()) {
          (this->*act)(process, number);
          fibers_.give_way();
        }
      } catch (const Killed&) {
      }
      --alive_[static_cast<std::size_t>(i)];
    });
  }

  void start(int i) {
    for (int k = 0; k < kReaders; ++k) as_fiber(i, &World::read, k);
    for (int k = 0; k < kWriters; ++k) as_fiber(i, &World::write, k);
    as_fiber(i, &World::keep, 0);
    as_fiber(i, &World::forget, 0);
  }

  std::size_t any() { return static_cast<std::size_t>(dice_.below(static_cast<std::int64_t>(pieces_.size()))); }

  void read(Process& process, int) { read_piece(process, any()); }

  bool read_piece(Process& process, std::size_t i) {
    const Known& known = pieces_[i];
    if (process.folder.find(known.name))
      disk_.must(disk_.files.contains(path_of(known.name)) || meddled_ || lock_lost_, "found, and has no file");
    const bool was_aside = process.put_aside.contains(i), was_forgotten = process.forgotten.contains(i);
    tier::Buffer into = buffers_.take();
    process.folder.read(known.name, into);
    if (into.size() == 0) {
      ++result_.misses;
      return false;
    }
    disk_.must(!was_aside || !process.put_aside.contains(i), "damaged, put aside, and read again");
    disk_.must(!was_forgotten || !process.forgotten.contains(i), "forgotten, and read again");
    const auto piece = tier::open_piece(into.bytes(), &known.name);
    if (!piece) {
      if (process.folder.put_aside(known.name)) process.put_aside.insert(i);
      return false;
    }
    ++result_.hits;
    disk_.must(std::ranges::equal(into.bytes(), known.bytes), "a wrong byte");
    return true;
  }

  void write(Process& process, int number) {
    const std::size_t i = any();
    if (take(process, i) == DiskFolder::Taken::kTaken) write_taken(process, i, number);
  }

  DiskFolder::Taken take(Process& process, std::size_t i) {
    const auto taken = process.folder.take(pieces_[i].name, pieces_[i].bytes.size());
    if (taken != DiskFolder::Taken::kTaken) return taken;
    process.put_aside.erase(i);
    process.forgotten.erase(i);
    return taken;
  }

  void write_taken(Process& process, std::size_t i, int number) {
    fibers_.give_way();
    if (process.files.is_killed()) throw Killed();
    tier::Buffer piece = buffers_.take();
    std::ranges::copy(pieces_[i].bytes, piece.memory().begin());
    piece.set_size(pieces_[i].bytes.size());
    process.folder.write(pieces_[i].name, piece, number);
    check_bytes();
  }

  void keep(Process& process, int) {
    if (process.folder.at_rest()) {
      open(process);
    } else {
      process.folder.tidy();
    }
  }

  bool open(Process& process) {
    if (!process.folder.open().empty()) return false;
    ++result_.takeovers;
    process.put_aside.clear();
    process.forgotten.clear();
    disk_.must(lock_lost_ || disk_.in_folder("new").empty(), "what was left in the middle of a write is still there");
    for (const std::size_t i : must_be_there_) {
      const auto file = disk_.files.find(path_of(pieces_[i].name));
      const bool touched = file == disk_.files.end() || file->second->was_touched;
      disk_.must(touched ? meddled_ || file == disk_.files.end() == false : process.folder.find(pieces_[i].name),
                 "what was held is gone after a restart");
    }
    must_be_there_.clear();
    return true;
  }

  void forget(Process& process, int) {
    if (dice_.below(60) != 0) {
      fibers_.give_way();
      if (process.files.is_killed()) throw Killed();
      return;
    }
    tier::Which which;
    if (dice_.chance(70)) which.model.emplace().fill(static_cast<std::uint8_t>(dice_.below(2)));
    if (dice_.chance(70)) which.space.emplace().fill(static_cast<std::uint8_t>(dice_.below(3)));
    process.folder.forget(which);
    ++result_.forgotten;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const Name& name = pieces_[i].name;
      if ((!which.model || *which.model == name.model) && (!which.space || *which.space == name.space))
        process.forgotten.insert(i);
    }
  }

  // What happens to them.

  /// Half a thousand to some thousand steps of all fibers. True: somebody removed the lock's file.
  bool play() {
    quiet_ = meddled_ = lock_lost_ = false;
    for (int i = 0; i < kProcesses; ++i) start(i);
    const auto steps = dice_.between(2000, 12000);
    const bool may_meddle = dice_.chance(30), may_lose_lock = dice_.chance(10);
    for (std::int64_t step = 0; step < steps && fine(); ++step) {
      fibers_.step(dice_);
      if (dice_.below(300) == 0) change_weather();
      if (dice_.below(3000) == 0) kill(static_cast<int>(dice_.below(kProcesses)));
      if (dice_.below(12000) == 0) lose_power();
      if (may_meddle && dice_.below(50) == 0) {
        meddled_ = true;
        if (!disk_.meddle().empty()) ++result_.meddlings;
      }
      if (may_lose_lock && !lock_lost_ && dice_.below(1000) == 0) {
        lock_lost_ = true;
        ++result_.lost_locks;
        disk_.remove_lock();
        for (auto& process : processes_) process->files.excuse();
      }
      if (dice_.below(1000) == 0) disk_.now += dice_.between(-86400, 86400);
    }
    end_calls();
    return lock_lost_;
  }

  /// Whatever is under way ends, whatever the weather.
  void end_calls() {
    quiet_ = true;
    int steps = 0;
    while (fibers_.step(dice_)) {
      if (++steps == 200'000) disk_.must(false, "a call doesn't end");
      if (steps > 200'000) disk_.weather = Weather();
    }
    for (auto& process : processes_) disk_.must(process->folder.counters().pending == 0, "a write is pending for ever");
  }

  void change_weather() {
    disk_.weather = Weather();
    switch (dice_.below(8)) {
      case 0:
        disk_.weather.fails = static_cast<int>(dice_.between(1, 60));
        break;
      case 1:
        disk_.weather.lies = static_cast<int>(dice_.between(1, 200));
        break;
      case 2:
        disk_.weather.dead = true;
        break;
      case 3:
        disk_.weather.fixed = true;
        break;
      case 4:
        disk_.weather.others = SimulatedDisk::kAll - static_cast<std::uint64_t>(dice_.between(0, 700'000));
        break;
      default:
        break;
    }
  }

  void finish_fibers_of(int i) {
    while (alive_[static_cast<std::size_t>(i)] > 0) fibers_.step(dice_);
  }

  /// kill -9, and a new process in its place.
  void kill(int i, bool starts = true) {
    Process& process = *processes_[static_cast<std::size_t>(i)];
    if (process.folder.is_open() && !lock_lost_) {
      must_be_there_.clear();
      for (std::size_t k = 0; k < pieces_.size(); ++k) {
        if (process.folder.find(pieces_[k].name)) must_be_there_.insert(k);
      }
    }
    ++result_.kills;
    process.files.kill();
    finish_fibers_of(i);
    count(process);
    processes_[static_cast<std::size_t>(i)] = std::make_unique<Process>(disk_, i + 1);
    for (const auto& [path, file] : disk_.files) {
      if (!path.starts_with("kv/") || file->is_folder || file->was_touched) continue;
      disk_.must(is_whole(path, *file),
                 fmt::format("a torn file has a piece's name: {}, {} bytes", path, file->bytes.size()));
    }
    if (starts) start(i);
  }

  bool is_whole(const std::string& path, const SimulatedFile& file) const {
    return std::ranges::any_of(pieces_, [&](const Known& known) {
      return path_of(known.name) == path && std::ranges::equal(known.bytes, file.bytes);
    });
  }

  void lose_power() {
    ++result_.power_losses;
    for (int i = 0; i < kProcesses; ++i) kill(i, false);
    must_be_there_.clear();
    disk_.lose_power();
    for (int i = 0; i < kProcesses; ++i) start(i);
  }

  /// The folder is as somebody left it who removed the lock's file: two servers may have used it.
  void restart_all() {
    disk_.weather = Weather();
    for (int i = 0; i < kProcesses; ++i) {
      DiskFolder& folder = processes_[static_cast<std::size_t>(i)]->folder;
      folder.tidy();
      const auto lock = disk_.files.find("lock");
      disk_.must(!folder.is_open() || (lock != disk_.files.end() && lock->second->lock == i + 1),
                 "a lost lock is not seen");
    }
    for (int i = 0; i < kProcesses; ++i) kill(i, false);
    must_be_there_.clear();
    lock_lost_ = false;
  }

  // What must be true when all is well again.

  void heal() {
    disk_.weather = Weather();
    disk_.ticks += std::chrono::minutes(11);
    Process* process = nullptr;
    for (auto& one : processes_) {
      if (one->folder.at_rest()) open(*one);
      if (one->folder.is_open()) {
        disk_.must(process == nullptr, "two servers use one folder");
        process = one.get();
      }
    }
    if (process == nullptr) return disk_.must(false, "nobody gets the folder, though nothing is amiss");
    tidy(*process);
    disk_.must(process->folder.is_open(), "the folder is off, though nothing is amiss");
    check_files(*process);
    for (std::size_t i = 0; i < pieces_.size() && fine(); ++i) {
      if (!process->folder.find(pieces_[i].name)) continue;
      const auto file = disk_.files.find(path_of(pieces_[i].name));
      const bool touched = file == disk_.files.end() || file->second->was_touched;
      const bool hit = read_piece(*process, i);
      disk_.must(hit || touched, "found, whole, and not read");
    }
    tidy(*process);
    write_anew(*process);
    tidy(*process);
    check_files(*process);
    crowd(*process);
  }

  void tidy(Process& process) {
    for (int i = 0; i < 50; ++i) process.folder.tidy();
  }

  /// Everything that is offered is held and read, as far as there is room.
  void write_anew(Process& process) {
    for (int n = 0; n < 10 && fine(); ++n) {
      const std::size_t i = any();
      const auto taken = take(process, i);
      disk_.must(taken != DiskFolder::Taken::kDropped, "offered, and not taken, though nothing is amiss");
      if (taken == DiskFolder::Taken::kTaken) {
        write_taken(process, i, 0);
        disk_.must(read_piece(process, i), "written, and not read, though nothing is amiss");
      }
    }
    const tier::Counters counters = process.folder.counters();
    disk_.must(counters.on, "off, though nothing is amiss: " + counters.off_because);
  }

  /// Others take the disk: what stays free of it is not ours.
  void crowd(Process& process) {
    disk_.weather.others = SimulatedDisk::kAll - 300'000;
    tidy(process);
    const std::uint64_t reserve = SimulatedDisk::kAll / 10;
    disk_.must(disk_.free() >= reserve || process.folder.counters().pieces == 0, "the file system's reserve is used");
    disk_.weather = Weather();
  }

  /// Files and index say the same.
  void check_files(Process& process) {
    check_bytes();
    std::int64_t n_files = 0;
    for (const auto& [path, file] : disk_.files) {
      if (path.starts_with("kv/") && !file->is_folder && !file->is_link && file->is_mine) ++n_files;
    }
    disk_.must(n_files <= process.folder.counters().pieces, "a file that no index knows");
    disk_.must(disk_.in_folder("bad").size() <= tier::kMostBad, "damaged files without end");
    disk_.must(disk_.in_folder("new").size() <= std::size_t{kWriters}, "unfinished files without end");
    const std::string wrong = process.folder.check();
    disk_.must(wrong.empty(), wrong);
  }

  void check_bytes() {
    if (lock_lost_) return;
    const std::uint64_t bytes = disk_.bytes_in("kv") + disk_.bytes_in("bad") + disk_.bytes_in("new");
    disk_.must(bytes <= kLimits.bytes + kProcesses * kWriters * tier::disk_bytes(buffers_.size()),
               "more bytes than there may be");
  }

  void count(const Process& process) {
    const tier::Counters counters = process.folder.counters();
    result_.writes += counters.writes;
    result_.dropped += counters.dropped;
    result_.evicted += counters.evicted;
    result_.damaged += counters.damaged;
    result_.switch_offs += counters.switch_offs;
  }

  Dice dice_;
  Fibers fibers_;
  SimulatedDisk disk_;
  tier::Buffers buffers_{16, kMostPayload + 512};
  const std::vector<Known> pieces_;
  std::vector<std::unique_ptr<Process> > processes_;
  int alive_[kProcesses] = {};
  bool quiet_ = false, meddled_ = false, lock_lost_ = false;
  std::set<std::size_t> must_be_there_;  ///< when the next process opens the folder
  SimulationResult result_;
};

}  // namespace

void SimulationResult::add(const SimulationResult& other) {
  for (const auto member : {&SimulationResult::calls, &SimulationResult::hits, &SimulationResult::misses,
                            &SimulationResult::writes, &SimulationResult::dropped, &SimulationResult::evicted,
                            &SimulationResult::damaged, &SimulationResult::forgotten, &SimulationResult::switch_offs,
                            &SimulationResult::kills, &SimulationResult::power_losses, &SimulationResult::takeovers,
                            &SimulationResult::lost_locks, &SimulationResult::meddlings})
    this->*member += other.*member;
}

SimulationResult simulate(std::uint64_t seed) {
  return World(seed).run();
}

}  // namespace coppice::test
