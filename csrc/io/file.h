/* The calls by which this room changes and reads files, in one table: only its entries ask the system, so faults,
   and tests that stop at any call, have one place.

   An entry returns 0 or errno. It tries again after EINTR, and goes on after a short count. Faults (base/fault.h)
   come from here. While a trace is on, each call that changes the disk and succeeds leaves a record: a head of 32
   bytes, little-endian, then path a, path b and the data, without padding or zeros at their ends:

       uint8 op, 3 zeros, int32 file, int64 at, uint32 bytes of a, uint32 bytes of b, uint64 bytes of data

   op is a pd_file_op. `file` is the number of an open file, counted through the process (-1: none): OPEN gives it to
   path a, later records have it in the place of a path. `at` is the offset of WRITE, the new size of TRUNCATE, and
   of OPEN 1 if the call made the file, 2 if the file was opened for writing, else 0. A record stands behind those of
   all calls that had returned when its call began. */
#ifndef PD_IO_FILE_H
#define PD_IO_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum pd_file_op {
    PD_FILE_OPEN = 1,
    PD_FILE_WRITE,
    PD_FILE_TRUNCATE,
    PD_FILE_DATASYNC,
    PD_FILE_SYNC,
    PD_FILE_MKDIR,
    PD_FILE_RENAME,
    PD_FILE_EXCHANGE,
    PD_FILE_LINK,
    PD_FILE_UNLINK,
    PD_FILE_RMDIR
} pd_file_op;

typedef struct pd_open_file {
    int fd;
    int number; /* in the trace */
} pd_open_file;

typedef struct pd_file_ops {
    int (*open)(const char *path, int flags, unsigned mode, pd_open_file *out);
    int (*pwrite)(const pd_open_file *f, const void *from, size_t bytes, int64_t at);
    /* *got < bytes: the file ends there. */
    int (*pread)(const pd_open_file *f, void *to, size_t bytes, int64_t at, size_t *got);
    int (*ftruncate)(const pd_open_file *f, int64_t bytes);
    int (*fdatasync)(const pd_open_file *f);
    int (*fsync)(const pd_open_file *f);
    int (*close)(pd_open_file *f); /* f is closed, whatever it returns */
    int (*mkdir)(const char *path, unsigned mode);
    int (*rename)(const char *from, const char *to); /* EEXIST: there is a `to` */
    int (*exchange)(const char *a, const char *b);   /* each gets the other's name, at once */
    int (*link)(const char *from, const char *to);
    int (*unlink)(const char *path);
    int (*rmdir)(const char *path);
} pd_file_ops;

extern const pd_file_ops *pd_file_calls;

/* Bytes that offsets, lengths and addresses of direct reads and writes are multiples of. */
#define PD_DIRECT_ALIGN 4096
/* Makes an open file bypass the page cache. False: its file system has none to bypass (tmpfs), or cannot. */
bool pd_file_set_direct(const pd_open_file *f);
void pd_file_set_cached(const pd_open_file *f); /* undoes it */

/* PD_E_OS with errno `number`, which is not 0: "op: path: what the system says". */
pd_status pd_file_fail(const char *op, const char *path, int number);
/* The same as an expression of a call: PD_OK if it returned 0. */
static inline pd_status pd_file_status(const char *op, const char *path, int number) {
    return number ? pd_file_fail(op, path, number) : PD_OK;
}

/* Ends the trace, gives its [new] bytes (pd_free), and begins another one if `on`. PD_E_MEMORY: a record did not fit in
   memory, and all are lost. */
pd_status pd_file_trace(bool on, char **out, size_t *bytes);

#endif
