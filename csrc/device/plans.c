#include "device/plans.h"

#include <string.h>

#include "base/mem.h"

pd_plan *pd_plan_of(pd_plans *plans, const int64_t key[PD_PLAN_KEY], size_t bytes, pd_plan *mine) {
    const size_t size = sizeof mine->key;
    uint64_t hash = 0;
    for (int i = 0; i < PD_PLAN_KEY; i++) {
        hash = (hash ^ (uint64_t)key[i]) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 29;
    }
    pd_plan **at = &plans->buckets[hash % PD_PLAN_BUCKETS], *p;
    for (p = *at; p; p = p->next)
        if (!memcmp(p->key, key, size)) return p;
    if (plans->count >= plans->most) return mine;
    if (pd_calloc(bytes, "plan", &p)) return NULL;
    memcpy(p->key, key, size);
    p->next = *at;
    *at = p;
    plans->count++;
    return p;
}
