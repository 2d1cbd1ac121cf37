#include "count.h"

#include <stdlib.h>

#include <map>
#include <mutex>

void pd_cuda_launch_waiting(); /* csrc/cuda/later.cu */
void pd_count_later();
void pd_count_waiting(bool begins);
void pd_count_joined();

struct counter {
    double calls, launches, expected, read, written, flops, touched[2];
};
uint32_t pd_launch_now;
double pd_touched[2];
static std::mutex use;
static std::map<std::string, counter> counters;
static bool on;
static thread_local const pd_work *now;
static thread_local int launched;
static thread_local double touched[2]; /* before the call */

bool pd_is_hollow() {
    const char *set = getenv("EMULATOR_HOLLOW");
    return set && *set && *set != '0';
}
bool pd_counts() { return on; }

static void add(const pd_work &w, int launches) {
    std::lock_guard<std::mutex> only(use);
    counter &c = counters[w.kind];
    c.calls++;
    c.launches += launches;
    c.expected += w.launches < 0 ? launches : w.launches;
    c.read += w.read;
    c.written += w.written;
    c.flops += w.flops;
    for (int i = 0; i < 2 && &w == now; i++) c.touched[i] += pd_touched[i] - touched[i];
}
void pd_count(const pd_work &w) {
    if (on) add(w, 1);
}
void pd_count_launch() {
    pd_launch_now++;
    if (now)
        launched++;
    else if (on)
        add(pd_work{"unknown", 0, 0, 0, 0}, 1);
}
pd_counted_call::pd_counted_call(const pd_work *work) : on(work && !now) {
    if (on) now = work, launched = 0, touched[0] = pd_touched[0], touched[1] = pd_touched[1];
}
pd_counted_call::~pd_counted_call() {
    if (!on || !now) return;
    add(*now, launched);
    now = nullptr;
}

/* ---- a launch that waits (csrc/cuda/later.h) ---- */

static pd_work waiting;
static bool waits; /* it is counted; only while its launch is put off */

void pd_count_later() {
    waits = now;
    if (now) waiting = *now, now = nullptr; /* the call counts nothing */
}
/* The launch is not that of the call under way. */
void pd_count_waiting(bool begins) {
    static thread_local const pd_work *outer;
    static thread_local double before[2], of_outer[2];
    static thread_local int count;
    if (begins) {
        outer = now, count = launched, now = waits ? &waiting : nullptr, launched = 0;
        for (int i = 0; i < 2; i++) of_outer[i] = touched[i], before[i] = touched[i] = pd_touched[i];
        return;
    }
    if (now) add(*now, launched);
    now = outer, launched = count, waits = false;
    for (int i = 0; i < 2; i++) touched[i] = of_outer[i] + pd_touched[i] - before[i];
}
/* The call reads what the launch would have read, and not its result, and writes that, too. */
void pd_count_joined() {
    static thread_local pd_work both;
    if (now && waits) {
        both = *now;
        both.kind = "add, " + both.kind;
        both.read += waiting.read - waiting.written;
        both.written += waiting.written;
        now = &both;
    }
    waits = false;
}

/* For tests and benchmarks. The text has a line for each kind: its name, calls, launches, launches that its formula
   is for, bytes read, bytes written, operations, and bytes that were touched by reads and by writes (trace.cpp), with
   tabs in between; it stays until the next call. */
extern "C" {
__attribute__((visibility("default"))) void pd_count_start() {
    pd_cuda_launch_waiting();
    std::lock_guard<std::mutex> only(use);
    counters.clear();
    on = true;
}
__attribute__((visibility("default"))) const char *pd_count_stop() {
    static std::string text;
    pd_cuda_launch_waiting();
    std::lock_guard<std::mutex> only(use);
    on = false;
    text.clear();
    for (const auto &at : counters) {
        const counter &c = at.second;
        text += at.first;
        for (double v : {c.calls, c.launches, c.expected, c.read, c.written, c.flops, c.touched[0], c.touched[1]})
            text += "\t" + std::to_string(v);
        text += "\n";
    }
    return text.c_str();
}
}
