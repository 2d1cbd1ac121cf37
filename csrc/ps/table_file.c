/* A table in a file that all workers map. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ps/table_impl.h"

static pd_status give_place(pd_table *t, size_t first, size_t bytes) {
    if (t->fd < 0 || !bytes) return PD_OK;
    for (size_t e = first / EXTENT; e <= (first + bytes - 1) / EXTENT; e++) {
        if (t->extents[e]) continue;
        const size_t left = t->bulk_bytes - e * EXTENT;
        int rc = pd_fault_now(PD_FAULT_NOSPACE) ? ENOSPC : 0;
        if (!rc && fallocate(t->fd, 0, (off_t)(e * EXTENT), (off_t)(left < EXTENT ? left : EXTENT))) rc = errno;
        if (rc) return pd_fail(PD_E_OS, "push: no place on the disk for rows of table '%s': %s", t->name, strerror(rc));
        t->extents[e] = 1;
    }
    return PD_OK;
}

pd_status pd_table_give_places(pd_table *t, const int64_t *ids, int64_t n) {
    for (int64_t i = 0; i < n && t->fd >= 0; i++) {
        PD_TRY(give_place(t, t->at_rows + (size_t)(ids[i] * t->dim) * 4, (size_t)t->dim * 4));
        PD_TRY(give_place(t, t->at_states + (size_t)(ids[i] * t->per_row) * 4, (size_t)t->per_row * 4));
    }
    return PD_OK;
}

static pd_status file_error(const char *path, int e) {
    return pd_fail(e == ENOSPC ? PD_E_OS : PD_E_VALUE,
                   "table: %s cannot be opened or made: %s (expected a file that can be written)", path, strerror(e));
}

bool pd_table_is_same(const pd_table_options *a, const pd_table_options *b) {
    return a->rows == b->rows && a->dim == b->dim && a->rule == b->rule && a->start == b->start && a->seed == b->seed &&
           a->scale == b->scale;
}

pd_status pd_table_open_file(pd_table *t, const char *path) {
    file_head h = {.o = t->head->o}, old;
    memcpy(h.magic, MAGIC, sizeof h.magic);
    struct stat st;
    t->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (t->fd < 0 || fstat(t->fd, &st)) return file_error(path, errno);
    if (st.st_size == 0 && !t->ps->rank) {
        if (ftruncate(t->fd, (off_t)t->bulk_bytes) || fallocate(t->fd, 0, 0, (off_t)t->at_rows) ||
            pwrite(t->fd, &h, sizeof h, 0) != sizeof h)
            return file_error(path, errno ? errno : EIO);
    } else if (pread(t->fd, &old, sizeof old, 0) != sizeof old || memcmp(old.magic, h.magic, sizeof h.magic)) {
        return pd_fail(PD_E_VALUE, "table: %s is no table (expected a file of EmbeddingTable)", path);
    } else if (!pd_table_is_same(&old.o, &h.o)) {
        return pd_fail(PD_E_VALUE,
                       "table: %s has %" PRId64 " rows of %d with rule %d (expected %" PRId64
                       " rows of %d with rule %d, "
                       "and the same seed and start)",
                       path, old.o.rows, old.o.dim, old.o.rule, h.o.rows, h.o.dim, h.o.rule);
    } else if ((size_t)st.st_size != t->bulk_bytes) {
        return pd_fail(PD_E_VALUE, "table: %s has %lld bytes (expected %zu: it is cut off)", path,
                       (long long)st.st_size, t->bulk_bytes);
    }
    PD_TRY(pd_calloc(t->bulk_bytes / EXTENT + 1, "table", &t->extents));
    void *p = mmap(NULL, t->bulk_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, t->fd, 0);
    if (p == MAP_FAILED) return file_error(path, errno);
    t->bulk = p;
    madvise(p, t->bulk_bytes, MADV_RANDOM);
    return PD_OK;
}
