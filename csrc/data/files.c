#include "data/files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/host.h"
#include "base/mem.h"
#include "base/os.h"
#include "data/crc.h"

enum { KEPT = 256, RETRIES = 3 }; /* files that stay open, and how often a read is tried again */
#define HELD (PD_RELEASE_NS * 4) /* bytes of memory that are copied in PD_RELEASE_NS */

pd_status pd_files_new(const char *op, pd_framing framing, int64_t count, pd_files **out) {
    pd_files *made;
    PD_TRY(pd_calloc(sizeof *made, op, &made));
    pd_status status = pd_calloc((size_t)count * sizeof *made->file, op, &made->file);
    if (status) {
        pd_free(made);
        return PD_TRAIL(status);
    }
    made->op = op;
    made->framing = framing;
    made->count = count;
    for (int64_t i = 0; i < count; i++) made->file[i].fd = -1;
    *out = made;
    return PD_OK;
}

void pd_files_free(pd_files *files) {
    for (int64_t i = 0; i < files->count; i++) {
        if (files->file[i].fd >= 0) close(files->file[i].fd);
        pd_free(files->file[i].path);
    }
    pd_free(files->file);
    pd_free(files);
}

pd_status pd_files_set(pd_files *files, int64_t i, const char *path, int64_t size, int64_t changed) {
    pd_file *f = &files->file[i];
    size_t bytes = strlen(path) + 1;
    PD_TRY(pd_malloc(bytes, files->op, &f->path));
    memcpy(f->path, path, bytes);
    f->size = size;
    f->changed = changed;
    return PD_OK;
}

/* ---- positional reads -------------------------------------------------------------------------------------------- */

static pd_status system_error(const pd_files *files, const pd_file *f, const char *what, int error) {
    char text[128];
    return pd_fail(PD_E_OS, "%s: %s: cannot %s: %s", files->op, f->path, what, strerror_r(error, text, sizeof text));
}

