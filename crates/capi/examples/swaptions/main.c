/* A batch job in C without poll points in its source: swaptions [PATHS]. The Makefile has the
 * compiler put them in. Start it as `TAILWATER_CLASS=best-effort swaptions`. */

#include <stdio.h>
#include <stdlib.h>
#include <tailwater.h>

double swaption_price(uint64_t seed, long paths);

struct part {
    tw_thread *thread;
    uint64_t seed;
    long paths;
    double price;
};

static void *run(void *argument) {
    struct part *part = argument;
    part->price = swaption_price(part->seed, part->paths);
    return NULL;
}

static int program(int argc, char **argv) {
    struct part parts[8];
    enum { PARTS = sizeof parts / sizeof parts[0] };
    long paths = argc > 1 ? atol(argv[1]) : 100000;
    double sum = 0;
    uint64_t begin = tw_now_ns();
    for (int i = 0; i < PARTS; i++) {
        parts[i] = (struct part){NULL, 88172645463325252u + (uint64_t)i, paths / PARTS, 0};
        int status = tw_thread_spawn(&parts[i].thread, NULL, run, &parts[i]);
        if (status < 0) {
            fprintf(stderr, "swaptions: cannot start a thread: %s\n", tw_strerror(status));
            return 1;
        }
    }
    for (int i = 0; i < PARTS; i++) {
        tw_thread_join(parts[i].thread, NULL);
        sum += parts[i].price;
    }
    printf("price %.9f\n", sum / PARTS);
    fprintf(stderr, "%.0f ns for each path\n", (double)(tw_now_ns() - begin) / (double)paths);
    return 0;
}

int main(int argc, char **argv) { return tw_main(argc, argv, program); }
