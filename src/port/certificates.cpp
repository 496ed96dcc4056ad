#include "port/certificates.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace coppice::port {

namespace {

constexpr const char* kFiles[] = {"/etc/ssl/certs/ca-certificates.crt",  // Debian, Arch, Alpine
                                  "/etc/pki/tls/certs/ca-bundle.crt",    // Fedora
                                  "/etc/ssl/ca-bundle.pem",              // SUSE
                                  "/etc/ssl/cert.pem"};                  // macOS

}  // namespace

void find_certificates() {
  if (std::getenv("SSL_CERT_FILE") != nullptr || std::getenv("SSL_CERT_DIR") != nullptr) return;
  for (const char* file : kFiles) {
    std::error_code error;
    if (std::filesystem::exists(file, error)) {
      ::setenv("SSL_CERT_FILE", file, 1);
      return;
    }
  }
}

}  // namespace coppice::port
