// While: a flag that is set for as long as this lives, in a coroutine's frame for as long as that runs. Where memory
// lacks for what asio needs, a frame goes in the middle, without an exception in it.
#pragma once

namespace coppice::server {

class While {
 public:
  explicit While(bool& flag) : flag_(flag) { flag_ = true; }
  ~While() { flag_ = false; }
  While(const While&) = delete;
  While& operator=(const While&) = delete;

 private:
  bool& flag_;
};

}  // namespace coppice::server
