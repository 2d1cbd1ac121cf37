#include "comm/net/fork.h"

#include <pthread.h>
#include <stddef.h>
#include <unistd.h>

uint32_t pd_forks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pd_fork_watch *first;

static void before(void) { pthread_mutex_lock(&lock); }
static void in_parent(void) { pthread_mutex_unlock(&lock); }

static void in_child(void) {
    pd_forks++;
    for (pd_fork_watch *w = first; w; w = w->next) close(w->fd);
    first = NULL;
    pthread_mutex_unlock(&lock);
}

static void at_start(void) { pthread_atfork(before, in_parent, in_child); }

void pd_fork_watch_add(pd_fork_watch *w, int fd) {
    pthread_once(&once, at_start);
    pthread_mutex_lock(&lock);
    *w = (pd_fork_watch){.fd = fd, .next = first, .at = &first};
    if (first) first->at = &w->next;
    first = w;
    pthread_mutex_unlock(&lock);
}

void pd_fork_watch_drop(pd_fork_watch *w) {
    pthread_mutex_lock(&lock);
    *w->at = w->next;
    if (w->next) w->next->at = w->at;
    pthread_mutex_unlock(&lock);
}
