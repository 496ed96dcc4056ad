// Progress: hears how downloads go.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace coppice::pull {

struct WantedFile;

class Progress {
 public:
  virtual ~Progress() = default;

  /// How much there is of a file. Called often, the last time with all of it.
  virtual void has(const WantedFile& file, std::uint64_t bytes) = 0;
  /// It is asked again after this time. `why`: a sentence.
  virtual void waits(const std::string& why, std::chrono::milliseconds time) = 0;
  /// A sentence for people.
  virtual void says(const std::string& sentence) = 0;
};

}  // namespace coppice::pull
