/* Files of records that are read by number: TFRecords, lines, lines of CSV, records of equal length.

   Files are opened for reading only, when a record of theirs is first wanted, and read at positions, so that any
   number of threads and forked processes may read. A read that fails by EIO, or by ESTALE (another host has replaced
   the file), is tried three times more. A file that has changed since it was counted is an error. Reads keep the
   host's lock while the system has the bytes in memory, and give it up where they wait for a disk. Errors begin with
   `op` and name the file, the record and its place. */
#ifndef PD_DATA_FILES_H
#define PD_DATA_FILES_H

#include <stdatomic.h>

#include "data/numbers.h"

typedef enum pd_framing { PD_RECORDS, PD_LINES, PD_FIXED, PD_CSV } pd_framing; /* PD_CSV: quoted newlines end no line */

typedef struct pd_file {
    char *path;
    int64_t size, changed; /* when it was counted: bytes, and the time of its last change in ns */
    const int64_t *starts; /* [borrowed] where each record begins, and where the last one ends: n + 1; NULL: PD_FIXED */
    int64_t first, n;      /* the numbers of its records */
    atomic_int fd;         /* -1: not open */
} pd_file;

typedef struct pd_files {
    const char *op;
    pd_framing framing;
    int64_t head, each; /* PD_FIXED: bytes before the first record, and of each */
    int64_t count, total; /* files, and records of those that have been indexed */
    atomic_int open;
    pd_file *file;
} pd_files;

pd_status pd_files_new(const char *op, pd_framing framing, int64_t count, pd_files **out); /* [new] */
void pd_files_free(pd_files *files);
pd_status pd_files_set(pd_files *files, int64_t i, const char *path, int64_t size, int64_t changed);

/* [new] where the records of file i begin, and where the last one ends. Gives up the host's lock. Fails with PD_E_DATA
   if the file ends within a record or a length is damaged. */
pd_status pd_files_scan(pd_files *files, int64_t i, int64_t **starts, size_t *count);
/* Tells where the n records of file i begin, file after file. PD_FIXED: starts is NULL, and only n counts. Returns how
   many records there are so far. */
int64_t pd_files_index(pd_files *files, int64_t i, const int64_t *starts, int64_t n);

/* Bytes that these records take up in their files. Numbers have been checked. */
int64_t pd_files_bytes(const pd_files *files, const pd_numbers *records);
/* Reads them: so many bytes into `to`; spans[2 i] and spans[2 i + 1] say where record i begins and ends there.
   Checksums are compared. */
pd_status pd_files_rows(pd_files *files, const pd_numbers *records, char *to, int64_t *spans);

/* What scans use: reads [offset, offset + bytes) of a file. */
pd_status pd_file_read(pd_files *files, pd_file *file, int64_t offset, int64_t bytes, char *to);

/* A record's frame: its length, the length's checksum, the data, the data's checksum. */
enum { PD_RECORD_HEAD = 12, PD_RECORD_TAIL = 4 };
uint64_t pd_little_endian(const char *p, int bytes);

#endif
