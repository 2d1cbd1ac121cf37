#include "base/host.h"

#include <pthread.h>

static void *no_release(void) { return NULL; }
static void no_acquire(void *token) { (void)token; }

void *(*pd_host_release)(void) = no_release;
void (*pd_host_acquire)(void *token) = no_acquire;

void pd_host_lock(void *mutex) {
    if (!pthread_mutex_trylock(mutex)) return;
    void *token = pd_host_release();
    pthread_mutex_lock(mutex);
    pd_host_acquire(token);
}
