#include "tier/disk/simulated_disk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "tier/disk/piece_path.h"

namespace coppice::test {

using tier::Result;

namespace {

constexpr std::size_t kPage = 4096;

void flip_bit(std::span<std::byte> bytes, Dice& dice) {
  if (bytes.empty()) return;
  auto& byte = bytes[static_cast<std::size_t>(dice.below(static_cast<std::int64_t>(bytes.size())))];
  byte ^= std::byte{1} << static_cast<int>(dice.below(8));
}

/// Each page of it is there, zeros, or something else.
void mangle(std::vector<std::byte>& bytes, Dice& dice) {
  for (std::size_t at = 0; at < bytes.size(); at += kPage) {
    const auto page = std::span(bytes).subspan(at, std::min(kPage, bytes.size() - at));
    const auto fate = dice.below(3);
    if (fate == 1) std::ranges::fill(page, std::byte{});
    if (fate == 2) std::ranges::generate(page, [&] { return static_cast<std::byte>(dice.below(256)); });
  }
}

}  // namespace

SimulatedDisk::SimulatedDisk(Dice& dice, Fibers& fibers) : dice_(dice), fibers_(fibers) {
  add("")->is_folder = true;
  commit_names();
}

SimulatedDisk::File SimulatedDisk::add(const std::string& path) {
  auto file = std::make_shared<SimulatedFile>();
  file->id = ++last_id_;
  file->used = now;
  change_names([path, file](auto& names) { names[path] = file; });
  return file;
}

std::vector<std::string> SimulatedDisk::in_folder(std::string_view path) const {
  std::vector<std::string> names;
  const std::string before = path.empty() ? "" : std::string(path) + "/";
  for (auto at = files.lower_bound(before); at != files.end() && at->first.starts_with(before); ++at) {
    const std::string_view name = std::string_view(at->first).substr(before.size());
    if (!name.empty() && !name.contains('/')) names.emplace_back(name);
  }
  return names;
}

std::uint64_t SimulatedDisk::bytes_in(std::string_view path) const {
  std::uint64_t sum = 0;
  const std::string before = std::string(path) + "/";
  for (auto at = files.lower_bound(before); at != files.end() && at->first.starts_with(before); ++at) {
    const SimulatedFile& file = *at->second;
    if (!file.is_folder && !file.is_link && file.is_mine) sum += tier::disk_bytes(file.bytes.size());
  }
  return sum;
}

std::uint64_t SimulatedDisk::free() const {
  const std::uint64_t taken = weather.others + bytes_in("kv") + bytes_in("bad") + bytes_in("new");
  return kAll - std::min(kAll, taken);
}

void SimulatedDisk::change_names(const std::function<void(std::map<std::string, File>&)>& change) {
  change(files);
  unsafe_changes_.push_back(change);
}

void SimulatedDisk::commit_names() {
  safe_files_ = files;
  unsafe_changes_.clear();
}

void SimulatedDisk::lose_power() {
  const auto before = std::exchange(files, safe_files_);
  const auto n = dice_.below(static_cast<std::int64_t>(unsafe_changes_.size()) + 1);
  for (std::int64_t i = 0; i < n; ++i) unsafe_changes_[static_cast<std::size_t>(i)](files);
  for (auto& [path, file] : files) {
    file->lock = 0;
    const auto was = before.find(path);
    if (was == before.end() || was->second != file) file->was_touched = true;  // written over under its next name
    if (file->is_safe || file->is_folder) continue;
    file->bytes.resize(static_cast<std::size_t>(dice_.below(static_cast<std::int64_t>(file->bytes.size()) + 1)));
    mangle(file->bytes, dice_);
    file->is_safe = file->was_touched = true;
  }
  commit_names();
}

std::string SimulatedDisk::meddle() {
  std::vector<std::string> pieces;
  for (const auto& [path, file] : files) {
    if (path.starts_with("kv/") && !file->is_folder) pieces.push_back(path);
  }
  if (pieces.empty()) return "";
  const std::string path = dice_.one_of(pieces);
  File& file = files[path];
  file->was_touched = true;
  switch (dice_.below(7)) {
    case 0:
      flip_bit(file->bytes, dice_);
      break;
    case 1:
      mangle(file->bytes, dice_);
      break;
    case 2:
      file->bytes.resize(file->bytes.size() / 2);
      break;
    case 3: {  // a write that went astray
      File& other = files[dice_.one_of(pieces)];
      other->was_touched = true;
      std::swap(file->bytes, other->bytes);
      break;
    }
    case 4:
      change_names([path](auto& names) { names.erase(path); });
      break;
    case 5: {  // another user's, or a link, in its place
      const auto bytes = file->bytes;
      const File stranger = add(path);
      stranger->bytes = bytes;
      stranger->was_touched = true;
      (dice_.chance(50) ? stranger->is_link : stranger->is_mine) ^= true;
      break;
    }
    default: {
      const File stranger = add("kv/0/stranger" + std::to_string(dice_.below(3)));
      stranger->is_link = stranger->was_touched = true;
    }
  }
  return path;
}

void SimulatedDisk::remove_lock() {
  change_names([](auto& names) { names.erase("lock"); });
}

int SimulatedFiles::enter(int kind, bool changes) {
  // Opening a folder takes many of some calls: others don't run at each of these.
  const bool is_one_of_many = kind >= 3 && kind <= 5;
  if (!is_one_of_many || disk_.dice().chance(30)) disk_.fibers().give_way();
  ++disk_.calls;
  disk_.trace = (disk_.trace ^ static_cast<std::uint64_t>(kind * 8 + process_)) * 0x100000001B3;
  if (is_killed_) throw Killed();
  disk_.ticks += std::chrono::milliseconds(disk_.dice().below(20));
  if (disk_.dice().below(50) == 0) ++disk_.now;
  if (disk_.dice().below(500) == 0) disk_.commit_names();
  if (changes) disk_.must(holds_lock() || is_excused_, "a process without the lock changes the folder");
  const Weather& weather = disk_.weather;
  if (weather.dead) return EIO;
  if (weather.fixed && changes) return EROFS;
  if (disk_.dice().below(1000) >= weather.fails) return 0;
  static constexpr int kErrors[] = {EIO, EIO, EACCES, EMFILE, ENOMEM};
  return kErrors[disk_.dice().below(std::size(kErrors))];
}

bool SimulatedFiles::holds_lock() const {
  return std::ranges::any_of(handles_, [&](const auto& handle) { return handle.second->lock == process_; });
}

SimulatedFiles::Number SimulatedFiles::add_handle(File file) {
  handles_[next_] = std::move(file);
  return next_++;
}

SimulatedFiles::Status SimulatedFiles::status_of(const SimulatedFile& file) const {
  return {.id = file.id,
          .is_file = !file.is_folder && !file.is_link,
          .is_folder = file.is_folder,
          .is_mine = file.is_mine,
          .bytes = file.bytes.size(),
          .used = file.used};
}

Result<SimulatedFiles::Status> SimulatedFiles::open_root() {
  if (const int error = enter(1, false)) return std::unexpected(error);
  return status_of(*disk_.files.at(""));
}

Result<void> SimulatedFiles::hide_root() {
  return {};
}

Result<SimulatedFiles::Number> SimulatedFiles::lock(const std::string& path) {
  if (const int error = enter(2, false)) return std::unexpected(error);
  const auto found = disk_.files.find(path);
  const File file = found == disk_.files.end() ? disk_.add(path) : found->second;
  if (file->lock != 0) return std::unexpected(EWOULDBLOCK);
  file->lock = process_;
  is_excused_ = false;
  return add_handle(file);
}

Result<void> SimulatedFiles::make_folder(const std::string& path) {
  if (const int error = enter(3, true)) return std::unexpected(error);
  if (disk_.files.contains(path)) return std::unexpected(EEXIST);
  disk_.add(path)->is_folder = true;
  return {};
}

Result<void> SimulatedFiles::list(const std::string& path, const std::function<void(std::string_view)>& entry) {
  const int error = enter(4, false);
  std::vector<std::string> names = disk_.in_folder(path);
  std::mt19937 order(static_cast<unsigned>(disk_.dice().below(1000)));
  std::ranges::shuffle(names, order);
  if (error != 0) names.resize(names.size() / 2);
  for (const std::string& name : names) entry(name);
  if (error != 0) return std::unexpected(error);
  return {};
}

Result<SimulatedFiles::Status> SimulatedFiles::status(const std::string& path) {
  if (const int error = enter(5, false)) return std::unexpected(error);
  const auto found = disk_.files.find(path);
  if (found == disk_.files.end()) return std::unexpected(ENOENT);
  return status_of(*found->second);
}

Result<SimulatedFiles::Status> SimulatedFiles::status(Number file) {
  if (const int error = enter(6, false)) return std::unexpected(error);
  return status_of(*handles_.at(file));
}

Result<SimulatedFiles::Room> SimulatedFiles::room() {
  if (const int error = enter(7, false)) return std::unexpected(error);
  return Room{.all = SimulatedDisk::kAll, .free = disk_.free()};
}

Result<SimulatedFiles::Number> SimulatedFiles::create(const std::string& path) {
  if (const int error = enter(8, true)) return std::unexpected(error);
  if (disk_.files.contains(path)) return std::unexpected(EEXIST);
  const File file = disk_.add(path);
  file->is_safe = false;
  return add_handle(file);
}

Result<SimulatedFiles::Number> SimulatedFiles::reopen(const std::string& path) {
  if (const int error = enter(16, true)) return std::unexpected(error);
  const auto found = disk_.files.find(path);
  if (found == disk_.files.end()) return std::unexpected(ENOENT);
  if (found->second->is_link) return std::unexpected(ELOOP);
  if (!found->second->is_mine) return std::unexpected(EACCES);
  found->second->was_touched = found->second->sync_failed = false;
  return add_handle(found->second);
}

Result<void> SimulatedFiles::set_length(Number file, std::uint64_t bytes) {
  if (const int error = enter(17, true)) return std::unexpected(error);
  handles_.at(file)->bytes.resize(bytes);
  return {};
}

Result<SimulatedFiles::Number> SimulatedFiles::open(const std::string& path) {
  if (const int error = enter(9, false)) return std::unexpected(error);
  const auto found = disk_.files.find(path);
  if (found == disk_.files.end()) return std::unexpected(ENOENT);
  if (found->second->is_link) return std::unexpected(ELOOP);
  return add_handle(found->second);
}

void SimulatedFiles::close(Number file) noexcept {
  const auto found = handles_.find(file);
  if (found->second->lock == process_) found->second->lock = 0;
  handles_.erase(found);
}

Result<std::size_t> SimulatedFiles::write(Number file, std::uint64_t offset, std::span<const std::byte> bytes) {
  int error = 0;
  bool killed = false;
  try {
    error = enter(10, true);
  } catch (const Killed&) {
    killed = true;
  }
  std::size_t n = bytes.size();
  const bool whole = error == 0 && !killed;
  if (!whole || disk_.dice().below(1000) < disk_.weather.shorts)
    n = static_cast<std::size_t>(disk_.dice().between(whole ? 1 : 0, static_cast<std::int64_t>(n)));
  const std::size_t room = disk_.free();
  if (n > room && error == 0) {
    n = room;
    if (n == 0) error = ENOSPC;
  }
  std::vector<std::byte>& contents = handles_.at(file)->bytes;
  handles_.at(file)->is_safe = false;
  contents.resize(std::max<std::size_t>(contents.size(), offset + n));
  std::ranges::copy(bytes.first(n), contents.begin() + static_cast<std::ptrdiff_t>(offset));
  if (killed) throw Killed();
  if (error != 0) return std::unexpected(error);
  return n;
}

Result<std::size_t> SimulatedFiles::read(Number file, std::uint64_t offset, std::span<std::byte> into) {
  if (const int error = enter(11, false)) return std::unexpected(error);
  disk_.must(handles_.at(file)->is_mine, "another user's file is read");
  const std::vector<std::byte>& contents = handles_.at(file)->bytes;
  std::size_t n = std::min<std::size_t>(into.size(), contents.size() - std::min<std::size_t>(contents.size(), offset));
  if (n > 0 && disk_.dice().below(1000) < disk_.weather.shorts)
    n = static_cast<std::size_t>(disk_.dice().between(1, static_cast<std::int64_t>(n)));
  if (n > 0) std::memcpy(into.data(), contents.data() + offset, n);
  if (disk_.dice().below(1000) < disk_.weather.lies) flip_bit(into.first(n), disk_.dice());
  return n;
}

Result<void> SimulatedFiles::sync(Number file) {
  const int error = enter(12, true);
  SimulatedFile& synced = *handles_.at(file);
  if (error != 0) {  // the system forgets that these pages were to be written
    synced.sync_failed = synced.was_touched = true;
    mangle(synced.bytes, disk_.dice());
    return std::unexpected(error);
  }
  synced.is_safe = disk_.dice().chance(70);
  return {};
}

Result<void> SimulatedFiles::touch(Number file) {
  if (const int error = enter(13, true)) return std::unexpected(error);
  handles_.at(file)->used = disk_.now;
  return {};
}

Result<void> SimulatedFiles::rename(const std::string& from, const std::string& to) {
  const int error = enter(14, true);
  if (error != 0 && (error != EIO || disk_.dice().chance(50)))
    return std::unexpected(error);  // else it was done all the same
  const auto found = disk_.files.find(from);
  if (found == disk_.files.end()) return std::unexpected(ENOENT);
  const File file = found->second;
  if (to.starts_with("kv/") && error == 0) disk_.must(!file->sync_failed, "what isn't safe gets a name");
  disk_.change_names([from, to, file](auto& names) {
    names.erase(from);
    names[to] = file;
  });
  if (error != 0) return std::unexpected(error);
  return {};
}

Result<void> SimulatedFiles::remove(const std::string& path) {
  if (const int error = enter(15, true)) return std::unexpected(error);
  if (!disk_.files.contains(path)) return std::unexpected(ENOENT);
  disk_.change_names([path](auto& names) { names.erase(path); });
  return {};
}

}  // namespace coppice::test
