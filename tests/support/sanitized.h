// Whether a sanitizer runs, or an emulator. It makes a test some fifteen times slower: long ones do less of the same
// then.
#pragma once

namespace coppice::test {

#if !defined(__has_feature)
#define __has_feature(name) 0
#endif
inline constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
inline constexpr bool kSanitized = kThreadSanitizer || __has_feature(address_sanitizer);
#if defined(__aarch64__)  // make arm64
inline constexpr bool kEmulated = true;
#else
inline constexpr bool kEmulated = false;
#endif

/// Code takes ten times as long as it should, or longer.
inline constexpr bool kSlow = kSanitized || kEmulated;

}  // namespace coppice::test
