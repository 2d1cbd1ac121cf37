#include "device/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/mem.h"

#define CHUNK ((size_t)256 << 20)
#define SPARE ((size_t)64 << 20) /* bytes that are left to the rest of the machine */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) /* nobody can truncate the file under our mapping (SIGBUS) */

/* Uses fallocate, not ftruncate, so that a lack of memory is an error here and not a SIGBUS at the first access.
   Allocates in chunks, because other ranks allocate at the same time. A memfd has no limit of its own: when memory runs
   out, the kernel kills a process instead of returning ENOSPC. */
static pd_status reserve(int fd, size_t bytes) {
    for (size_t done = 0, n; done < bytes; done += n) {
        n = bytes - done < CHUNK ? bytes - done : CHUNK;
        uint64_t left = pd_limit_memory("");
        if (bytes - done + SPARE > left)
            return pd_fail(PD_E_MEMORY,
                           "shared memory: tried to allocate %zu bytes: the machine or the memory cgroup has %llu MiB "
                           "left, of which the last %zu MiB stay free",
                           bytes, (unsigned long long)(left >> 20), SPARE >> 20);
        int rc;
        do rc = fallocate(fd, 0, (off_t)done, (off_t)n);
        while (rc && errno == EINTR);
        if (rc) return pd_fail(PD_E_MEMORY, "shared memory: tried to allocate %zu bytes: %s", bytes, strerror(errno));
    }
    return PD_OK;
}

static pd_status map(int fd, size_t bytes, void **ptr) {
    void *p = pd_fault_hit() ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return pd_fail(PD_E_MEMORY, "shared memory: cannot map %zu bytes", bytes);
    *ptr = p;
    return PD_OK;
}

pd_status pd_shared_new(size_t bytes, void **ptr, int *out) {
    pd_status status = PD_OK;
    int fd = pd_fault_hit() ? -1 : memfd_create("pydist", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return pd_fail(PD_E_MEMORY, "shared memory: memfd_create: %s", strerror(errno));
    PD_TRY_TO(fail, reserve(fd, bytes));
    if (fcntl(fd, F_ADD_SEALS, SEALS))
        PD_TRY_TO(fail, pd_fail(PD_E_OS, "shared memory: cannot seal the memory file: %s", strerror(errno)));
    PD_TRY_TO(fail, map(fd, bytes, ptr));
    *out = fd;
    return PD_OK;
fail:
    close(fd);
    return status;
}

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
