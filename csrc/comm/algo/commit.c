#include "comm/algo/commit.h"

pd_status pd_commit_decide(const pd_progress *all, int n, pd_progress own, bool *make) {
    int64_t most = own.made;
    bool level = true, have = true; /* all have made `most` steps; all have the next gradient */
    for (int i = 0; i < n; i++) most = all[i].made > most ? all[i].made : most;
    for (int i = 0; i < n; i++) {
        level &= all[i].made == most;
        have &= all[i].has;
        if (all[i].made < most - 1 || (all[i].made == most - 1 && !all[i].has))
            return pd_fail(PD_E_DIST,
                           "commit: a rank has made %lld steps and %s the next gradient, another one has made %lld "
                           "(expected a gradient wherever another rank has made the step)",
                           (long long)all[i].made, all[i].has ? "has" : "has not", (long long)most);
    }
    *make = own.made < most || (level && have);
    return PD_OK;
}
