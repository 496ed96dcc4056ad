// FetchedFiles: image files that came from other servers, for as long as those who want them hold them: requests that
// come meanwhile share them.
//
// Thread safety: any number of threads at once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check/mutex.h"

namespace coppice::vision {

class FetchedFiles {
 public:
  using File = std::shared_ptr<const std::vector<std::uint8_t>>;

  /// Null: nobody of this owner (as Pictures') holds it.
  File find(const std::string& owner, const std::string& url) {
    const check::Lock lock(mutex_);
    const auto found = held_.find({owner, url});
    return found == held_.end() ? nullptr : found->second.lock();
  }

  /// In place of what is there.
  File hold(const std::string& owner, const std::string& url, std::vector<std::uint8_t> bytes) {
    auto file = std::make_shared<const std::vector<std::uint8_t>>(std::move(bytes));
    const check::Lock lock(mutex_);
    std::erase_if(held_, [](const auto& entry) { return entry.second.expired(); });
    held_[{owner, url}] = file;
    return file;
  }

 private:
  check::Mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::weak_ptr<const std::vector<std::uint8_t>>> held_
      COPPICE_GUARDED_BY(mutex_);
};

}  // namespace coppice::vision
