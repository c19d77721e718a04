/* Counts the poll points of a kernel, and prints its price and whether there was one for each path
 * at least. The poll point here changes all registers that a poll point may change. */

#include <stdint.h>
#include <stdio.h>

double swaption_price(uint64_t seed, long paths);
void tw_poll_keeping_registers(void);

unsigned long polls;

#define ONES(number) "pcmpeqd %xmm" #number ", %xmm" #number "\n\t"

__attribute__((naked)) void tw_poll_keeping_registers(void) {
    __asm__("incq polls(%rip)\n\t" ONES(0) ONES(1) ONES(2) ONES(3) ONES(4) ONES(5) ONES(6) ONES(7) ONES(8) ONES(9)
                ONES(10) ONES(11) ONES(12) ONES(13) ONES(14) ONES(15) "ret");
}

int main(void) {
    enum { PATHS = 1000 };
    double price = swaption_price(88172645463325252u, PATHS);
    printf("price %.9f, %s\n", price, polls >= PATHS ? "polled" : "not polled");
}
