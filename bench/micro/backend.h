// One way to compute a step's attention, as the driver times it. To add a kernel, implement this and list it in
// make_backends().
//
// Worker w of n_threads calls run(layer, 0, w), run(layer, 1, w), ... up to phases() - 1 for each layer; the driver puts
// a barrier behind each phase when there is more than one. prepare() comes before, on one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "bench_case.h"

namespace coppice::bench {

/// Since prepare(), all layers together. Bytes are of keys and values.
struct Traffic {
  std::uint64_t read = 0;     ///< counted where a block is loaded from memory, per pass over a run
  std::uint64_t written = 0;  ///< copies
};

struct BackendOptions {
  bool huge_pages = true;  ///< for copies
  bool prefetch = true;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  virtual bool supports(const BenchCase& c) const = 0;
  virtual bool attends() const { return true; }  ///< false: it measures a part, and leaves `out` alone
  /// `step` outlives the runs that follow.
  virtual void prepare(Step& step, int n_threads) = 0;
  virtual int phases() const = 0;
  virtual void run(std::size_t layer, int phase, int worker) = 0;
  virtual Traffic traffic() const = 0;
};

std::vector<std::unique_ptr<Backend>> make_backends(const BackendOptions& options);

}  // namespace coppice::bench
