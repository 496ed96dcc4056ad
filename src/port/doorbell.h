// Doorbell: wakes a thread that waits for files and sockets (poll()). Thread-safe.
#pragma once

namespace coppice::port {

class Doorbell {
 public:
  /// Throws std::system_error.
  Doorbell();
  ~Doorbell();
  Doorbell(const Doorbell&) = delete;
  Doorbell& operator=(const Doorbell&) = delete;

  void ring() noexcept;
  /// It can be read from since somebody rang, until answer().
  int file() const { return reads_; }
  void answer() noexcept;

 private:
  int reads_ = -1, writes_ = -1;
};

}  // namespace coppice::port
