// The small Llama that the programs which need a GPU begin with, in shapes that its kernels take.
#pragma once

#include "support/gguf_writer.h"

namespace coppice::test {

inline TinyModel model_for_gpu() {
  TinyModel m;
  m.n_layer = 3;
  m.n_embd = 256;
  m.head_dim = 64;
  m.n_ff = 512;
  m.context = 2048;
  m.qk_spread = 0.1F;
  return m;
}

}  // namespace coppice::test