static pd_status open_file(const pd_files *files, const pd_file *f, int *out) {
    struct stat s;
    int fd;
    do fd = open(f->path, O_RDONLY | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    if (fd < 0) return system_error(files, f, "open it", errno);
    if (fstat(fd, &s)) {
        pd_status status = system_error(files, f, "ask for its size", errno);
        close(fd);
        return status;
    }
    int64_t changed = (int64_t)s.st_mtim.tv_sec * 1000000000 + s.st_mtim.tv_nsec;
    if (s.st_size == f->size && changed == f->changed) {
        *out = fd;
        return PD_OK;
    }
    close(fd);
    return pd_fail(PD_E_DATA, "%s: %s has changed since its records were counted: got %lld bytes (expected %lld, last "
                   "written at the same time)", files->op, f->path, (long long)s.st_size, (long long)f->size);
}

/* The file's descriptor. *own: the caller closes it, since so many are open already. */
static pd_status descriptor(pd_files *files, pd_file *f, int *fd, bool *own) {
    *own = false;
    if ((*fd = f->fd) >= 0) return PD_OK;
    PD_TRY(open_file(files, f, fd));
    int none = -1;
    if (atomic_fetch_add(&files->open, 1) < KEPT && atomic_compare_exchange_strong(&f->fd, &none, *fd)) return PD_OK;
    atomic_fetch_sub(&files->open, 1);
    *own = true;
    return PD_OK;
}

/* Opens the file again under the same descriptor: others may be reading from it. */
static void reopen(const pd_files *files, const pd_file *f, int fd) {
    int other;
    if (open_file(files, f, &other)) return; /* the next read fails again */
    dup3(other, fd, O_CLOEXEC);
    close(other);
}

/* Bytes that could be read without waiting. */
static int64_t read_cached(int fd, int64_t offset, int64_t bytes, char *to) {
    struct iovec v = {to, (size_t)bytes};
    ssize_t got = preadv2(fd, &v, 1, offset, RWF_NOWAIT);
    return got < 0 ? 0 : got;
}

/* Reads with retries; the host's lock has been given up. *got: bytes that are there already. */
static pd_status read_waiting(pd_files *files, pd_file *f, int fd, int64_t offset, int64_t bytes, char *to) {
    for (int retry = 0; bytes;) {
        ssize_t got = pread(fd, to, (size_t)bytes, offset);
        int error = errno;
        if (!got)
            return pd_fail(PD_E_DATA, "%s: %s ends at byte %lld (expected %lld bytes): it was cut while it was read",
                           files->op, f->path, (long long)offset, (long long)f->size);
        if (got > 0) {
            to += got;
            offset += got;
            bytes -= got;
        } else if (error == EINTR) {
            continue;
        } else if ((error == ESTALE || error == EIO) && retry++ < RETRIES) {
            pd_os_sleep(retry * 50000000);
            reopen(files, f, fd);
        } else {
            return system_error(files, f, "read it", error);
        }
    }
    return PD_OK;
}

pd_status pd_file_read(pd_files *files, pd_file *f, int64_t offset, int64_t bytes, char *to) {
    int fd = f->fd;
    if (fd >= 0 && (double)bytes < HELD) {
        int64_t got = read_cached(fd, offset, bytes, to);
        if (got == bytes) return PD_OK;
        offset += got;
        bytes -= got;
        to += got;
    }
    bool own;
    void *token = pd_host_release();
    pd_status status = descriptor(files, f, &fd, &own);
    PD_THEN(read_waiting(files, f, fd, offset, bytes, to));
    if (own && fd >= 0) close(fd);
    pd_host_acquire(token);
    return status;
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

int64_t pd_files_index(pd_files *files, int64_t i, const int64_t *starts, int64_t n) {
    pd_file *f = &files->file[i];
    f->starts = starts;
    f->n = n;
    f->first = i ? f[-1].first + f[-1].n : 0;
    return files->total = f->first + n;
}

/* The file of a record, `hint` or another. */
static pd_file *file_of(const pd_files *files, int64_t number, pd_file *hint) {
    if (number >= hint->first && number < hint->first + hint->n) return hint;
    int64_t low = 0, high = files->count - 1; /* the last one that begins at the number, or before it */
    while (low < high) {
        int64_t middle = high - (high - low) / 2;
        if (files->file[middle].first <= number) low = middle;
        else high = middle - 1;
    }
    return &files->file[low];
}

static int64_t start_of(const pd_files *files, const pd_file *f, int64_t record) {
    return f->starts ? f->starts[record] : files->head + record * files->each;
}

/* How many of the numbers from i on are records that follow each other in one file. */
static int64_t run_length(const pd_numbers *all, int64_t i, const pd_file *f) {
    int64_t first = pd_number_at(all, i), most = f->first + f->n - first, n = 1;
    if (most > all->n - i) most = all->n - i;
    if (!all->list && all->step == 1) return most;
    while (n < most && pd_number_at(all, i + n) == first + n) n++;
    return n;
}

int64_t pd_files_bytes(const pd_files *files, const pd_numbers *records) {
    int64_t bytes = 0;
    pd_file *f = files->file;
    for (int64_t i = 0, n; i < records->n; i += n) {
        int64_t number = pd_number_at(records, i);
        f = file_of(files, number, f);
        n = run_length(records, i, f);
        bytes += start_of(files, f, number - f->first + n) - start_of(files, f, number - f->first);
    }
    return bytes;
}

uint64_t pd_little_endian(const char *p, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)(unsigned char)p[i] << (8 * i);
    return value;
}

static pd_status check_record(const pd_files *files, const pd_file *f, int64_t record, const char *p, int64_t bytes) {
    uint64_t length = pd_little_endian(p, 8);
    int64_t data = bytes - PD_RECORD_HEAD - PD_RECORD_TAIL;
    if (length != (uint64_t)data)
        return pd_fail(PD_E_DATA,
                       "%s: %s: record %lld at byte %lld has %llu bytes (expected %lld, as when records were "
                       "counted)",
                       files->op, f->path, (long long)record, (long long)f->starts[record], (unsigned long long)length,
                       (long long)data);
    uint32_t got = pd_crc_masked(pd_crc32c(0, p + PD_RECORD_HEAD, (size_t)data));
    uint32_t expected = (uint32_t)pd_little_endian(p + bytes - PD_RECORD_TAIL, PD_RECORD_TAIL);
    if (got == expected) return PD_OK;
    return pd_fail(PD_E_DATA, "%s: %s: record %lld at byte %lld is damaged: its data have checksum 0x%08x (expected "
                   "0x%08x)", files->op, f->path, (long long)record, (long long)f->starts[record], got, expected);
}

static int64_t without_newline(const char *p, int64_t begin, int64_t end) {
    if (end > begin && p[end - 1] == '\n') end--;
    return end > begin && p[end - 1] == '\r' ? end - 1 : end;
}

/* Sets the spans of n records that have been read to `to`, where the first one begins at `at`. */
static pd_status frame(const pd_files *files, const pd_file *f, int64_t record, int64_t n, const char *to, int64_t at,
                       int64_t *spans) {
    int64_t from = start_of(files, f, record);
    for (int64_t i = 0; i < n; i++) {
        int64_t begin = at + start_of(files, f, record + i) - from,
                end = at + start_of(files, f, record + i + 1) - from;
        if (files->framing == PD_RECORDS) {
            PD_TRY(check_record(files, f, record + i, to + begin, end - begin));
            begin += PD_RECORD_HEAD;
            end -= PD_RECORD_TAIL;
        } else if (files->framing != PD_FIXED) {
            end = without_newline(to, begin, end);
        }
        spans[2 * i] = begin;
        spans[2 * i + 1] = end;
    }
    return PD_OK;
}

pd_status pd_files_rows(pd_files *files, const pd_numbers *records, char *to, int64_t *spans) {
    pd_file *f = files->file;
    int64_t at = 0;
    for (int64_t i = 0, n; i < records->n; i += n) {
        int64_t number = pd_number_at(records, i);
        f = file_of(files, number, f);
        n = run_length(records, i, f);
        int64_t record = number - f->first, begin = start_of(files, f, record);
        int64_t bytes = start_of(files, f, record + n) - begin;
        PD_TRY(pd_file_read(files, f, begin, bytes, to + at));
        PD_TRY(frame(files, f, record, n, to, at, spans + 2 * i));
        at += bytes;
    }
    return PD_OK;
}
