/* CRC-32 as zlib has it (polynomial 0xedb88320). Carry-less products where the processor has them, else eight
   tables. */
#ifndef PD_IO_CRC32_H
#define PD_IO_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of bytes that follow others, whose checksum is `crc` (0: there are none). */
uint32_t pd_crc32(uint32_t crc, const void *data, size_t bytes);
/* What a part's checksum adds to that of a whole in which `bytes` bytes follow the part: the checksum of the whole
   is the exclusive or of this over its parts. */
uint32_t pd_crc32_shift(uint32_t crc, uint64_t bytes);

#endif
