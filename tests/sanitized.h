#pragma once

namespace shoal {

/// True under AddressSanitizer and ThreadSanitizer, which make a test many times slower and let it
/// hold more memory.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace shoal
