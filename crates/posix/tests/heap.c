/* A program with an allocator of its own, which names the threads of the library that call it for
 * themselves. Waits for a served listener. Prints "end" last. */
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), __libc_free(void *);

/* A thread of the program keeps its thread-local variables while a thread of the library runs it. */
static __thread int is_of_program;

static void name_caller(void) {
    static const char prefix[] = "tailwater/";
    char name[17] = {0};
    prctl(PR_GET_NAME, name);
    if (is_of_program || strncmp(name, prefix, sizeof prefix - 1)) return;
    name[strlen(name)] = '\n';
    if (write(1, name, strnlen(name, sizeof name)) < 0) _exit(1);
}

void *malloc(size_t size) {
    name_caller();
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
    name_caller();
    return __libc_calloc(count, size);
}

void *realloc(void *block, size_t size) {
    name_caller();
    return __libc_realloc(block, size);
}

void free(void *block) {
    name_caller();
    __libc_free(block);
}

int main(void) {
    struct sockaddr_in any = {.sin_family = AF_INET};
    struct epoll_event event = {.events = EPOLLIN};
    int listener = socket(AF_INET, SOCK_STREAM, 0), set = epoll_create1(0);
    is_of_program = 1;
    if (bind(listener, (void *)&any, sizeof any) || listen(listener, 1) ||
        epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) || epoll_wait(set, &event, 1, 100))
        return 1;
    return write(1, "end\n", 4) < 0;
}
