/* Opens shared libraries at run time and looks up their symbols. */
#ifndef PD_BASE_DL_H
#define PD_BASE_DL_H

#include "base/status.h"

typedef struct pd_dl_symbol {
    const char *name;
    void **to;
} pd_dl_symbol;

/* Opens the first library of `paths` that can be opened and has every symbol. NULL ends the paths, a NULL name ends the
   symbols. Fails with PD_E_RUNTIME, which names each path and its error; nothing stays open then. */
pd_status pd_dl_open(const char *const *paths, const pd_dl_symbol *symbols, void **handle);
/* A symbol of the library, or of a library that it has loaded; NULL if there is none. */
void *pd_dl_find(void *handle, const char *name);
void pd_dl_close(void *handle);

#endif
