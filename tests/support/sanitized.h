// Whether a sanitizer runs. It makes a test some fifteen times slower: long ones do less of the same then.
#pragma once

namespace coppice::test {

#if !defined(__has_feature)
#define __has_feature(name) 0
#endif
inline constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
inline constexpr bool kSanitized = kThreadSanitizer || __has_feature(address_sanitizer);

}  // namespace coppice::test
