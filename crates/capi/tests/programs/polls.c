/* Counts the poll points of a kernel and of loops.c, and prints their results and whether the kernel
 * polled for each path at least, and the loops at all. The poll point here changes all registers
 * that a poll point may change; the second halves of the vector registers, those from 16 on and the
 * masks where it is compiled for AVX-512. */

#include <stdint.h>
#include <stdio.h>

double swaption_price(uint64_t seed, long paths);
long double inverses(long turns);
unsigned masks(long turns);
void tw_poll_keeping_registers(void);

unsigned long polls;

#ifdef __AVX512F__
#define ONES(number) "vpternlogd $255, %zmm" #number ", %zmm" #number ", %zmm" #number "\n\t"
#define MASK(number) "kxnorw %k" #number ", %k" #number ", %k" #number "\n\t"
#define OF_512                                                                                    \
    ONES(16) ONES(17) ONES(18) ONES(19) ONES(20) ONES(21) ONES(22) ONES(23) ONES(24) ONES(25)     \
    ONES(26) ONES(27) ONES(28) ONES(29) ONES(30) ONES(31) MASK(0) MASK(1) MASK(2) MASK(3) MASK(4) \
    MASK(5) MASK(6) MASK(7)
#else
#define ONES(number) "pcmpeqd %xmm" #number ", %xmm" #number "\n\t"
#define OF_512
#endif

/* fninit empties the registers of the x87, so that a sum in one of them is no number after it. */
__attribute__((naked)) void tw_poll_keeping_registers(void) {
    __asm__("incq polls(%rip)\n\tfninit\n\t" ONES(0) ONES(1) ONES(2) ONES(3) ONES(4) ONES(5) ONES(6) ONES(7)
                ONES(8) ONES(9) ONES(10) ONES(11) ONES(12) ONES(13) ONES(14) ONES(15) OF_512 "ret");
}

int main(void) {
    enum { PATHS = 1000, TURNS = 100000 };
    double price = swaption_price(88172645463325252u, PATHS);
    unsigned long of_kernel = polls;
    printf("price %.9f, inverses %.18Lf, masks %u; ", price, inverses(TURNS), masks(TURNS));
    printf("kernel %s, loops %s\n", of_kernel >= PATHS ? "polled" : "not polled",
           polls > of_kernel ? "polled" : "not polled");
}
