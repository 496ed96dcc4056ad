// Owning handles for ggml's C objects.
#pragma once

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <memory>
#include <new>

namespace coppice::executor {

template <auto Free>
struct GgmlDeleter {
  template <class T>
  void operator()(T* p) const {
    Free(p);
  }
};

using ContextPtr = std::unique_ptr<ggml_context, GgmlDeleter<ggml_free>>;
using BufferPtr = std::unique_ptr<ggml_backend_buffer, GgmlDeleter<ggml_backend_buffer_free>>;
using GraphAllocatorPtr = std::unique_ptr<ggml_gallocr, GgmlDeleter<ggml_gallocr_free>>;
using BackendPtr = std::unique_ptr<ggml_backend, GgmlDeleter<ggml_backend_free>>;

/// A context that holds tensors' descriptions only, never their data.
inline ContextPtr make_context(std::size_t n_tensors, std::size_t graph_nodes = 0) {
  const std::size_t graph = graph_nodes > 0 ? ggml_graph_overhead_custom(graph_nodes, false) : 0;
  ContextPtr context(ggml_init(
      {.mem_size = n_tensors * ggml_tensor_overhead() + graph + 1024, .mem_buffer = nullptr, .no_alloc = true}));
  if (context == nullptr) throw std::bad_alloc();
  return context;
}

}  // namespace coppice::executor
