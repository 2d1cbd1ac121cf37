/* Built without oneDNN's headers: the portable kernels serve everything. */
#if !defined(PD_HAVE_ONEDNN) || !PD_HAVE_ONEDNN
#include "kernels/onednn/onednn.h"

static pd_status absent(void) { return pd_fail(PD_E_RUNTIME, "oneDNN: this build has no support for it"); }

pd_status pd_onednn_check_memory(void) { return PD_OK; }
bool pd_onednn_takes_gemm(const pd_gemm *c, bool bias) { return (void)c, (void)bias, false; }
size_t pd_onednn_gemm_scratch(const pd_gemm *c) { return (void)c, 0; }
pd_status pd_onednn_gemm(const pd_gemm *c, const void *A, const void *B, const void *bias, void *C, void *scratch) {
    return (void)c, (void)A, (void)B, (void)bias, (void)C, (void)scratch, absent();
}
bool pd_onednn_takes_conv(const pd_conv *c, bool weight) { return (void)c, (void)weight, false; }
size_t pd_onednn_conv_scratch(const pd_conv *c, bool weight) { return (void)c, (void)weight, 0; }
pd_status pd_onednn_conv_forward(const pd_conv *c, const void *x, const void *w, const void *bias, void *y,
                                 void *scratch) {
    return (void)c, (void)x, (void)w, (void)bias, (void)y, (void)scratch, absent();
}
pd_status pd_onednn_conv_grad_input(const pd_conv *c, const void *gy, const void *w, void *gx, void *scratch) {
    return (void)c, (void)gy, (void)w, (void)gx, (void)scratch, absent();
}
pd_status pd_onednn_conv_grad_weight(const pd_conv *c, const void *gy, const void *x, void *gw, void *gbias,
                                     void *scratch) {
    return (void)c, (void)gy, (void)x, (void)gw, (void)gbias, (void)scratch, absent();
}
void pd_onednn_paths(const char *const *paths, int count) { (void)paths, (void)count; }
const char *pd_onednn_version(void) { return NULL; }
int64_t pd_onednn_cached(void) { return 0; }
void pd_onednn_trim(void) {}
#else
typedef int pd_absent_is_empty; /* a translation unit must not be */
#endif
