// WebClient: asks web servers over HTTP and HTTPS, one exchange at a time, through proxies where the environment names
// one.
//
// Certificates are checked by the authorities of SSL_CERT_FILE or SSL_CERT_DIR (port/certificates.h). A secret is sent
// to the server that it is meant for, and to none to which that one redirects. Nothing is followed from https to http.
//
// One thread.
#pragma once

#include <boost/system/error_code.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "pull/proxy.h"
#include "server/fetch/url.h"

namespace coppice::pull {

/// No answer, or one that is of no use. what() is a sentence.
class WebFailure : public std::runtime_error {
 public:
  /// `again`: it may be worth asking again.
  WebFailure(const std::string& message, bool again, bool unreachable = false, std::chrono::seconds after = {})
      : std::runtime_error(message), again_(again), unreachable_(unreachable), after_(after) {}
  bool again() const { return again_; }
  /// No way led to the server; none through a proxy was tried.
  bool unreachable() const { return unreachable_; }
  /// Not before this time, the server says.
  std::chrono::seconds after() const { return after_; }

 private:
  bool again_, unreachable_;
  std::chrono::seconds after_;
};

struct WebRequest {
  const char* method = "GET";
  server::Url url;
  std::vector<std::pair<std::string, std::string>> fields{};
  std::string authorization{};  ///< the field of this name; empty: none
  bool leaves_host = true;      ///< false: a redirection to another server is the answer
};

struct WebReply {
  unsigned status = 0;
  server::Url url;                            ///< that answered
  std::map<std::string, std::string> fields;  ///< names in lower case
  std::string body;                           ///< where nobody takes it: at most kMostBody bytes

  /// Empty: there is none.
  std::string field(const std::string& name) const;
};

class WebClient {
 public:
  static constexpr std::size_t kMostBody = std::size_t{4} << 20;

  /// `idle_seconds`: so long nothing may come.
  explicit WebClient(Variables variables, double idle_seconds = 30);
  ~WebClient();
  WebClient(const WebClient&) = delete;
  WebClient& operator=(const WebClient&) = delete;

  /// Of an answer that is no redirection: `begun` sees its head; if it returns true, `take` gets the body. Throws
  /// WebFailure: to which no way leads isn't worth another try before any server has answered, as a name may be wrong,
  /// or there may be no network.
  WebReply ask(
      const WebRequest& request,
      const std::function<bool(const WebReply& head)>& begun = [](const WebReply&) { return false; },
      const std::function<void(std::span<const char>)>& take = {});

 private:
  class Exchange;
  struct Tls;

  WebFailure failure_of(const Exchange& exchange, const server::Url& url, const std::string& way,
                        const boost::system::error_code& error) const;

  Variables variables_;
  double idle_seconds_;
  std::unique_ptr<Tls> tls_;
  bool answered_ = false;  ///< some server has answered: there is a network
};

}  // namespace coppice::pull
