/* Sends a request, and prints it if it comes back: client tcp|udp IP PORT TEXT, or #NUMBER for four
 * bytes in network order. A datagram is sent again each 100 ms, for the server's neighbour may not
 * be known yet. */

#include "check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/time.h>
#include <tailwater.h>

static int program(int argc, char **argv) {
    CHECK(argc == 5);
    int is_tcp = strcmp(argv[1], "tcp") == 0;
    struct sockaddr_in server = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    CHECK(inet_pton(AF_INET, argv[2], &server.sin_addr) == 1);
    int fd = tw_socket(AF_INET, is_tcp ? SOCK_STREAM : SOCK_DGRAM, 0);
    struct timeval limit = {is_tcp ? 60 : 0, 100000};
    CHECK(tw_setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    CHECK(tw_connect(fd, (struct sockaddr *)&server, sizeof server) == 0);
    uint32_t number = htonl((uint32_t)atoi(argv[4] + 1));
    int is_number = argv[4][0] == '#';
    const void *request = is_number ? (const void *)&number : argv[4];
    size_t len = is_number ? sizeof number : strlen(argv[4]), got = 0;
    char reply[100] = "";
    CHECK(len < sizeof reply);
    for (int tries = 0; got < len && tries < 600; tries++) {
        if (!is_tcp || tries == 0) CHECK(tw_write(fd, request, len) == (ssize_t)len || errno == EHOSTUNREACH);
        ssize_t more = tw_read(fd, reply + got, sizeof reply - got);
        if (more > 0) got += (size_t)more;
        else CHECK(!is_tcp && errno == EAGAIN);
    }
    tw_close(fd);
    if (got != len || memcmp(reply, request, len) != 0) return 1;
    printf("%s\n", argv[4]);
    return 0;
}

int main(int argc, char **argv) { return tw_main(argc, argv, program); }
