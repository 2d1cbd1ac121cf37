/* Shared libraries opened at run time, their symbols in one table. */
#ifndef PD_BASE_DL_H
#define PD_BASE_DL_H

#include "base/status.h"

typedef struct pd_dl_symbol {
    const char *name;
    void **to;
} pd_dl_symbol;

/* Opens the first of `paths` (NULL-terminated) that can be opened and has every symbol (table ends with a NULL name).
   On failure PD_E_RUNTIME names every path tried and why; nothing stays open. */
pd_status pd_dl_open(const char *const *paths, const pd_dl_symbol *symbols, void **handle);
/* A symbol of the library or of what it has loaded; NULL: there is none. */
void *pd_dl_find(void *handle, const char *name);
void pd_dl_close(void *handle);

#endif
