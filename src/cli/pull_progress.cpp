#include "cli/pull_progress.h"

#include <fmt/format.h>

#include <cstdio>

#include "cli/size_text.h"

namespace coppice::cli {

PullProgress::~PullProgress() {
  if (open_) std::fputs("\n", stderr);
}

void PullProgress::waits(const std::string& why, std::chrono::milliseconds time) {
  show(fmt::format("{} Again in {:g} s.", why, std::chrono::duration<double>(time).count()), false);
}

void PullProgress::says(const std::string& sentence) {
  show(sentence, true);
}

void PullProgress::show(const std::string& line, bool ends) {
  fmt::print(stderr, "{}{}{}", terminal_ ? "\r\033[K" : "", line, terminal_ && !ends ? "" : "\n");
  open_ = terminal_ && !ends;
}

void PullProgress::has(const pull::WantedFile& file, std::uint64_t bytes) {
  const auto now = Clock::now();
  if (name_ != file.name || bytes < last_) {  // less than before: it is fetched from the beginning
    name_ = file.name;
    first_ = bytes;
    tenth_ = file.size > 0 ? bytes * 10 / file.size : 0;
    began_ = now;
    shown_ = {};
  }
  last_ = bytes;
  const bool whole = file.size > 0 && bytes >= file.size;
  const std::uint64_t tenth = file.size > 0 ? bytes * 10 / file.size : 0;
  const bool due = terminal_ ? now - shown_ > std::chrono::milliseconds(200) : tenth > tenth_;
  if (!due && !(terminal_ && whole)) return;
  shown_ = now;
  tenth_ = tenth;
  const double seconds = std::chrono::duration<double>(now - began_).count();
  const double speed = seconds > 0.5 ? static_cast<double>(bytes - first_) / seconds : 0;
  std::string line = fmt::format("{}: {}", file.name, size_text(bytes));
  if (file.size > 0) line += fmt::format(" of {}", size_text(file.size));
  if (speed > 0) line += fmt::format(", {}/s", size_text(static_cast<std::size_t>(speed)));
  if (speed > 0 && !whole && file.size > 0)
    line += fmt::format(", {:.0f} s left", static_cast<double>(file.size - bytes) / speed);
  show(line, whole);
}

}  // namespace coppice::cli
