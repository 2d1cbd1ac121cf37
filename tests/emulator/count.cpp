#include "count.h"

#include <stdlib.h>

#include <map>
#include <mutex>

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
    if (!on) return;
    add(*now, launched);
    now = nullptr;
}

/* For tests and benchmarks. The text has a line for each kind: its name, calls, launches, launches that its formula
   is for, bytes read, bytes written, operations, and bytes that were touched by reads and by writes (trace.cpp), with
   tabs in between; it stays until the next call. */
extern "C" {
__attribute__((visibility("default"))) void pd_count_start() {
    std::lock_guard<std::mutex> only(use);
    counters.clear();
    on = true;
}
__attribute__((visibility("default"))) const char *pd_count_stop() {
    static std::string text;
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
