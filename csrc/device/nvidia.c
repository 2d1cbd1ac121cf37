#include "device/nvidia.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

enum { FOLDERS = 8, LONGEST = 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *folders[FOLDERS];
static int nfolders;

void pd_nvidia_paths(const char *const *given, int count) {
    pthread_mutex_lock(&lock);
    while (nfolders) free(folders[--nfolders]);
    for (int i = 0; i < count && nfolders < FOLDERS; i++)
        if ((folders[nfolders] = strdup(given[i]))) nfolders++;
    pthread_mutex_unlock(&lock);
}

static bool is_loaded(const char *soname) {
    void *handle = dlopen(soname, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (handle) dlclose(handle);
    return handle != NULL;
}

pd_status pd_nvidia_open(const pd_nvidia *what, const char *given, const pd_dl_symbol *symbols, void **handle) {
    char made[FOLDERS + 1][LONGEST];
    const char *paths[FOLDERS + 4];
    int n = 0;
    if (!strcmp(given, "none"))
        return pd_fail(PD_E_RUNTIME, "%s: the library is switched off by its environment variable", what->name);
    if (*given) paths[n++] = given;
    else {
        if (is_loaded(what->soname)) paths[n++] = what->soname;
        pthread_mutex_lock(&lock);
        for (int i = 0; i < nfolders; i++) {
            snprintf(made[i], LONGEST, "%s/%s/%s", folders[i], what->folder, what->soname);
            paths[n++] = made[i];
        }
        pthread_mutex_unlock(&lock);
        paths[n++] = what->soname;
        snprintf(made[FOLDERS], LONGEST, "/usr/local/cuda/lib64/%s", what->soname);
        paths[n++] = made[FOLDERS];
    }
    paths[n] = NULL;
    if (pd_dl_open(paths, symbols, handle) == PD_OK) return PD_OK;
    pd_error why;
    pd_error_save(&why);
    return pd_fail(PD_E_RUNTIME, "%s: %.1500s; pip install %s", what->name, why.text, what->wheel);
}

/* ---- servers ----------------------------------------------------------------------------------------------------- */

/* Notes the version. Other major versions may declare the same names differently. */
static bool has_our_major(pd_nvidia_server *s) {
    size_t v = (*s->get_version)();
    snprintf(s->version, sizeof s->version, "%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
    if (v / 10000 == (size_t)s->major) return true;
    (void)pd_fail(PD_E_RUNTIME, "%s: the library is of version %s (expected %d); pip install %s", s->library.name,
                  s->version, s->major, s->library.wheel);
    return false;
}

bool pd_nvidia_ready(pd_nvidia_server *s, const char *given) {
    static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
    if (atomic_load_explicit(&s->tried, memory_order_acquire)) return s->opened;
    pthread_mutex_lock(&opening);
    if (!s->tried) {
        void *handle;
        s->opened = pd_nvidia_open(&s->library, given, s->symbols, &handle) == PD_OK && has_our_major(s);
        if (!s->opened) snprintf(s->why, sizeof s->why, "%s", pd_error_get()->text);
        atomic_store_explicit(&s->tried, true, memory_order_release);
    }
    pthread_mutex_unlock(&opening);
    return s->opened;
}

const char *pd_nvidia_version(pd_nvidia_server *s, const char *given, const char **reason) {
    *reason = s->why;
    return pd_nvidia_ready(s, given) ? s->version : NULL;
}

void *pd_nvidia_handle(pd_nvidia_server *s, const char *given, const pd_device *d) {
    if (pd_nvidia_ready(s, given) && !s->handles[d->index]) {
        int status = (*s->create)(&s->handles[d->index]);
        if (status) {
            s->handles[d->index] = NULL;
            snprintf(s->why, sizeof s->why, "%s: cannot make a handle on %s (status %d)", s->library.name, d->name,
                     status);
            s->opened = false;
        }
    }
    if (!s->opened && !s->told && strcmp(given, "none"))
        pd_log(PD_LOG_WARN, "%s: using %s, which are many times slower", s->why, s->instead);
    s->told = true;
    return s->opened ? s->handles[d->index] : NULL;
}
