/* One new file from parts of memory, with the checksums of their blocks made on the way: each byte is read from memory
   once. Threads take spans of the file in turn. */
#ifndef PD_IO_WRITE_H
#define PD_IO_WRITE_H

#include "io/parts.h"

#define PD_WRITE_MEMORY ((int64_t)64 << 20) /* the most that the threads' buffers have together */

/* Makes a file, which must not exist, and writes the parts from `offset` (a multiple of PD_DIRECT_ALIGN) on; what is
   before reads as zeros. Fills parts->crc. direct: past the page cache if the file system can. Does not sync. The
   host's lock has been given up. PD_E_OS: the errno of the first call that failed; the file stays as it is then. */
pd_status pd_write_parts(const char *op, const char *path, const pd_parts *parts, int64_t offset, int threads,
                         bool direct);
/* A small file: makes it, or opens one that exists, writes `bytes` at its begin, and waits for the disk if `sync`. */
pd_status pd_write_small(const char *op, const char *path, bool make, const void *data, size_t bytes, bool sync);
/* Waits until the disk has a file or folder. */
pd_status pd_write_sync(const char *op, const char *path);

#endif
