#include "base/copy.h"

#include <stdint.h>

#ifdef __SSE2__
#include <emmintrin.h>

/* Bytes. From WORTH on the fence at the end costs little. AHEAD: some processors prefetch too little by themselves. */
enum { LINE = 64, WORTH = 4096, AHEAD = 2048 };

void pd_copy_far(void *to, const void *from, size_t bytes) {
    char *t = to;
    const char *f = from;
    size_t head = -(size_t)(uintptr_t)t % LINE;
    if (bytes < WORTH) {
        memcpy(t, f, bytes);
        return;
    }
    memcpy(t, f, head);
    t += head, f += head, bytes -= head;
    for (; bytes >= LINE; t += LINE, f += LINE, bytes -= LINE) {
        const __m128i *v = (const __m128i *)f;
        __builtin_prefetch(f + AHEAD);
        __m128i a = _mm_loadu_si128(v), b = _mm_loadu_si128(v + 1);
        __m128i c = _mm_loadu_si128(v + 2), d = _mm_loadu_si128(v + 3);
        _mm_stream_si128((__m128i *)t, a), _mm_stream_si128((__m128i *)t + 1, b);
        _mm_stream_si128((__m128i *)t + 2, c), _mm_stream_si128((__m128i *)t + 3, d);
    }
    _mm_sfence(); /* such writes are not in order with others */
    memcpy(t, f, bytes);
}
#else
void pd_copy_far(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
#endif
