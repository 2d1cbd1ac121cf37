#include "device/nvidia.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    if (!strcmp(given, "none")) return pd_fail(PD_E_RUNTIME, "%s: switched off", what->name);
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
