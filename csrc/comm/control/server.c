#include <errno.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/flags.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/control/control_impl.h"

#define BACKLOG (16 << 20) /* a rank that does not read counts as dead after so many unsent bytes */

/* ---- connections ------------------------------------------------------------------------------------------------- */

void pd_control_send(pd_conn *c, int kind, uint32_t id, const void *head, size_t head_bytes, const void *body, size_t n,
                       int handle) {
    if (c->closing && kind != PD_CONTROL_REFUSED) return;
    if (c->wire.pending > BACKLOG || pd_wire_queue(&c->wire, kind, id, head, head_bytes, body, n, handle)) {
        pd_log(PD_LOG_WARN, "control: closing the connection of rank %d: it does not read its messages", c->rank);
        shutdown(c->wire.fd, SHUT_RDWR); /* the next poll sees it closed */
        return;
    }
    pd_wire_flush(&c->wire);
}

static void drop(pd_control_server *s, pd_conn **at, int64_t now) {
    pd_conn *c = *at;
    *at = c->next;
    pd_control_store_forget(s, c);
    if (c->rank < 0) {
        s->strangers[pd_conn_listen(c)]--;
    } else {
        s->peers[c->rank].conn = NULL;
        pd_peer_gone(s, c->rank, now);
    }
    pd_wire_fini(&c->wire);
    pd_free(c);
}

