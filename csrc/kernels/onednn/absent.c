/* For builds without oneDNN's headers: the portable kernels compute everything. */
#if !defined(PD_HAVE_ONEDNN) || !PD_HAVE_ONEDNN
#include "kernels/onednn/onednn.h"

static bool takes_gemm(const pd_gemm *c, bool bias) { return (void)c, (void)bias, false; }
static bool takes_conv(const pd_conv *c, pd_conv_part part) { return (void)c, (void)part, false; }

const pd_gemm_backend pd_onednn_gemm = {.name = "oneDNN", .takes = takes_gemm};
const pd_conv_backend pd_onednn_conv = {.name = "oneDNN", .takes = takes_conv};
bool pd_onednn_takes_conv(const pd_conv *c, bool weight) { return (void)c, (void)weight, false; }
pd_status pd_onednn_check_memory(void) { return PD_OK; }
void pd_onednn_paths(const char *const *paths, int count) { (void)paths, (void)count; }
const char *pd_onednn_version(void) { return NULL; }
int64_t pd_onednn_cached(void) { return 0; }
void pd_onednn_trim(void) {}
#else
typedef int pd_absent_is_empty; /* a translation unit must not be */
#endif
