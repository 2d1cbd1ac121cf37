#include "io/crew.h"

#include "base/os.h"

static void failed(pd_crew *crew, pd_status status) {
    pthread_mutex_lock(&crew->lock);
    if (!crew->status) {
        crew->status = status;
        pd_error_save(&crew->error);
    }
    pthread_mutex_unlock(&crew->lock);
    crew->stop = true;
}

static void *member(void *arg) {
    pd_crew *crew = arg;
    pd_status status = crew->run(crew);
    if (status) failed(crew, status);
    return NULL;
}

pd_status pd_crew_run(const char *op, pd_crew *crew, int threads, pd_status (*run)(pd_crew *crew)) {
    pd_os_thread others[PD_CREW_MOST];
    int started = 0;
    crew->stop = false;
    crew->run = run;
    crew->status = PD_OK;
    pthread_mutex_init(&crew->lock, NULL);
    while (started < threads - 1 && started < PD_CREW_MOST) {
        pd_status status = pd_os_thread_start(op, &others[started], member, crew);
        if (status) {
            failed(crew, status);
            break;
        }
        started++;
    }
    member(crew);
    while (started) pd_os_thread_join(others[--started]);
    pthread_mutex_destroy(&crew->lock);
    return crew->status ? pd_error_restore(&crew->error) : PD_OK;
}
