// Prices of options by simulation, a batch job with poll points: options [PATHS]. It uses all cores
// that it is lent, and gives one back within a microsecond when the IOKernel asks for it.
// Start it as `TAILWATER_CLASS=best-effort options`.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <tailwater.hpp>
#include <vector>

struct option {
    double price, strike, rate, volatility, years;
};

// The mean of the discounted payoffs of simulated paths.
static double simulate(const option &o, unsigned seed, long paths) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    const int steps = 16;
    const double dt = o.years / steps;
    const double drift = (o.rate - o.volatility * o.volatility / 2) * dt;
    double sum = 0;
    for (long path = 0; path < paths; path++) {
        double log = 0;
        for (int step = 0; step < steps; step++) log += drift + o.volatility * std::sqrt(dt) * normal(random);
        sum += std::max(o.price * std::exp(log) - o.strike, 0.0);
        tw::poll(); // one path takes about a microsecond
    }
    return std::exp(-o.rate * o.years) * sum / static_cast<double>(paths);
}

// The price in closed form (Black and Scholes 1973), to compare with.
static double exact(const option &o) {
    auto cumulative = [](double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; };
    double deviation = o.volatility * std::sqrt(o.years);
    double d1 = (std::log(o.price / o.strike) + (o.rate + o.volatility * o.volatility / 2) * o.years) / deviation;
    return o.price * cumulative(d1) - o.strike * std::exp(-o.rate * o.years) * cumulative(d1 - deviation);
}

int main(int argc, char **argv) {
    const long paths = argc > 1 ? std::atol(argv[1]) : 100000;
    try {
        return tw::run(nullptr, [&] {
            std::vector<option> options;
            for (int i = 0; i < 8; i++) options.push_back({100, 90.0 + 3 * i, 0.02, 0.2, 1});
            std::vector<double> prices(options.size());
            {
                std::vector<tw::jthread> threads; // joined at the end of this block
                for (std::size_t i = 0; i < options.size(); i++)
                    threads.emplace_back([&, i] { prices[i] = simulate(options[i], 1 + static_cast<unsigned>(i), paths); });
            }
            int wrong = 0;
            for (std::size_t i = 0; i < options.size(); i++) {
                double expected = exact(options[i]);
                std::printf("strike %3.0f: %7.3f, exact %7.3f\n", options[i].strike, prices[i], expected);
                // Six standard errors: the deviation of a payoff is below 20.
                wrong += std::abs(prices[i] - expected) > 6 * 20 / std::sqrt(static_cast<double>(paths));
            }
            return wrong > 0 ? 1 : 0;
        });
    } catch (const tw::error &failure) {
        std::fprintf(stderr, "options: %s\n", tw::to_string(failure).c_str());
        return 1;
    }
}
