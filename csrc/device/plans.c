#include "device/plans.h"

#include <string.h>

#include "base/mem.h"

static pd_plan **bucket_of(pd_plans *plans, const int64_t key[PD_PLAN_KEY]) {
    uint64_t hash = 0;
    for (int i = 0; i < PD_PLAN_KEY; i++) {
        hash = (hash ^ (uint64_t)key[i]) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 29;
    }
    return &plans->buckets[hash % PD_PLAN_BUCKETS];
}

static void unlink_by_age(pd_plans *plans, pd_plan *p) {
    *(p->newer ? &p->newer->older : &plans->newest) = p->older;
    *(p->older ? &p->older->newer : &plans->oldest) = p->newer;
}

static void make_newest(pd_plans *plans, pd_plan *p) {
    p->newer = NULL;
    p->older = plans->newest;
    *(p->older ? &p->older->newer : &plans->oldest) = p;
    plans->newest = p;
}

static void evict(pd_plans *plans) {
    pd_plan *p = plans->oldest;
    while (p && p->stays) p = p->newer;
    if (!p) return;
    pd_plan **at = bucket_of(plans, p->key);
    while (*at != p) at = &(*at)->next;
    *at = p->next;
    unlink_by_age(plans, p);
    plans->count--;
    plans->drop(p);
    pd_free(p);
}

pd_plan *pd_plan_of(pd_plans *plans, const int64_t key[PD_PLAN_KEY], size_t bytes) {
    pd_plan **at = bucket_of(plans, key), *p = *at;
    while (p && memcmp(p->key, key, sizeof p->key)) p = p->next;
    if (p)
        unlink_by_age(plans, p);
    else {
        if (plans->count >= plans->most) evict(plans);
        if (pd_calloc(bytes, "plan", &p)) return NULL;
        memcpy(p->key, key, sizeof p->key);
        p->next = *at;
        *at = p;
        plans->count++;
    }
    make_newest(plans, p);
    p->uses++;
    return p;
}
