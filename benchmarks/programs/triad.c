/* The memory bandwidth that two processes reach together: a = b + s c past the cache, GB/s of all three arrays. */
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define N (16 << 20)
#define ROUNDS 10

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void triad(float *a, const float *b, const float *c) {
    __m128 s = _mm_set1_ps(3.0f);
    for (long i = 0; i < N; i += 4) _mm_stream_ps(a + i, _mm_add_ps(_mm_load_ps(b + i), _mm_mul_ps(s, _mm_load_ps(c + i))));
    _mm_sfence();
}

int main(void) {
    double *best = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int processes = 2;
    for (int p = 0; p < processes; p++)
        if (fork() == 0) {
            float *a = aligned_alloc(64, sizeof(float) * N), *b = aligned_alloc(64, sizeof(float) * N);
            float *c = aligned_alloc(64, sizeof(float) * N);
            for (long i = 0; i < N; i++) a[i] = 0, b[i] = 1, c[i] = 2;
            double least = 1e9;
            for (int r = 0; r < ROUNDS; r++) {
                double begin = now();
                triad(a, b, c);
                double took = now() - begin;
                if (took < least) least = took;
            }
            best[p] = least;
            _exit(a[N / 2] == 7 ? 0 : 1);
        }
    for (int p = 0; p < processes; p++) wait(NULL);
    double all = 0;
    for (int p = 0; p < processes; p++) all += 3.0 * sizeof(float) * N / best[p] / 1e9;
    printf("%.3f\n", all);
    return 0;
}
