#include "base/sha256.h"

#include <string.h>

static const uint32_t round_words[64] = { /* the first 32 bits of the fractions of the primes' cube roots */
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t turn(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void absorb(uint32_t h[8], const uint8_t block[64]) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] + (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
    }
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t a = v[0], e = v[4], choice = (e & v[5]) ^ (~e & v[6]), most = (a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]);
        uint32_t t = v[7] + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + choice + round_words[i] + w[i];
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t;
        v[0] = t + (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + most;
    }
    for (int i = 0; i < 8; i++) h[i] += v[i];
}

void pd_sha256_init(pd_sha256 *s) {
    *s = (pd_sha256){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab,
                           0x5be0cd19}};
}

void pd_sha256_add(pd_sha256 *s, const void *data, size_t bytes) {
    const uint8_t *from = data;
    while (bytes) {
        size_t at = s->bytes % 64, n = 64 - at < bytes ? 64 - at : bytes;
        memcpy(s->block + at, from, n);
        s->bytes += n;
        from += n;
        bytes -= n;
        if (at + n == 64) absorb(s->h, s->block);
    }
}

void pd_sha256_end(pd_sha256 *s, uint8_t out[PD_SHA256_BYTES]) {
    uint64_t bits = s->bytes * 8;
    uint8_t length[8], pad[64] = {0x80};
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    pd_sha256_add(s, pad, 1 + (119 - s->bytes % 64) % 64);
    pd_sha256_add(s, length, sizeof length);
    for (int i = 0; i < PD_SHA256_BYTES; i++) out[i] = (uint8_t)(s->h[i / 4] >> (24 - i % 4 * 8));
}

void pd_hmac(const void *key, size_t key_bytes, const void *data, size_t bytes, uint8_t out[PD_SHA256_BYTES]) {
    uint8_t inner[64] = {0}, outer[64];
    pd_sha256 s;
    pd_sha256_init(&s);
    if (key_bytes > 64) {
        pd_sha256_add(&s, key, key_bytes);
        pd_sha256_end(&s, inner);
        pd_sha256_init(&s);
    } else if (key_bytes) {
        memcpy(inner, key, key_bytes);
    }
    for (int i = 0; i < 64; i++) {
        outer[i] = inner[i] ^ 0x5c;
        inner[i] ^= 0x36;
    }
    pd_sha256_add(&s, inner, 64);
    pd_sha256_add(&s, data, bytes);
    pd_sha256_end(&s, out);
    pd_sha256_init(&s);
    pd_sha256_add(&s, outer, 64);
    pd_sha256_add(&s, out, PD_SHA256_BYTES);
    pd_sha256_end(&s, out);
}
