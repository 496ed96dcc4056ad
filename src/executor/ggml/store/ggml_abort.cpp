#include "executor/ggml/store/ggml_abort.h"

#include <ggml.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "executor/executor.h"

namespace coppice::executor {

namespace {

thread_local int throwing = 0;

void on_abort(const char* message) {
  if (throwing > 0) throw StepError(std::string("ggml gives up: ") + message);
  std::fprintf(stderr, "coppice: The tensor library cannot go on: %s\n", message);
  std::_Exit(EXIT_FAILURE);
}

}  // namespace

void take_ggml_aborts() {
  ggml_set_abort_callback(on_abort);
}

GgmlThrows::GgmlThrows() {
  ++throwing;
}
GgmlThrows::~GgmlThrows() {
  --throwing;
}

}  // namespace coppice::executor
