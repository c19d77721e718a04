/* Parallel regions of OpenMP: `regions COUNT`. Each adds up an array, and ends with a barrier. */
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments) {
    static double values[1 << 14];
    double sum = 0;
    if (count != 2) {
        fprintf(stderr, "usage: regions COUNT\n");
        return 2;
    }
    for (long region = atol(arguments[1]); region > 0; region--) {
#pragma omp parallel for reduction(+ : sum)
        for (int i = 0; i < 1 << 14; i++) sum += values[i] += 1.0 / (i + region);
    }
    printf("%g\n", sum);
    return 0;
}
