// std::move_only_function, which clang's standard library lacks (libc++ 19): a call without const, noexcept or
// references.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace coppice::port {

#ifdef __cpp_lib_move_only_function
template <class Signature>
using MoveOnlyFunction = std::move_only_function<Signature>;
#else
template <class Signature>
class MoveOnlyFunction;

template <class R, class... A>
class MoveOnlyFunction<R(A...)> {
 public:
  MoveOnlyFunction() = default;
  MoveOnlyFunction(std::nullptr_t) {}
  template <class F>
    requires(!std::same_as<std::remove_cvref_t<F>, MoveOnlyFunction> && std::invocable<F&, A...>)
  MoveOnlyFunction(F&& f) : callable_(std::make_unique<Of<std::decay_t<F> > >(std::forward<F>(f))) {}

  explicit operator bool() const { return callable_ != nullptr; }
  /// REQUIRES: it holds a function.
  R operator()(A... arguments) { return callable_->call(std::forward<A>(arguments)...); }

 private:
  struct Callable {
    virtual ~Callable() = default;
    virtual R call(A&&... arguments) = 0;
  };
  template <class F>
  struct Of final : Callable {
    template <class G>
    explicit Of(G&& g) : f(std::forward<G>(g)) {}
    R call(A&&... arguments) override { return std::invoke_r<R>(f, std::forward<A>(arguments)...); }
    F f;
  };
  std::unique_ptr<Callable> callable_;
};
#endif

}  // namespace coppice::port
