#include "base/flags.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define NUM_MAX 1e9 /* seconds: 30 years, which are still an int64_t of nanoseconds */

static pd_flags flags;
static const char *rank = "0", *iface, *iface_variable;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static pd_flag_int read_int(const char *name, pd_flag_int def) {
    const char *text = getenv(name);
    char *end;
    long value = text && *text ? strtol(text, &end, 10) : def;
    return text && *text && *end ? def : (pd_flag_int)value;
}

static pd_flag_num read_num(const char *name, pd_flag_num def) {
    const char *text = getenv(name);
    char *end;
    double value = text && *text ? strtod(text, &end) : def;
    if (text && *text && (*end || value != value)) return def;
    return value > NUM_MAX ? NUM_MAX : value < -NUM_MAX ? -NUM_MAX : value;
}

static pd_flag_str read_str(const char *name, pd_flag_str def) {
    const char *text = getenv(name);
    return text ? text : def;
}

static void read_all(void) {
#define PD_FLAG(name, type, def, help) flags.name = read_##type("PYDIST_" #name, def);
#include "base/flags.def"
#undef PD_FLAG
    const char *text = getenv("RANK");
    if (text) rank = text;
    const char *const names[] = {"PYDIST_IFACE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"};
    for (int i = 0; i < 3 && (!iface || !*iface); i++) iface = read_str(iface_variable = names[i], "");
}

const char *pd_flags_rank(void) {
    pthread_once(&once, read_all);
    return rank;
}

const char *pd_flags_iface(const char **variable) {
    pthread_once(&once, read_all);
    *variable = iface_variable;
    return iface;
}

const pd_flags *pd_flags_get(void) {
    pthread_once(&once, read_all);
    return &flags;
}

static void show_int(char *to, size_t size, pd_flag_int value) { snprintf(to, size, "%d", value); }
static void show_num(char *to, size_t size, pd_flag_num value) { snprintf(to, size, "%g", value); }
static void show_str(char *to, size_t size, pd_flag_str value) { snprintf(to, size, "%s", value); }

int pd_flags_describe(size_t i, const char **name, const char **help, char *value, size_t size) {
    const pd_flags *f = pd_flags_get();
    size_t row = 0;
#define PD_FLAG(flag, type, def, text)         \
    if (row++ == i) {                          \
        *name = "PYDIST_" #flag;               \
        *help = text;                          \
        show_##type(value, size, f->flag);     \
        return 1;                              \
    }
#include "base/flags.def"
#undef PD_FLAG
    return 0;
}
