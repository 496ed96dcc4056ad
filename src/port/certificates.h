// Where systems keep the certificates of authorities.
#pragma once

namespace coppice::port {

/// Names the system's file in SSL_CERT_FILE, unless that or SSL_CERT_DIR is set: OpenSSL looks where the system that it
/// was compiled for has it, and one program serves several. Before any other thread.
void find_certificates();

}  // namespace coppice::port
