#include "device/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "base/flags.h"
#include "base/os.h"
#include "device/nvidia.h"

#define PROBE_MS 30000

static struct {
    pthread_mutex_t lock;
    int version; /* 0: not open */
    bool tried;
    char why[PD_ERROR_TEXT], where[4096];
    pd_nccl_library table;
} nccl = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const pd_dl_symbol symbols[] = {
#define ROW(result, name, args) {"nccl" #name, (void **)&nccl.table.name},
    PD_NCCL_FUNCTIONS(ROW)
#undef ROW
    {NULL, NULL}};

static pd_status open_library(void) {
    static const pd_nvidia library = {"NCCL", "libnccl.so.2", "nccl/lib", "nvidia-nccl-cu13"};
    void *handle = NULL;
    int version = 0;
    Dl_info info;
    PD_TRY(pd_nvidia_open(&library, pd_flags_get()->NCCL, symbols, &handle));
    if (dladdr((void *)(uintptr_t)nccl.table.GetVersion, &info)) /* which file was opened */
        snprintf(nccl.where, sizeof nccl.where, "%s", info.dli_fname);
    int result = nccl.table.GetVersion(&version);
    if (result || version < PD_NCCL_OLDEST)
        return pd_fail(PD_E_RUNTIME, "NCCL: %s is version %d.%d.%d (expected %d.%d or newer); pip install %s",
                       nccl.where, version / 10000, version / 100 % 100, version % 100, PD_NCCL_OLDEST / 10000,
                       PD_NCCL_OLDEST / 100 % 100, library.wheel);
    nccl.version = version;
    return PD_OK;
}

pd_status pd_nccl_open(const char *op, const pd_nccl_library **out) {
    pthread_mutex_lock(&nccl.lock);
    if (!nccl.tried && open_library()) snprintf(nccl.why, sizeof nccl.why, "%s", pd_error_get()->text);
    nccl.tried = true;
    pthread_mutex_unlock(&nccl.lock);
    *out = &nccl.table;
    if (nccl.version) return PD_OK;
    return pd_fail(PD_E_RUNTIME, "%s: %s", op, nccl.why);
}

int pd_nccl_version(void) {
    const pd_nccl_library *lib;
    return pd_nccl_open("nccl", &lib) ? 0 : nccl.version;
}
const char *pd_nccl_where(void) { return pd_nccl_version() ? nccl.where : ""; }

pd_status pd_nccl_result(const char *op, int result, void *comm) {
    if (result == PD_NCCL_OK || result == PD_NCCL_IN_PROGRESS) return PD_OK;
    const char *words = nccl.table.GetLastError(comm);
    bool some = words && *words;
    return pd_fail(PD_E_DIST, "%s: NCCL: %s%s%s%s", op, nccl.table.GetErrorString(result), some ? " (" : "",
                   some ? words : "", some ? ")" : "");
}

pd_status pd_nccl_probe(const char *op) {
    const pd_nccl_library *lib;
    pd_nccl_id id;
    pd_nccl_config config = PD_NCCL_NONBLOCKING;
    void *comm = NULL;
    PD_TRY(pd_nccl_open(op, &lib));
    PD_TRY(pd_nccl_result(op, lib->GetUniqueId(&id), NULL));
    int result = lib->CommInitRankConfig(&comm, 1, id, 0, &config), waited = 0;
    while (comm && (result == PD_NCCL_OK || result == PD_NCCL_IN_PROGRESS)) {
        int failed = lib->CommGetAsyncError(comm, &result);
        if (failed) result = failed;
        if (result != PD_NCCL_IN_PROGRESS || waited++ == PROBE_MS) break;
        pd_os_sleep(1000000);
    }
    pd_status status = pd_nccl_result(op, result, comm);
    if (!status && result == PD_NCCL_IN_PROGRESS)
        return pd_fail(PD_E_DIST, "%s: NCCL has not made a communicator of one rank within %d s", op, PROBE_MS / 1000);
    if (comm) lib->CommAbort(comm);
    return status;
}
