// DiskFolder on real files: what a restart finds, who may use a folder, what is refused.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "support/dice.h"
#include "tier/disk/disk_fixture.h"

namespace coppice::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using Taken = tier::DiskFolder::Taken;

mode_t mode_of(const fs::path& path) {
  struct stat found = {};
  ::lstat(path.c_str(), &found);
  return found.st_mode & 0777;
}

TEST_F(DiskTest, ARestartFindsWhatWasWritten) {
  for (int run = 0; run < 3; ++run) {
    RealFolder server(path_);
    ASSERT_EQ(server.folder.open(), "");
    EXPECT_EQ(server.folder.counters().pieces, 10 * run);
    for (int i = 0; i < 10 * run; ++i) EXPECT_TRUE(server.folder.find(name_of(i)) && reads(server.folder, name_of(i)));
    for (int i = 10 * run; i < 10 * run + 10; ++i)
      EXPECT_TRUE(put(server.folder, name_of(i), static_cast<std::size_t>(1 + 3000 * i)));
    EXPECT_EQ(server.folder.check(), "");
  }
}

TEST_F(DiskTest, AKillAtAnyMomentTearsNothing) {
  const std::uint64_t each = tier::disk_bytes(tier::piece_size(4, 5, 200'000));
  const tier::DiskLimits limits{.bytes = 20 * each, .free_share = 0};
  Dice dice(1);
  std::int64_t n_found = 0;
  for (int round = 0; round < 20; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      RealFolder server(path_, limits);
      if (!server.folder.open().empty()) ::_exit(1);
      for (int i = 40 * round;; ++i) put(server.folder, name_of(i), static_cast<std::size_t>(200'000 - i % 7 * 9000));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(dice.between(5, 40)));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    RealFolder server(path_, limits);
    ASSERT_EQ(server.folder.open(), "");
    EXPECT_TRUE(fs::is_empty(path_ / "new"));
    for (int i = 0; i < 40 * round + 1000; ++i) {
      if (!server.folder.find(name_of(i))) continue;
      ++n_found;
      EXPECT_TRUE(reads(server.folder, name_of(i)));
    }
    EXPECT_LE(server.folder.counters().bytes, static_cast<std::int64_t>(limits.bytes));
  }
  EXPECT_GT(n_found, 20);
}

TEST_F(DiskTest, APieceIsTakenOnce) {
  RealFolder server(path_);
  ASSERT_EQ(server.folder.open(), "");
  tier::Buffer one = piece(name_of(1));
  EXPECT_EQ(server.folder.take(name_of(1), one.size()), Taken::kTaken);
  EXPECT_EQ(server.folder.take(name_of(1), one.size()), Taken::kThere);
  EXPECT_FALSE(server.folder.find(name_of(1)));
  server.folder.write(name_of(1), one, 0);
  EXPECT_EQ(server.folder.take(name_of(1), one.size()), Taken::kThere);
  EXPECT_TRUE(server.folder.find(name_of(1)));
}

TEST_F(DiskTest, NobodyElseReadsIt) {
  const mode_t before = ::umask(0);
  RealFolder server(path_);
  ASSERT_EQ(server.folder.open(), "");
  ASSERT_TRUE(put(server.folder, name_of(1)));
  for (const auto& entry : fs::recursive_directory_iterator(path_))
    EXPECT_EQ(mode_of(entry.path()), entry.is_directory() ? 0700U : 0600U) << entry.path();
  EXPECT_EQ(mode_of(path_), 0700U);
  ::umask(before);
}

TEST_F(DiskTest, OneServerUsesAFolder) {
  RealFolder second(path_);
  {
    RealFolder first(path_);
    ASSERT_EQ(first.folder.open(), "");
    ASSERT_TRUE(put(first.folder, name_of(1)));
    EXPECT_EQ(second.folder.open(), "is used by another server");
    EXPECT_FALSE(second.folder.find(name_of(1)));
    EXPECT_FALSE(put(second.folder, name_of(2)));
  }
  EXPECT_EQ(second.folder.open(), "");
  EXPECT_TRUE(reads(second.folder, name_of(1)));
}

TEST_F(DiskTest, FoldersThatWereNotMeantAreRefused) {
  fs::create_directories(path_);
  std::ofstream(path_ / "thesis.txt") << "text";
  EXPECT_THAT(RealFolder(path_).folder.open(), HasSubstr("holds other things"));
  fs::remove(path_ / "thesis.txt");
  ::chmod(path_.c_str(), 0777);
  EXPECT_THAT(RealFolder(path_).folder.open(), HasSubstr("written to by others"));
  ::chmod(path_.c_str(), 0755);  // what mkdir makes: closed to others
  EXPECT_EQ(RealFolder(path_).folder.open(), "");
  EXPECT_EQ(mode_of(path_), 0700U);
  EXPECT_THAT(RealFolder(path_ / "kv/0/there/is/none").folder.open(), HasSubstr("No such file"));
  std::ofstream(path_.parent_path() / "file") << "text";
  EXPECT_THAT(RealFolder(path_.parent_path() / "file").folder.open(), HasSubstr("Not a directory"));
  if (::geteuid() != 0) GTEST_SKIP() << "who is not root has no other user's folder";
  ASSERT_EQ(::chown(path_.c_str(), 12345, 12345), 0);
  EXPECT_EQ(RealFolder(path_).folder.open(), "belongs to another user");
}

TEST_F(DiskTest, LinksAndOthersFilesAreNoPieces) {
  RealFolder server(path_);
  ASSERT_EQ(server.folder.open(), "");
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(put(server.folder, name_of(i)));
  // While it runs, and found by the next one.
  for (int run = 0; run < 2; ++run) {
    RealFolder* const now = &server;
    fs::rename(file(name_of(0)), path_.parent_path() / "elsewhere");
    fs::create_symlink(path_.parent_path() / "elsewhere", file(name_of(0)));
    ::chmod(file(name_of(1)).c_str(), 0666);
    if (run == 1) {
      server.folder.end();
      ASSERT_EQ(server.folder.open(), "");
      EXPECT_FALSE(now->folder.find(name_of(0)) || now->folder.find(name_of(1)));
    }
    EXPECT_FALSE(reads(now->folder, name_of(0)) || reads(now->folder, name_of(1)));
    EXPECT_TRUE(reads(now->folder, name_of(2)));
    while (now->folder.tidy()) {
    }
    EXPECT_TRUE(fs::exists(path_.parent_path() / "elsewhere"));
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(put(now->folder, name_of(i)) || run == 1);
    EXPECT_TRUE(reads(now->folder, name_of(0)) && reads(now->folder, name_of(1)));
  }
}

TEST_F(DiskTest, DamageIsReadOnceAndKeptForPeople) {
  RealFolder server(path_);
  ASSERT_EQ(server.folder.open(), "");
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(put(server.folder, name_of(i)));
  for (int i = 0; i < 12; ++i) {
    if (i % 2 == 0) fs::resize_file(file(name_of(i)), 5000);
    if (i % 2 == 1) std::fstream(file(name_of(i)), std::ios::in | std::ios::out).seekp(700) << "other bytes";
    EXPECT_FALSE(reads(server.folder, name_of(i)));
    EXPECT_EQ(server.folder.put_aside(name_of(i)), i % 2 == 1);  // a length is seen without opening it
    EXPECT_FALSE(server.folder.find(name_of(i)));
  }
  EXPECT_EQ(server.folder.counters().damaged, 12);
  EXPECT_EQ(std::distance(fs::directory_iterator(path_ / "bad"), fs::directory_iterator()), 8);
  EXPECT_TRUE(put(server.folder, name_of(3)) && reads(server.folder, name_of(3)));
  EXPECT_EQ(server.folder.check(), "");
}

TEST_F(DiskTest, WhatIsUsedStays) {
  const std::uint64_t each = tier::disk_bytes(tier::piece_size(4, 5, 10'000));
  RealFolder server(path_, {.bytes = 10 * each, .free_share = 0});
  ASSERT_EQ(server.folder.open(), "");
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(put(server.folder, name_of(i)));
    EXPECT_TRUE(reads(server.folder, name_of(0)));
    EXPECT_LE(std::distance(fs::recursive_directory_iterator(path_ / "kv"), fs::recursive_directory_iterator()),
              tier::kSubfolders + 10);
  }
  EXPECT_EQ(server.folder.counters().pieces, 10);
  EXPECT_EQ(server.folder.counters().evicted, 90);
  for (int i = 91; i < 100; ++i) EXPECT_TRUE(reads(server.folder, name_of(i)));
  // Of another length, in the room of those: files are cut, and grow.
  for (int i = 100; i < 110; ++i) ASSERT_TRUE(put(server.folder, name_of(i), i % 2 == 0 ? 3000 : 20'000));
  for (int i = 107; i < 110; ++i) EXPECT_TRUE(reads(server.folder, name_of(i)));
  EXPECT_EQ(server.folder.check(), "");
}

TEST_F(DiskTest, ARestartKnowsWhatWasUsedLast) {
  {
    RealFolder server(path_);
    ASSERT_EQ(server.folder.open(), "");
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(put(server.folder, name_of(i)));
  }
  const auto hours_ago = [](int n) { return fs::file_time_type::clock::now() - std::chrono::hours(n); };
  for (int i = 0; i < 4; ++i) fs::last_write_time(file(name_of(i)), hours_ago(10 - i));
  {
    RealFolder server(path_);
    ASSERT_EQ(server.folder.open(), "");
    EXPECT_TRUE(reads(server.folder, name_of(0)));
    EXPECT_GT(fs::last_write_time(file(name_of(0))), hours_ago(1));
  }
  const std::uint64_t each = tier::disk_bytes(tier::piece_size(4, 5, 10'000));
  RealFolder server(path_, {.bytes = 2 * each, .free_share = 0});
  ASSERT_EQ(server.folder.open(), "");
  server.folder.tidy();
  EXPECT_TRUE(server.folder.find(name_of(0)) && server.folder.find(name_of(3)));
  EXPECT_FALSE(fs::exists(file(name_of(1))) || fs::exists(file(name_of(2))));
}

TEST_F(DiskTest, WhatNobodyUsesGoes) {
  {
    RealFolder server(path_);
    ASSERT_EQ(server.folder.open(), "");
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(put(server.folder, name_of(i)));
  }
  for (int i = 0; i < 2; ++i)
    fs::last_write_time(file(name_of(i)), fs::file_time_type::clock::now() - std::chrono::hours(2));
  RealFolder server(path_, {.bytes = 1 << 30, .free_share = 0, .unused_for = std::chrono::hours(1)});
  ASSERT_EQ(server.folder.open(), "");
  server.folder.tidy();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(server.folder.find(name_of(i)), i >= 2);
}

TEST_F(DiskTest, ForgetsByModelSpaceAndAge) {
  RealFolder server(path_);
  ASSERT_EQ(server.folder.open(), "");
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(put(server.folder, name_of(i, i % 2, i / 2 % 2)));
  server.folder.forget({.model = name_of(0, 1).model, .space = name_of(0, 0, 1).space});
  for (int i = 0; i < 8; ++i) EXPECT_EQ(server.folder.find(name_of(i, i % 2, i / 2 % 2)), i % 4 != 3);
  server.folder.forget({.unused_for = std::chrono::hours(1)});
  EXPECT_EQ(server.folder.counters().pieces, 6);
  server.folder.forget({});
  EXPECT_EQ(server.folder.counters().pieces, 0);
  while (server.folder.tidy()) {
  }
  EXPECT_EQ(std::distance(fs::recursive_directory_iterator(path_ / "kv"), fs::recursive_directory_iterator()),
            tier::kSubfolders);
}

TEST_F(DiskTest, LimitsThatLeaveNoRoomAreSaidOnce) {
  RealFolder full(path_, {.bytes = 1 << 30, .free_share = 1});  // as if others had filled the disk
  ASSERT_EQ(full.folder.open(), "");
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(put(full.folder, name_of(i)) && reads(full.folder, name_of(i)));
    full.folder.tidy();
  }
  ASSERT_EQ(full.said.size(), 1U);
  EXPECT_THAT(full.said[0], HasSubstr("has no room for pieces: of its file system"));
  EXPECT_TRUE(full.folder.counters().on && full.folder.counters().no_room);
  EXPECT_EQ(full.folder.counters().dropped, 3);

  RealFolder small(path_.parent_path() / "small", {.bytes = 5000, .free_share = 0});
  ASSERT_EQ(small.folder.open(), "");
  small.folder.tidy();
  EXPECT_FALSE(small.folder.counters().no_room);
  EXPECT_FALSE(put(small.folder, name_of(1)));
  small.folder.tidy();
  small.folder.tidy();
  EXPECT_TRUE(small.folder.counters().no_room);
  ASSERT_EQ(small.said.size(), 1U);
  EXPECT_THAT(small.said[0], HasSubstr("it may take 0.0 MiB"));
}

TEST_F(DiskTest, AnEmptiedFolderIsUsedAnew) {
  RealFolder server(path_);
  ASSERT_EQ(server.folder.open(), "");
  ASSERT_TRUE(put(server.folder, name_of(1)));
  for (const auto& entry : fs::directory_iterator(path_)) fs::remove_all(entry.path());
  EXPECT_FALSE(reads(server.folder, name_of(1)));
  server.folder.tidy();
  EXPECT_FALSE(server.folder.is_open());
  EXPECT_THAT(server.said, testing::ElementsAre(path_.string() + " is off: somebody removed its lock"));
  ASSERT_TRUE(server.folder.at_rest());
  ASSERT_EQ(server.folder.open(), "");
  EXPECT_TRUE(put(server.folder, name_of(1)) && reads(server.folder, name_of(1)));
}

TEST_F(DiskTest, APieceLongerThanTheBufferIsAMiss) {
  RealFolder server(path_);
  ASSERT_EQ(server.folder.open(), "");
  ASSERT_TRUE(put(server.folder, name_of(1), 20'000));
  tier::Buffers small(1, 4096);
  tier::Buffer into = small.take();
  server.folder.read(name_of(1), into);
  EXPECT_EQ(into.size(), 0U);
}

}  // namespace
}  // namespace coppice::test
