// spare(): does something that others can do without: for who watches, or for a store.
#pragma once

#include <exception>

namespace coppice::engine {

/// It is left out if it throws: memory is short, or OpenSSL's.
template <class F>
void spare(F&& f) try {
  f();
} catch (const std::exception&) {
}

}  // namespace coppice::engine
