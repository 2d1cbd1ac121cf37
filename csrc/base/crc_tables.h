/* Checksums by eight tables, for any reflected polynomial: what data/crc.c and io/crc32.c do on processors without a
   faster way. */
#ifndef PD_BASE_CRC_TABLES_H
#define PD_BASE_CRC_TABLES_H

#include <stddef.h>
#include <stdint.h>

typedef uint32_t pd_crc_tables[8][256];

static inline void pd_crc_tables_make(pd_crc_tables table, uint32_t polynomial) {
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;
        for (int i = 0; i < 8; i++) crc = crc >> 1 ^ (crc & 1 ? polynomial : 0);
        table[0][b] = crc;
    }
    for (int b = 0; b < 256; b++)
        for (int k = 1; k < 8; k++) table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 255];
}

/* The register after these bytes. The caller inverts it before and after. */
static inline uint32_t pd_crc_by_tables(pd_crc_tables table, uint32_t crc, const uint8_t *p, size_t n) {
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t w = 0;
        for (int k = 0; k < 8; k++) w |= (uint64_t)p[k] << (8 * k);
        w ^= crc;
        crc = 0;
        for (int k = 0; k < 8; k++) crc ^= table[7 - k][w >> (8 * k) & 255];
    }
    for (; n; n--) crc = crc >> 8 ^ table[0][(crc ^ *p++) & 255];
    return crc;
}

#endif
