/* Loops that keep what they compute in registers that a poll point in C changes: those of the
 * x87 and, compiled for AVX-512, a mask. With BY_HAND they poll by tw_poll(), otherwise where the
 * compiler puts poll points. */

#ifdef BY_HAND
#include <tailwater.h>
#define POLL() tw_poll()
#else
#define POLL() ((void)0)
#endif

#ifdef __AVX512F__
#include <immintrin.h>
#endif

long double inverses(long turns);
unsigned masks(long turns);

long double inverses(long turns) {
    long double sum = 0;
    for (long i = 1; i <= turns; i++) {
        sum += 1.0L / (long double)i;
        POLL();
    }
    return sum;
}

/* Moves 16 numbers at random in each turn. One mask stays the same: it says for which of them a step
 * is left out if they are negative, and for which if not. Another has those that took the step in an
 * odd number of turns; it is returned. */
unsigned masks(long turns) {
#ifdef __AVX512F__
    __m512i numbers = _mm512_set_epi32(16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1);
    const __m512i zero = _mm512_setzero_si512(), bound = _mm512_set1_epi32((int)(turns % 16));
    const __mmask16 other = _kxor_mask16(_mm512_cmplt_epi32_mask(bound, numbers),
                                         _mm512_test_epi32_mask(bound, numbers));
    __mmask16 odd = 0;
    for (long i = 0; i < turns; i++) {
        __mmask16 moved = _kxor_mask16(other, _mm512_cmplt_epi32_mask(numbers, zero));
        odd = _kxor_mask16(odd, moved);
        numbers = _mm512_mask_xor_epi32(numbers, moved, numbers, _mm512_slli_epi32(numbers, 13));
        numbers = _mm512_xor_si512(numbers, _mm512_srli_epi32(numbers, 17));
        numbers = _mm512_xor_si512(numbers, _mm512_slli_epi32(numbers, 5));
        POLL();
    }
    return odd;
#else
    return turns != 0;
#endif
}
