#include "base/limits.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The first number after `label` in the file, or `none`. */
static uint64_t number_in(const char *dir, const char *name, const char *label, uint64_t none) {
    char path[PATH_MAX], line[128];
    unsigned long long value;
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path) return none;
    FILE *f = fopen(path, "re");
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        const char *at = line + strlen(label);
        found = !strncmp(line, label, strlen(label)) && *at != '-' && sscanf(at, "%llu", &value) == 1;
    }
    if (f) fclose(f);
    return found ? value : none;
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

typedef void (*group_fn)(const char *dir, bool v1, void *limit);

/* Calls fn for the group's folder and those above it, up to the mount. A container may see its path as the host does;
   then only the path's end exists below its own mount, or nothing of it. */
static void walk(const char *mount, const char *path, bool v1, group_fn fn, void *limit) {
    char dir[PATH_MAX];
    if (!strcmp(path, "/") || strstr(path, "/..")) path = "";
    for (;; path = strchr(path + 1, '/') ? strchr(path + 1, '/') : "") {
        if (snprintf(dir, sizeof dir, "%s%s", mount, path) >= (int)sizeof dir) return;
        if (!*path || !access(dir, F_OK)) break;
    }
    for (;;) {
        fn(dir, v1, limit);
        if (strlen(dir) <= strlen(mount)) return;
        *strrchr(dir, '/') = 0;
    }
}

static bool lists(const char *controllers, const char *name) {
    size_t n = strlen(name);
    for (const char *at = controllers; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, name, n) && (at[n] == ',' || !at[n])) return true;
    return false;
}

/* /proc/self/cgroup has a line for each hierarchy: its number, its controllers (none: version 2) and the path in it. */
static void each_group(const char *root, const char *controller, group_fn fn, void *limit) {
    char file[PATH_MAX], mount[PATH_MAX], *line = NULL;
    size_t room = 0;
    if (snprintf(file, sizeof file, "%s/proc/self/cgroup", root) >= (int)sizeof file) return;
    FILE *f = fopen(file, "re");
    while (f && getline(&line, &room, f) > 0) {
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        path[strcspn(path, "\n")] = 0;
        bool v1 = *++controllers;
        if (v1 && !lists(controllers, controller)) continue;
        if (snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s%s", root, v1 ? "/" : "", v1 ? controller : "") <
            (int)sizeof mount)
            walk(mount, path, v1, fn, limit);
    }
    free(line);
    if (f) fclose(f);
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */

static void tighten_memory(const char *dir, bool v1, void *left) {
    uint64_t most = number_in(dir, v1 ? "memory.limit_in_bytes" : "memory.max", "", UINT64_MAX); /* "max" is none */
    uint64_t used = number_in(dir, v1 ? "memory.usage_in_bytes" : "memory.current", "", 0);
    if (most >= (uint64_t)1 << 62) return; /* version 1's way to say that there is no limit */
    /* Where the share of page cache is unknown, all of it counts as cache. */
    uint64_t cache = number_in(dir, "memory.stat", v1 ? "total_inactive_file " : "inactive_file ", used) +
                     number_in(dir, "memory.stat", v1 ? "total_active_file " : "active_file ", 0);
    used -= cache < used ? cache : used;
    uint64_t here = used < most ? most - used : 0;
    if (here < *(uint64_t *)left) *(uint64_t *)left = here;
}

uint64_t pd_limit_memory(const char *root) {
    char proc[PATH_MAX];
    uint64_t left = UINT64_MAX;
    if (snprintf(proc, sizeof proc, "%s/proc", root) >= (int)sizeof proc) return left;
    uint64_t kib = number_in(proc, "meminfo", "MemAvailable:", UINT64_MAX >> 10);
    if (kib < UINT64_MAX >> 10) left = kib << 10;
    each_group(root, "memory", tighten_memory, &left);
    return left;
}

/* Version 2 has both numbers in cpu.max. */
static void tighten_cores(const char *dir, bool v1, void *cores) {
    char path[PATH_MAX];
    unsigned long long quota = 0, period = 0;
    if (v1) {
        quota = number_in(dir, "cpu.cfs_quota_us", "", 0); /* -1: none */
        period = number_in(dir, "cpu.cfs_period_us", "", 0);
    } else if (snprintf(path, sizeof path, "%s/cpu.max", dir) < (int)sizeof path) {
        FILE *f = fopen(path, "re");
        if (f && fscanf(f, "%llu %llu", &quota, &period) != 2) quota = 0; /* "max": none */
        if (f) fclose(f);
    }
    if (!quota || !period) return;
    double here = (double)quota / (double)period;
    if (!*(double *)cores || here < *(double *)cores) *(double *)cores = here;
}

double pd_limit_cores(const char *root) {
    double cores = 0;
    each_group(root, "cpu", tighten_cores, &cores);
    return cores;
}
