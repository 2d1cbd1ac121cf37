#include "parallel/hash.h"

#include <string.h>

#define P1 UINT64_C(0x9e3779b97f4a7c15) /* odd, and half of the bits set: 2^64 over the golden ratio */
#define P2 UINT64_C(0xd6e8feb86659fd93)

static uint64_t mix(uint64_t lane, uint64_t word) {
    lane += word * P1;
    return (lane << 31 | lane >> 33) * P2;
}

uint64_t pd_hash64(const void *data, size_t bytes) {
    const unsigned char *at = data;
    uint64_t lane[4] = {1, 2, 3, 4}, word[4] = {0};
    size_t left = bytes;
    for (; left >= sizeof word; left -= sizeof word, at += sizeof word) {
        memcpy(word, at, sizeof word);
        for (int i = 0; i < 4; i++) lane[i] = mix(lane[i], word[i]);
    }
    memset(word, 0, sizeof word);
    if (left) memcpy(word, at, left);
    uint64_t h = bytes;
    for (int i = 0; i < 4; i++) h = mix(h, mix(lane[i], word[i]));
    h = (h ^ h >> 32) * P1;
    h = (h ^ h >> 29) * P2;
    return h ^ h >> 32;
}
