// What ggml gives up on: it has no errors for a wrong shape or for memory that is out, and aborts the process, by
// default with a debugger that prints where.
#pragma once

namespace coppice::executor {

/// From now on ggml's abort prints one line and ends the process with status 1; within a GgmlThrows it is an exception.
/// Any thread; once is enough.
void take_ggml_aborts();

/// While it lives, what ggml gives up on in calls of this thread is a StepError. The exception leaves ggml's C
/// functions, which hold no lock where they allocate. Not around computing: that has threads of ggml's own.
class GgmlThrows {
 public:
  GgmlThrows();
  ~GgmlThrows();
  GgmlThrows(const GgmlThrows&) = delete;
  GgmlThrows& operator=(const GgmlThrows&) = delete;
};

}  // namespace coppice::executor
