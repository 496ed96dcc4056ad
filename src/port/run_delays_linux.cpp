#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "port/run_delays.h"

namespace coppice::port {

int this_thread_id() {
  return static_cast<int>(syscall(SYS_gettid));
}

std::vector<int> thread_ids() {
  std::vector<int> ids;
  std::error_code error;
  for (std::filesystem::directory_iterator task("/proc/self/task", error), end; !error && task != end;
       task.increment(error)) {
    const std::string name = task->path().filename();
    int id = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), id).ec == std::errc()) ids.push_back(id);
  }
  return ids;
}

RunDelays::RunDelays(std::span<const int> thread_ids) {
  for (const int id : thread_ids) {
    const std::string path = "/proc/self/task/" + std::to_string(id) + "/schedstat";
    if (const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC); file >= 0) files_.push_back(file);
  }
}

RunDelays::~RunDelays() {
  for (const int file : files_) close(file);
}

/// A file is three numbers: nanoseconds run, nanoseconds waited, turns.
std::chrono::nanoseconds RunDelays::sum() const {
  std::chrono::nanoseconds sum{0};
  for (const int file : files_) {
    std::array<char, 96> text{};
    const ssize_t n = pread(file, text.data(), text.size(), 0);
    if (n <= 0) continue;
    std::string_view line(text.data(), static_cast<std::size_t>(n));
    line.remove_prefix(std::min(line.find(' ') + 1, line.size()));
    std::int64_t waited = 0;
    std::from_chars(line.data(), line.data() + line.size(), waited);
    sum += std::chrono::nanoseconds(waited);
  }
  return sum;
}

}  // namespace coppice::port
