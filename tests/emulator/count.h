/* Counts what a program gives to the emulated device: launches, bytes read and written, floating-point operations.
   work.cpp says what each kernel moves; libraries.cpp, what a product and a convolution do.

   EMULATOR_HOLLOW=1: nothing is computed. Memory is reserved, never touched (140 GiB a device), launches and copies
   are counted and left out, and what the host reads back is zeros. So a training step that no CPU could run is
   counted in seconds. */
#ifndef PD_EMULATOR_COUNT_H
#define PD_EMULATOR_COUNT_H

#include <stdint.h>

#include <string>

/* One call. launches: how many kernels it is made of, for which the bytes were written down; -1: any number. */
struct pd_work {
    std::string kind;
    double read, written, flops;
    int launches;
};

bool pd_is_hollow();
bool pd_counts();               /* whether anybody counts now */
void pd_count(const pd_work &); /* of a library's call, one launch */
void pd_count_launch();         /* of our own kernels; belongs to the call that this thread is in */

/* Which launch runs, and the bytes that launches have touched so far, each once a launch; trace.cpp adds to them. */
extern uint32_t pd_launch_now;
extern double pd_touched[2]; /* read, written */

/* Launches of this thread belong to this call, as long as it lives. */
class pd_counted_call {
    bool on;

   public:
    pd_counted_call(const pd_work *work); /* NULL: nobody counts */
    ~pd_counted_call();
};

#endif
