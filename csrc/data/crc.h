/* CRC-32C (Castagnoli), the checksum of records. Three streams of SSE 4.2's instruction at a time where the processor
   has it, else eight tables. */
#ifndef PD_DATA_CRC_H
#define PD_DATA_CRC_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of bytes that follow others, whose checksum is `crc` (0: there are none). */
uint32_t pd_crc32c(uint32_t crc, const void *data, size_t bytes);

/* How record files store a checksum, so that checksums of data that hold checksums stay good ones. */
static inline uint32_t pd_crc_masked(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8u; }

#endif
