// What the disk store costs on this disk: build/bench/disk_bench FOLDER [--pieces N] [--bytes N] [--readers N]
// [--writers N] [--index N] It fills the folder, writes as many pieces over them, reads them in another order, opens
// the folder again, and empties it. Root drops the system's caches before reads and opening; else they are warm.
// --index N: N files of no contents instead, and how long opening takes.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "port/memory.h"
#include "tier/disk/disk_folder.h"
#include "tier/disk/piece_path.h"
#include "tier/disk/real_files.h"

namespace {

using namespace coppice::tier;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string folder;
  int pieces = 1000, readers = 4, writers = 1, index = 0;
  std::size_t bytes = 737'280 + 256;
};

double seconds_since(Clock::time_point begun) {
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

Name name_of(int i) {
  Name name;
  std::mt19937_64 random(static_cast<std::uint64_t>(i));
  for (auto& byte : name.piece) byte = static_cast<std::uint8_t>(random());
  return name;
}

void drop_caches() {
  ::sync();
  std::ofstream("/proc/sys/vm/drop_caches") << "3\n";
}

/// Seconds that `n_threads` take for all of [0, n).
double share_out(int n_threads, int n, const std::function<void(int i, int thread)>& work) {
  std::atomic<int> next = 0;
  const auto begun = Clock::now();
  std::vector<std::jthread> threads;
  for (int t = 0; t < n_threads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = next++; i < n; i = next++) work(i, t);
    });
  }
  threads.clear();
  return seconds_since(begun);
}

void print(const char* what, const Options& options, double seconds) {
  const double bytes = static_cast<double>(options.pieces) * static_cast<double>(options.bytes);
  fmt::print("{:12} {:6.0f} MB/s, {:.2f} ms each\n", what, bytes / seconds / 1e6, seconds / options.pieces * 1e3);
}

void open_folder(DiskFolder& folder) {
  const std::size_t before = coppice::port::resident_memory();
  const auto begun = Clock::now();
  const std::string why = folder.open();
  if (!why.empty()) throw std::runtime_error("The folder " + why + ".");
  const Counters counters = folder.counters();
  fmt::print("opened       {} pieces in {:.2f} s, {} MiB of memory\n", counters.pieces, seconds_since(begun),
             (coppice::port::resident_memory() - before) >> 20);
}

void empty(DiskFolder& folder) {
  folder.forget({});
  while (folder.tidy()) {
  }
}

void run(const Options& options) {
  const auto files = make_real_files(options.folder);
  const DiskLimits limits{.bytes = static_cast<std::uint64_t>(options.pieces) * disk_bytes(options.bytes),
                          .free_share = 0.02};
  DiskFolder folder(*files, limits, [](const std::string& line) { fmt::print("{}\n", line); });
  open_folder(folder);
  Buffers buffers(static_cast<std::size_t>(std::max(options.readers, options.writers)), options.bytes);
  const auto write = [&](int i, int thread) {
    Buffer piece = buffers.take();
    piece.set_size(options.bytes);
    const Name name = name_of(i);
    if (folder.take(name, piece.size()) == DiskFolder::Taken::kTaken) folder.write(name, piece, thread);
  };
  print("written", options, share_out(options.writers, options.pieces, write));
  print("written over", options,
        share_out(options.writers, options.pieces, [&](int i, int thread) { write(options.pieces + i, thread); }));
  std::vector<int> order(static_cast<std::size_t>(options.pieces));
  std::iota(order.begin(), order.end(), options.pieces);
  std::ranges::shuffle(order, std::mt19937(1));
  drop_caches();
  std::atomic<int> missed = 0;
  print("read", options, share_out(options.readers, options.pieces, [&](int i, int) {
          Buffer into = buffers.take();
          folder.read(name_of(order[static_cast<std::size_t>(i)]), into);
          if (into.size() != options.bytes) ++missed;
        }));
  if (missed > 0) fmt::print("{} pieces were missed\n", missed.load());
  folder.end();
  drop_caches();
  open_folder(folder);
  empty(folder);
}

void run_index(const Options& options) {
  const auto files = make_real_files(options.folder);
  DiskFolder folder(*files, {.bytes = std::uint64_t{1} << 60, .free_share = 0}, [](const std::string&) {});
  open_folder(folder);
  share_out(2, options.index, [&](int i, int) {
    const std::string path = options.folder + "/" + path_of(name_of(i));
    std::ofstream(path).close();
    std::filesystem::resize_file(path, options.bytes);
  });
  for (const bool cold : {true, false}) {
    folder.end();
    if (cold) drop_caches();
    open_folder(folder);
  }
  empty(folder);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What the disk store costs on this disk");
  Options options;
  app.add_option("folder", options.folder, "Where: a folder that isn't there, or one of a cache")->required();
  app.add_option("--pieces", options.pieces);
  app.add_option("--bytes", options.bytes, "Of each");
  app.add_option("--readers", options.readers);
  app.add_option("--writers", options.writers);
  app.add_option("--index", options.index);
  CLI11_PARSE(app, argc, argv);
  (options.index > 0 ? run_index : run)(options);
  return 0;
}
