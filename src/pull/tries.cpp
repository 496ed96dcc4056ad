#include "pull/tries.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <thread>

namespace coppice::pull {

namespace {

using std::chrono::milliseconds;

constexpr int kTries = 5;
constexpr milliseconds kPause{500};  // doubled with each try in vain
constexpr milliseconds kLongestPause{60'000};

/// Too many requests, or a server's trouble that may pass.
bool is_passing(unsigned status) {
  return status == 429 || status == 500 || (status >= 502 && status <= 504);
}

}  // namespace

void Tries::restart() {
  failed_ = 0;
}

void Tries::wait(const WebFailure& failure) {
  if (!failure.again() || ++failed_ == kTries) throw WebFailure(failure);
  const milliseconds time =
      std::min(std::max<milliseconds>(kPause * (1 << (failed_ - 1)), failure.after()), kLongestPause);
  progress_.waits(failure.what(), time);
  std::this_thread::sleep_for(time);
}

WebFailure status_failure(const WebReply& reply, const std::string& what) {
  const std::string after = reply.field("retry-after");  // seconds; a date is not kept
  unsigned seconds = 0;
  std::from_chars(after.data(), after.data() + after.size(), seconds);
  return {fmt::format("{} answers {} for {}.", reply.url.authority(), reply.status, what), is_passing(reply.status),
          false, std::chrono::seconds(seconds)};
}

WebReply ask_patiently(WebClient& client, const WebRequest& request, const std::string& what, Progress& progress) {
  for (Tries tries(progress);;) {
    std::optional<WebFailure> failure;
    try {
      WebReply reply = client.ask(request);
      if (!is_passing(reply.status)) return reply;
      failure = status_failure(reply, what);
    } catch (const WebFailure& e) {
      failure = e;
    }
    tries.wait(*failure);
  }
}

}  // namespace coppice::pull
