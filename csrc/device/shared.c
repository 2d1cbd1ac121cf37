#include "device/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/mem.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* of Linux 6.1; older headers do not have it */
#endif
#define CHUNK ((size_t)256 << 20)
#define SPARE ((size_t)64 << 20) /* bytes that are left to the rest of the machine */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) /* nobody can truncate the file under our mapping (SIGBUS) */

/* Gives the whole huge pages among the mapped bytes at `at` one huge page each. It copies what is there and leaves
   holes as they are, so each gets one small page first: that costs half of what small pages cost. False: the kernel
   does not do it, or has none left. */
static bool make_huge(int fd, char *ptr, size_t at, size_t bytes) {
    const size_t whole = bytes & ~(PD_HUGE_PAGE - 1);
    for (size_t k = 0; k < whole; k += PD_HUGE_PAGE)
        if (fallocate(fd, 0, (off_t)(at + k), 1)) return false;
    if (whole && madvise(ptr + at, whole, MADV_COLLAPSE)) return false;
    if (whole) madvise(ptr + at, whole, MADV_DONTNEED); /* they count as nobody's yet: nobody has touched them */
    return true;
}

static pd_status check_room(size_t bytes, size_t rest) {
    uint64_t left = pd_limit_memory("");
    if (rest + SPARE <= left) return PD_OK;
    return pd_fail(PD_E_MEMORY,
                   "shared memory: tried to allocate %zu bytes: the machine or the memory cgroup has %llu MiB left, of "
                   "which the last %zu MiB stay free",
                   bytes, (unsigned long long)(left >> 20), SPARE >> 20);
}

/* Uses fallocate, so that a lack of memory is an error here and not a SIGBUS at the first access. Allocates in chunks,
   because other ranks allocate at the same time. A memfd has no limit of its own: when memory runs out, the kernel
   kills a process instead of returning ENOSPC. */
static pd_status reserve(int fd, size_t bytes, void *ptr) {
    bool huge = bytes >= PD_LARGE;
    for (size_t done = 0, n; done < bytes; done += n) {
        n = bytes - done < CHUNK ? bytes - done : CHUNK;
        PD_TRY(check_room(bytes, bytes - done));
        if (huge) huge = make_huge(fd, ptr, done, n);
        int rc;
        do rc = fallocate(fd, 0, (off_t)done, (off_t)n);
        while (rc && errno == EINTR);
        if (rc) return pd_fail(PD_E_MEMORY, "shared memory: tried to allocate %zu bytes: %s", bytes, strerror(errno));
    }
    return PD_OK;
}

/* Large memory begins at a multiple of PD_HUGE_PAGE, which huge pages need: it is mapped into a reserved range. */
static pd_status map(int fd, size_t bytes, void **ptr) {
    const size_t slack = bytes < PD_LARGE ? 0 : PD_HUGE_PAGE;
    char *from = NULL, *at = NULL;
    if (slack) {
        from = mmap(NULL, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (from == MAP_FAILED) return pd_fail(PD_E_MEMORY, "shared memory: cannot map %zu bytes", bytes);
        at = from + (-(uintptr_t)from & (PD_HUGE_PAGE - 1));
    }
    void *p = pd_fault_hit() ? MAP_FAILED
                             : mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), fd, 0);
    if (p == MAP_FAILED) {
        if (from) munmap(from, bytes + slack);
        return pd_fail(PD_E_MEMORY, "shared memory: cannot map %zu bytes", bytes);
    }
    if (at > from) munmap(from, (size_t)(at - from));
    const size_t page = (size_t)getpagesize(), end = (bytes + page - 1) & ~(page - 1);
    if (from && from + slack > at) munmap(at + end, (size_t)(from + bytes + slack - at - end));
    *ptr = p;
    return PD_OK;
}

static pd_status new_memory(size_t bytes, bool sparse, void **ptr, int *out) {
    pd_status status = PD_OK;
    if (!sparse) PD_TRY(check_room(bytes, bytes));
    int fd = pd_fault_hit() ? -1 : memfd_create("pydist", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return pd_fail(PD_E_MEMORY, "shared memory: memfd_create: %s", strerror(errno));
    if (ftruncate(fd, (off_t)bytes) || fcntl(fd, F_ADD_SEALS, SEALS))
        PD_TRY_TO(fail, pd_fail(errno == EFBIG || errno == ENOSPC || errno == ENOMEM ? PD_E_MEMORY : PD_E_OS,
                                "shared memory: cannot size and seal the memory file of %zu bytes: %s", bytes,
                                strerror(errno)));
    PD_TRY_TO(fail, map(fd, bytes, ptr));
    if (sparse || !(status = reserve(fd, bytes, *ptr))) {
        *out = fd;
        return PD_OK;
    }
    pd_shared_unmap(*ptr, bytes);
fail:
    close(fd);
    return status;
}

pd_status pd_shared_new(size_t bytes, void **ptr, int *fd) { return new_memory(bytes, false, ptr, fd); }
pd_status pd_shared_new_sparse(size_t bytes, void **ptr, int *fd) { return new_memory(bytes, true, ptr, fd); }

pd_status pd_shared_map(int fd, size_t bytes, void **ptr) {
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) || (size_t)st.st_size < bytes)
        return pd_fail(
            PD_E_VALUE,
            "shared memory: descriptor %d is not a shared memory file of the announced size (expected %zu bytes)", fd,
            bytes);
    return map(fd, bytes, ptr);
}

void pd_shared_unmap(void *ptr, size_t bytes) { munmap(ptr, bytes); }
