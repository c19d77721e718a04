/* CHECK ends the program, with the place, where a condition is false. */

#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                     \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition);         \
            abort();                                                                         \
        }                                                                                    \
    } while (0)

#endif
