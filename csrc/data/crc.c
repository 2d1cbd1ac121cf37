#include "data/crc.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "base/cpu.h"
#include "base/crc_tables.h"

#define POLYNOMIAL 0x82f63b78u /* its bits in reverse */
enum { LANE = 256 };           /* bytes of each of three streams */

static uint32_t table[8][256]; /* of a byte with k bytes after it */
static uint32_t shifted[4][256]; /* a byte of a checksum that LANE zeros follow */
static bool fast;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint32_t over_zeros(uint32_t crc, int bytes) {
    for (int i = 0; i < bytes; i++) crc = crc >> 8 ^ table[0][crc & 255];
    return crc;
}

static void prepare(void) {
    pd_crc_tables_make(table, POLYNOMIAL);
    for (int b = 0; b < 256; b++)
        for (int k = 0; k < 4; k++) shifted[k][b] = over_zeros((uint32_t)b << (8 * k), LANE);
#if defined(__x86_64__)
    fast = pd_cpu_isa() >= PD_ISA_AVX2 && __builtin_cpu_supports("sse4.2");
#endif
}

static uint64_t word(const uint8_t *p) {
    uint64_t w;
    memcpy(&w, p, sizeof w);
    return w;
}

#if defined(__x86_64__)
static uint64_t past_lane(uint64_t crc) {
    return shifted[0][crc & 255] ^ shifted[1][crc >> 8 & 255] ^ shifted[2][crc >> 16 & 255] ^ shifted[3][crc >> 24];
}

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t begin, const uint8_t *p, size_t n) {
    uint64_t crc = begin;
    for (; n >= 3 * LANE; n -= 3 * LANE, p += 3 * LANE) {
        uint64_t second = 0, third = 0;
        for (int i = 0; i < LANE; i += 8) {
            crc = __builtin_ia32_crc32di(crc, word(p + i));
            second = __builtin_ia32_crc32di(second, word(p + LANE + i));
            third = __builtin_ia32_crc32di(third, word(p + 2 * LANE + i));
        }
        crc = past_lane(past_lane(crc) ^ second) ^ third;
    }
    for (; n >= 8; n -= 8, p += 8) crc = __builtin_ia32_crc32di(crc, word(p));
    for (; n; n--) crc = __builtin_ia32_crc32qi((uint32_t)crc, *p++);
    return (uint32_t)crc;
}
#else
#define by_instruction(crc, p, n) pd_crc_by_tables(table, crc, p, n)
#endif

uint32_t pd_crc32c(uint32_t crc, const void *data, size_t bytes) {
    pthread_once(&once, prepare);
    return fast ? ~by_instruction(~crc, data, bytes) : ~pd_crc_by_tables(table, ~crc, data, bytes);
}
