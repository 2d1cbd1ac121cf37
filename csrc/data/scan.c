/* Where the records of a file begin. */
#include <string.h>

#include "base/host.h"
#include "base/mem.h"
#include "data/crc.h"
#include "data/files.h"

enum { WINDOW = 1 << 20, SMALL = 1 << 12, FEW = 16 }; /* bytes that are read at a time; few per read: only the heads */

typedef struct scan {
    pd_files *files;
    pd_file *file;
    char *bytes;
    int64_t begin, end; /* what of the file `bytes` has */
    int64_t *starts;
    size_t n, room;
} scan;

static pd_status add(scan *s, int64_t at) {
    if (s->n == s->room) PD_TRY(pd_grow(&s->starts, &s->room, s->n + 1, sizeof *s->starts, s->files->op));
    s->starts[s->n++] = at;
    return PD_OK;
}

/* Has the window begin at `at`, with up to `most` bytes. */
static pd_status move(scan *s, int64_t at, int64_t most) {
    s->begin = s->end = at;
    if (most > s->file->size - at) most = s->file->size - at;
    PD_TRY(pd_file_read(s->files, s->file, at, most, s->bytes));
    s->end = at + most;
    return PD_OK;
}

static pd_status cut(const scan *s, int64_t at, uint64_t wanted) {
    return pd_fail(
        PD_E_DATA, "%s: %s is cut: record %zu at byte %lld ends with the file after %lld bytes (expected %llu)",
        s->files->op, s->file->path, s->n, (long long)at, (long long)(s->file->size - at), (unsigned long long)wanted);
}

static pd_status scan_records(scan *s) {
    uint64_t frames = PD_RECORD_HEAD + PD_RECORD_TAIL;
    for (int64_t at = 0, next; at < s->file->size; at = next) {
        uint64_t left = (uint64_t)(s->file->size - at);
        if (left < PD_RECORD_HEAD) return cut(s, at, frames);
        if (at + PD_RECORD_HEAD > s->end) {
            bool large = s->n && at / (int64_t)s->n > WINDOW / FEW;
            PD_TRY(move(s, at, large ? SMALL : WINDOW));
        }
        const char *p = s->bytes + (at - s->begin);
        uint64_t length = pd_little_endian(p, 8);
        uint32_t got = pd_crc_masked(pd_crc32c(0, p, 8)), expected = (uint32_t)pd_little_endian(p + 8, 4);
        if (got != expected)
            return pd_fail(PD_E_DATA,
                           "%s: %s is damaged, or no file of TFRecords: the length of record %zu at byte %lld "
                           "has checksum 0x%08x (expected 0x%08x)",
                           s->files->op, s->file->path, s->n, (long long)at, got, expected);
        if (left < frames || length > left - frames) return cut(s, at, length + frames);
        PD_TRY(add(s, at));
        next = at + (int64_t)(length + frames);
    }
    return add(s, s->file->size);
}

/* The next newline, or NULL. Of CSV only one outside quotes counts; *quoted: whether p stands within them. */
static const char *newline(const scan *s, const char *p, const char *end, bool *quoted) {
    if (s->files->framing == PD_LINES) return memchr(p, '\n', (size_t)(end - p));
    for (; p < end; p++) {
        if (*p == '"') *quoted = !*quoted;
        if (*p == '\n' && !*quoted) return p;
    }
    return NULL;
}

static pd_status scan_lines(scan *s) {
    int64_t size = s->file->size;
    bool quoted = false;
    if (size) PD_TRY(add(s, 0));
    while (s->end < size) {
        PD_TRY(move(s, s->end, WINDOW));
        const char *p = s->bytes, *end = s->bytes + (s->end - s->begin);
        while ((p = newline(s, p, end, &quoted))) {
            p++;
            int64_t at = s->begin + (p - s->bytes);
            if (at < size) PD_TRY(add(s, at));
        }
    }
    return add(s, size);
}

pd_status pd_files_scan(pd_files *files, int64_t i, int64_t **starts, size_t *count) {
    scan s = {.files = files, .file = &files->file[i]};
    void *token = pd_host_release();
    pd_status status = pd_malloc(WINDOW, files->op, &s.bytes);
    PD_THEN((files->framing == PD_RECORDS ? scan_records : scan_lines)(&s));
    pd_free(s.bytes);
    pd_host_acquire(token);
    if (status) {
        pd_free(s.starts);
        return status;
    }
    *starts = s.starts;
    *count = s.n;
    return PD_OK;
}
