/* The secret that a job's processes share: where it comes from, and the proof of knowing it. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/flags.h"
#include "comm/control/protocol.h"

#define SECRET_FILE_BYTES 4096

void pd_control_mac(const uint8_t secret[PD_SECRET_BYTES], const char *purpose, const pd_control_hello *hello,
                    const uint8_t nonce[PD_NONCE_BYTES], uint8_t out[PD_SHA256_BYTES]) {
    uint8_t text[8 + sizeof *hello + PD_NONCE_BYTES] = {0};
    memcpy(text, purpose, strnlen(purpose, 8));
    memcpy(text + 8, hello, sizeof *hello);
    memcpy(text + 8 + sizeof *hello, nonce, PD_NONCE_BYTES);
    pd_hmac(secret, PD_SECRET_BYTES, text, sizeof text, out);
}

pd_status pd_control_secret_load(const char *path, uint8_t secret[PD_SECRET_BYTES]) {
    uint8_t text[SECRET_FILE_BYTES];
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text);
    int error = errno;
    bool known = fd >= 0 && !fstat(fd, &st);
    if (fd >= 0) close(fd);
    if (n < 0 || !known)
        return pd_fail(PD_E_DIST, "control: cannot read PYDIST_SECRET_FILE %s: %s", path, strerror(error));
    if (st.st_mode & 077)
        return pd_fail(PD_E_DIST, "control: other users may read PYDIST_SECRET_FILE %s: got mode %03o (expected 600)",
                       path, (unsigned)st.st_mode & 0777);
    ssize_t bytes = n;
    while (n && (text[n - 1] == '\n' || text[n - 1] == '\r')) n--; /* some editors end the last line, others do not */
    if (bytes < PD_SECRET_BYTES || n < PD_SECRET_BYTES / 2) /* random bytes may end like a line */
        return pd_fail(PD_E_DIST, "control: PYDIST_SECRET_FILE %s has %zd bytes (expected at least %d random bytes)",
                       path, n, PD_SECRET_BYTES);
    pd_sha256 s;
    pd_sha256_init(&s);
    pd_sha256_add(&s, text, (size_t)n);
    pd_sha256_end(&s, secret);
    explicit_bzero(text, sizeof text);
    return PD_OK;
}

pd_status pd_control_secret_file(uint8_t secret[PD_SECRET_BYTES], bool *found) {
    const char *path = pd_flags_get()->SECRET_FILE;
    memset(secret, 0, PD_SECRET_BYTES);
    *found = *path;
    return *found ? pd_control_secret_load(path, secret) : PD_OK;
}

pd_status pd_control_secret_read(int fd, uint8_t secret[PD_SECRET_BYTES]) {
    ssize_t n;
    bool found;
    if (fd < 0) {
        PD_TRY(pd_control_secret_file(secret, &found));
        if (found || pd_flags_get()->INSECURE) return PD_OK;
        return pd_fail(PD_E_DIST,
                       "control: there is no secret (expected a launcher's descriptor in PYDIST_SECRET_FD, or "
                       "PYDIST_SECRET_FILE)");
    }
    do n = pread(fd, secret, PD_SECRET_BYTES, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == ESPIPE) { /* a pipe: at most one worker can read it */
        size_t got = 0;
        do {
            n = read(fd, secret + got, PD_SECRET_BYTES - got);
            if (n > 0) got += (size_t)n;
        } while (got < PD_SECRET_BYTES && (n > 0 || (n < 0 && errno == EINTR)));
        n = (ssize_t)got;
    }
    int error = errno;
    if (fd > STDERR_FILENO) close(fd);
    if (n == PD_SECRET_BYTES) return PD_OK;
    return pd_fail(PD_E_DIST, "control: cannot read the secret from descriptor %d: %s", fd,
                   n < 0 ? strerror(error) : "too short");
}
