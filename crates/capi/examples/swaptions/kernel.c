/* The price of a swaption by simulation: forward rates of a curve, moved by three factors (Heath,
 * Jarrow and Morton 1992). Loops without a call of Tailwater: compiled with
 * -fsanitize-coverage=trace-pc, which gcc and clang have, they poll by poll.c. */

#include <math.h>
#include <stdint.h>

enum { STEPS = 60, EXPIRY = 20, PERIOD = 4, FACTORS = 3 };

/* Marsaglia 2003, xorshift64. */
static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* The sum of twelve uniform numbers is close to a normal one. */
static double normal(uint64_t *state) {
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += (double)(next(state) >> 11) / (double)(UINT64_C(1) << 53);
    return sum;
}

double swaption_price(uint64_t seed, long paths) {
    double volatility[FACTORS][STEPS], rates[STEPS], sum = 0;
    for (int factor = 0; factor < FACTORS; factor++)
        for (int i = 0; i < STEPS; i++) volatility[factor][i] = 0.0008 / (1 + factor) * exp(-0.02 * factor * i);
    for (long path = 0; path < paths; path++) {
        double discount = 0, leg = 0, bond = 1;
        for (int i = 0; i < STEPS; i++) rates[i] = 0.01;
        for (int step = 0; step < EXPIRY; step++) {
            discount -= rates[step];
            for (int factor = 0; factor < FACTORS; factor++) {
                double draw = normal(&seed);
                for (int i = step + 1; i < STEPS; i++) rates[i] += volatility[factor][i - step - 1] * draw;
            }
        }
        for (int i = EXPIRY; i < STEPS; i += PERIOD) {
            for (int j = 0; j < PERIOD; j++) bond *= 1 - rates[i + j];
            leg += 0.04 * bond;
        }
        sum += exp(discount) * fmax(1 - bond - leg, 0);
    }
    return sum / (double)paths;
}
