#include "base/dl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

pd_status pd_dl_open(const char *const *paths, const pd_dl_symbol *symbols, void **handle) {
    char why[PD_ERROR_TEXT - 64] = "";
    for (; *paths; paths++) {
        void *lib = dlopen(*paths, RTLD_NOW | RTLD_LOCAL);
        const char *missing = lib ? NULL : dlerror();
        for (const pd_dl_symbol *s = symbols; lib && s->name && !missing; s++)
            if (!(*s->to = dlsym(lib, s->name))) missing = s->name;
        if (lib && !missing) {
            *handle = lib;
            return PD_OK;
        }
        size_t used = strlen(why);
        snprintf(why + used, sizeof why - used, "%s%s: %s%s", used ? "; " : "", *paths,
                 lib ? "no symbol " : "", missing ? missing : "?");
        if (lib) dlclose(lib);
    }
    return pd_fail(PD_E_RUNTIME, "cannot open a library (%s)", *why ? why : "no path to try");
}

void *pd_dl_find(void *handle, const char *name) { return dlsym(handle, name); }
void pd_dl_close(void *handle) {
    if (handle) dlclose(handle);
}
