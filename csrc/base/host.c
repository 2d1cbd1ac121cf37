#include "base/host.h"

static void *no_release(void) { return NULL; }
static void no_acquire(void *token) { (void)token; }

void *(*pd_host_release)(void) = no_release;
void (*pd_host_acquire)(void *token) = no_acquire;
