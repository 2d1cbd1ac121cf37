/* SHA-256 and HMAC (FIPS 180-4, RFC 2104), by which a process proves that it knows a secret without sending it. */
#ifndef PD_BASE_SHA256_H
#define PD_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define PD_SHA256_BYTES 32

typedef struct pd_sha256 {
    uint32_t h[8];
    uint64_t bytes; /* added so far; bytes % 64 of them wait in `block` */
    uint8_t block[64];
} pd_sha256;

void pd_sha256_init(pd_sha256 *s);
void pd_sha256_add(pd_sha256 *s, const void *data, size_t bytes);
void pd_sha256_end(pd_sha256 *s, uint8_t out[PD_SHA256_BYTES]); /* *s is then used up */

void pd_hmac(const void *key, size_t key_bytes, const void *data, size_t bytes, uint8_t out[PD_SHA256_BYTES]);

#endif