bool pd_control_serve(pd_control_server *s, pd_conn *c, int64_t now) {
    for (;;) {
        pd_wire_state state = pd_wire_read(&c->wire);
        const char *bad = NULL;
        if (state == PD_WIRE_MORE) return true;
        if (state == PD_WIRE_FRAME && c->rank >= 0) {
            s->peers[c->rank].heard = now;
            s->peers[c->rank].warned = false;
        }
        if (state == PD_WIRE_FRAME && c->closing) continue;
        if (state == PD_WIRE_FRAME) {
            if (c->rank < 0) bad = pd_handshake_frame(s, c, now);
            else if (c->wire.head.kind == PD_CONTROL_CALL) bad = pd_control_store_call(s, c, now);
            else if (c->wire.head.kind == PD_CONTROL_EVENT) bad = pd_peer_event(s, c);
            else if (c->wire.head.kind != PD_CONTROL_PONG)
                bad = "it sent a message of an unknown kind";
            if (!bad) continue;
        } else {
            bad = c->greeted && c->rank < 0
                      ? "it did not accept the server's proof: it has another secret, or belongs to another job"
                      : c->wire.why;
        }
        if (c->rank < 0 && !c->closing) pd_handshake_refused(s, c, bad);
        else if (state != PD_WIRE_CLOSED)
            pd_log(PD_LOG_WARN, "control: closing the connection of rank %d: %s", c->rank, bad);
        return false;
    }
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

enum { POLL_WAKE, POLL_LISTEN, POLL_CONNS = POLL_LISTEN + PD_LISTENS };

/* Polls: wake, listening, one per connection, one per pidfd, in this order. */
static pd_status fill_polls(pd_control_server *s, size_t *n, int64_t now, int64_t *until) {
    size_t want = POLL_CONNS + (size_t)s->world;
    bool heartbeat = false;
    for (pd_conn *c = s->conns; c; c = c->next) want++;
    PD_TRY(pd_grow(&s->polls, &s->polls_cap, want, sizeof *s->polls, "control"));
    *n = 0;
    *until = pd_control_store_deadline(s);
    s->polls[(*n)++] = (struct pollfd){.fd = s->wake, .events = POLLIN};
    for (int i = 0; i < PD_LISTENS; i++) {
        int fd = pd_handshake_is_open(s, i, now) ? s->listening[i] : -1;
        s->polls[(*n)++] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    if (s->shut > now) *until = pd_earlier(*until, s->shut);
    for (pd_conn *c = s->conns; c; c = c->next) {
        short events = c->wire.pending ? POLLIN | POLLOUT : POLLIN;
        s->polls[(*n)++] = (struct pollfd){.fd = c->wire.fd, .events = events};
        if (c->rank < 0) *until = pd_earlier(*until, pd_handshake_deadline(s, c));
    }
    for (int r = 0; r < s->world; r++) {
        const pd_peer *p = &s->peers[r];
        bool watch = p->state == PD_PEER_HERE || p->state == PD_PEER_DYING;
        s->polls[(*n)++] = (struct pollfd){.fd = watch ? p->pidfd : -1, .events = POLLIN};
        if (p->state == PD_PEER_DYING) *until = pd_earlier(*until, p->deadline);
        heartbeat |= p->state == PD_PEER_HERE;
    }
    if (heartbeat) *until = pd_earlier(*until, s->pinged + PD_HEARTBEAT_NS);
    return PD_OK;
}

static void serve_conns(pd_control_server *s, int64_t now) {
    const struct pollfd *poll = s->polls + POLL_CONNS;
    for (pd_conn *c = s->conns; c; c = c->next) /* now, since the deadline of others moves when some go */
        if (c->rank < 0) c->late = pd_handshake_deadline(s, c) <= now;
    for (pd_conn **at = &s->conns; *at; poll++) {
        pd_conn *c = *at;
        bool alive = true;
        if (poll->revents & POLLOUT) alive = pd_wire_flush(&c->wire) != PD_WIRE_CLOSED;
        /* A goodbye that it has sent comes first */
        if (!alive || (poll->revents & ~POLLOUT)) alive &= pd_control_serve(s, c, now);
        if (alive && c->rank < 0 && c->late) {
            if (!c->closing) pd_handshake_refused(s, c, "it did not finish the handshake in time");
            alive = false;
        }
        if (alive && c->closing && !c->wire.pending) alive = false;
        if (alive) at = &c->next;
        else drop(s, at, now);
    }
}

static void *run(void *arg) {
    pd_control_server *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->ending) {
        size_t n = 0;
        int64_t until = 0, now = pd_os_now();
        if (fill_polls(s, &n, now, &until)) { /* no memory for the list: try again in a moment */
            pthread_mutex_unlock(&s->lock);
            poll(NULL, 0, 10);
            pthread_mutex_lock(&s->lock);
            continue;
        }
        int64_t ms = until == INT64_MAX ? -1 : until <= now ? 0 : (until - now + 999999) / 1000000;
        size_t conns = n - POLL_CONNS - (size_t)s->world;
        s->looked = now;
        pthread_mutex_unlock(&s->lock);
        poll(s->polls, (nfds_t)n, ms > 3600000 ? 3600000 : (int)ms);
        pthread_mutex_lock(&s->lock);
        now = pd_os_now();
        uint64_t count;
        if (s->polls[POLL_WAKE].revents && read(s->wake, &count, sizeof count) < 0) continue;
        serve_conns(s, now); /* the list has not changed since fill_polls */
        pd_peers_deaths(s, s->polls + POLL_CONNS + conns, now);
        pd_control_store_timeouts(s, now);
        pd_peers_heartbeat(s, now);
        for (int i = 0; i < PD_LISTENS; i++)
            if (s->polls[POLL_LISTEN + i].revents) pd_handshake_accept(s, i, now);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- the launcher's side ----------------------------------------------------------------------------------------- */

static void wake(pd_control_server *s) {
    uint64_t one = 1;
    if (write(s->wake, &one, sizeof one) < 0) return; /* the counter is full: it is awake */
}

static void free_all(pd_control_server *s) {
    pd_control_store_forget(s, NULL);
    for (pd_conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        pd_wire_fini(&c->wire);
        pd_free(c);
    }
    pd_kv_fini(&s->kv);
    for (int r = 0; r < s->world; r++) {
        pd_peer_unpidfd(&s->peers[r]);
        pd_free(s->peers[r].text);
    }
    for (int i = 0; i < PD_LISTENS; i++)
        if (s->listening[i] >= 0) close(s->listening[i]);
    if (s->wake >= 0) close(s->wake);
    if (s->secret_fd >= 0) close(s->secret_fd);
    pd_free(s->polls);
    pd_free(s->traceback);
    pthread_cond_destroy(&s->change);
    pthread_mutex_destroy(&s->lock);
    explicit_bzero(s->secret, sizeof s->secret);
    explicit_bzero(s->token, sizeof s->token);
    pd_free(s);
}

pd_status pd_control_server_new(int world, const pd_control_options *o, pd_control_server **out) {
    static const pd_control_options plain;
    pd_status status = PD_OK;
    pd_control_server *s;
    if (!o) o = &plain;
    if (world < 1 || world > PD_RANKS_MAX)
        return pd_fail(PD_E_VALUE, "control: world is %d (expected 1 to %d)", world, PD_RANKS_MAX);
    PD_TRY(pd_calloc(sizeof *s + (size_t)world * sizeof *s->peers, "control server", &s));
    s->world = world;
    s->forks = pd_forks;
    s->host_rank = o->in_rank ? o->host_rank : -1;
    s->open = o->open;
    s->listening[PD_LISTEN_UNIX] = s->listening[PD_LISTEN_TCP] = s->wake = s->secret_fd = s->raised = -1;
    for (int r = 0; r < world; r++) s->peers[r].pidfd = -1;
    pthread_mutex_init(&s->lock, NULL);
    pd_os_cond_init(&s->change);
    pd_control_store_init(s);
    PD_TRY_TO(fail, pd_handshake_open(s, o));
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake < 0) PD_TRY_TO(fail, pd_fail(PD_E_OS, "control: cannot make an event descriptor: %s", strerror(errno)));
    s->pinged = pd_os_now();
    PD_TRY_TO(fail, pd_os_thread_start("control", &s->thread, run, s));
    for (int i = 0; i < PD_LISTENS; i++) /* or a forked child would keep the dead server's listeners open */
        if (s->listening[i] >= 0) pd_fork_watch_add(&s->watch[i], s->listening[i]);
    *out = s;
    return PD_OK;
fail:
    free_all(s);
    return status;
}

void pd_control_server_free(pd_control_server *s) {
    if (!s || pd_forked_since(s->forks)) return; /* the thread and its locks are the parent's */
    pthread_mutex_lock(&s->lock);
    s->ending = true;
    pthread_mutex_unlock(&s->lock);
    wake(s);
    pd_os_thread_join(s->thread);
    for (int i = 0; i < PD_LISTENS; i++)
        if (s->listening[i] >= 0) pd_fork_watch_drop(&s->watch[i]);
    free_all(s);
}

const char *pd_control_address(const pd_control_server *s) { return s->address; }
const char *pd_control_tcp_address(const pd_control_server *s) { return s->tcp_address; }
int pd_control_secret_fd(const pd_control_server *s) { return s->secret_fd; }

void pd_control_dead(pd_control_server *s, int rank, const char *how) {
    if (rank < 0 || rank >= s->world || pd_forked_since(s->forks)) return;
    pthread_mutex_lock(&s->lock);
    pd_peer *p = &s->peers[rank];
    if (p->conn)
        pd_control_serve(s, p->conn, pd_os_now()); /* a goodbye or traceback that is still in the socket comes first */
    pd_peer_declare_dead(s, rank, how);
    pthread_mutex_unlock(&s->lock);
    wake(s);
}

bool pd_control_silent(pd_control_server *s, int rank) {
    if (rank < 0 || rank >= s->world) return false;
    pthread_mutex_lock(&s->lock);
    bool silent = s->peers[rank].silent;
    pthread_mutex_unlock(&s->lock);
    return silent;
}

pd_status pd_control_first_raised(pd_control_server *s, int *rank, char **traceback) {
    pd_status status = PD_OK;
    *rank = -1;
    *traceback = NULL;
    if (pd_forked_since(s->forks)) return PD_OK;
    pthread_mutex_lock(&s->lock);
    *rank = s->raised;
    if (s->raised >= 0) {
        status = pd_malloc(strlen(s->traceback) + 1, "traceback", traceback);
        if (!status) strcpy(*traceback, s->traceback);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* Needs the lock. "1, 3": the ranks that have joined and are still here. */
static void present(const pd_control_server *s, char *text, size_t size) {
    size_t n = 0;
    *text = 0;
    for (int r = 0; r < s->world && n + 16 < size; r++)
        if (s->peers[r].state == PD_PEER_HERE || s->peers[r].state == PD_PEER_DYING)
            n += (size_t)snprintf(text + n, size - n, "%s%d", n ? ", " : "", r);
}

static pd_status drain(pd_control_server *s, double timeout, const pd_hooks *hooks) {
    int64_t start = pd_os_now(), warn = (int64_t)(pd_flags_get()->WARN * 1e9);
    char ranks[200];
    for (bool warned = warn <= 0;;) {
        present(s, ranks, sizeof ranks);
        if (!*ranks) return PD_OK;
        int64_t waited = pd_os_now() - start;
        if ((double)waited >= timeout * 1e9)
            return pd_fail(PD_E_TIMEOUT,
                           "control: waited %.1f s for ranks %s to leave (expected all ranks to leave in time)",
                           timeout, ranks);
        if (!warned && waited >= warn) {
            warned = true;
            pd_log(PD_LOG_WARN, "rank %d has waited %.0f s for ranks %s to end, because it hosts their control server",
                   s->host_rank, (double)waited * 1e-9, ranks);
        }
        if (pd_os_cond_wait(&s->change, &s->lock, PD_SLICE_NS)) continue;
        pthread_mutex_unlock(&s->lock);
        pd_status status = pd_hooks_interrupt(hooks);
        pthread_mutex_lock(&s->lock);
        PD_TRY(status);
    }
}

pd_status pd_control_drain(pd_control_server *s, double timeout, const pd_hooks *hooks) {
    if (pd_forked_since(s->forks)) return PD_OK;
    void *token = pd_host_release();
    pthread_mutex_lock(&s->lock);
    pd_status status = drain(s, timeout, hooks);
    pthread_mutex_unlock(&s->lock);
    pd_host_acquire(token);
    return status;
}
