/* A handler frees the loop that runs it, which the header forbids: the process ends and says so. */

#include <tailwater.h>

static int free_it(void *argument, tw_loop *events, const tw_condition *condition) {
    (void)argument, (void)condition;
    tw_loop_free(events);
    return 1;
}

static void run(void *unused) {
    (void)unused;
    tw_loop *events = tw_loop_new();
    tw_loop_wake(events);
    tw_loop_run(events, free_it, NULL);
}

int main(void) { return tw_run(NULL, run, NULL) == 0 ? 0 : 1; }
