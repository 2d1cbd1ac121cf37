#include "comm/memory/peek.h"

#include <sys/uio.h>

#include "base/os.h"

pd_peek pd_peek_of(const uint64_t *word) {
    return (pd_peek){.pid = pd_os_pid(), .at = (uint64_t)(uintptr_t)word, .word = *word};
}

bool pd_peek_works(const pd_peek *p) {
    uint64_t word = 0;
    return pd_peek_read(p->pid, p->at, &word, sizeof word) && word == p->word;
}

bool pd_peek_read(int64_t pid, uint64_t at, void *to, size_t bytes) {
    char *next = to;
    while (bytes) {
        size_t most = bytes < (size_t)1 << 30 ? bytes : (size_t)1 << 30;
        struct iovec here = {next, most}, there = {(void *)(uintptr_t)at, most};
        ssize_t n = process_vm_readv((pid_t)pid, &here, 1, &there, 1, 0);
        if (n <= 0) return false;
        next += n;
        at += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return true;
}
