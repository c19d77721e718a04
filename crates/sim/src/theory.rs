//! Closed-form results of queueing theory, with which the simulator is compared.
//!
//! Pure functions, independent of the simulator. Loads are per core (`rho`, below 1) or in erlangs
//! (`offered`, arrival rate times mean service time). Times are in the unit of the mean that is
//! passed in.
//!
//! Sources: Kleinrock, Queueing Systems volumes 1 and 2 (M/M/n 3.5, M/G/1 5.6, M/G/1-PS 4.4 of
//! volume 2, M/G/infinity 3.4).

/// Returns Erlang's C: the probability that an arrival must wait in M/M/n, with `offered` erlangs
/// on `servers`.
///
/// Computed by the recursion for Erlang B, which neither overflows nor cancels for any number of
/// servers.
///
/// # Panics
///
/// Unless `0 <= offered < servers`.
#[must_use]
pub fn erlang_c(servers: usize, offered: f64) -> f64 {
    assert!(
        offered >= 0.0 && offered < servers as f64,
        "{offered} erlangs on {servers} servers have no steady state"
    );
    let mut blocking = 1.0;
    for n in 1..=servers {
        blocking = offered * blocking / (n as f64 + offered * blocking);
    }
    let rho = offered / servers as f64;
    blocking / (1.0 - rho * (1.0 - blocking))
}

/// Returns P(wait > t) in M/M/n, first come, first served.
#[must_use]
pub fn mmn_wait_beyond(servers: usize, offered: f64, mean_service: f64, t: f64) -> f64 {
    erlang_c(servers, offered) * libm::exp(-(servers as f64 - offered) * t / mean_service)
}

/// Returns the waiting time not exceeded with probability `p` in M/M/n; 0 if an arrival waits with
/// less than `1 - p`.
#[must_use]
pub fn mmn_wait_quantile(servers: usize, offered: f64, mean_service: f64, p: f64) -> f64 {
    let c = erlang_c(servers, offered);
    (mean_service / (servers as f64 - offered) * libm::log(c / (1.0 - p))).max(0.0)
}

/// Returns the mean waiting time in M/M/n.
#[must_use]
pub fn mmn_mean_wait(servers: usize, offered: f64, mean_service: f64) -> f64 {
    erlang_c(servers, offered) * mean_service / (servers as f64 - offered)
}

/// Returns the latency (waiting and service) not exceeded with probability `p` in M/M/1 first come
/// first served.
#[must_use]
pub fn mm1_latency_quantile(rho: f64, mean_service: f64, p: f64) -> f64 {
    -libm::log(1.0 - p) * mean_service / (1.0 - rho)
}

/// Returns the mean waiting time in M/G/1, first come, first served (Pollaczek-Khinchine).
/// `squared_cv` is the variance of the service time over its squared mean: 1 for exponential, 0 for
/// constant (M/D/1).
#[must_use]
pub fn mg1_mean_wait(rho: f64, mean_service: f64, squared_cv: f64) -> f64 {
    rho / (1.0 - rho) * mean_service * (1.0 + squared_cv) / 2.0
}

/// Returns the mean latency in M/G/1 processor sharing of a request that needs `service`, which
/// depends only on the load (insensitivity). With the mean service time it is the mean latency.
#[must_use]
pub fn mg1_ps_latency(rho: f64, service: f64) -> f64 {
    service / (1.0 - rho)
}

/// Returns P(number in system <= k) in M/G/infinity: Poisson with mean `offered`, whatever the
/// service times.
#[must_use]
pub fn mg_infinity_at_most(offered: f64, k: u32) -> f64 {
    let mut term = libm::exp(-offered);
    let mut sum = term;
    for i in 1..=k {
        term *= offered / f64::from(i);
        sum += term;
    }
    sum.min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-9 * b.abs().max(1.0), "{a} is not {b}");
    }

    #[test]
    fn one_server_waits_with_the_probability_of_being_busy() {
        close(erlang_c(1, 0.7), 0.7);
        close(mmn_mean_wait(1, 0.7, 10.0), mg1_mean_wait(0.7, 10.0, 1.0));
    }

    #[test]
    fn erlang_c_has_its_tabulated_values() {
        // n = 2: C = 2 rho^2 / (1 + rho); n = 3, a = 2: C = 4/9.
        close(erlang_c(2, 1.0), 1.0 / 3.0);
        close(erlang_c(3, 2.0), 4.0 / 9.0);
        let large = erlang_c(4096, 4000.0);
        assert!(large > 0.0 && large < 1.0, "no overflow: {large}");
    }

    #[test]
    fn a_quantile_inverts_the_distribution() {
        for p in [0.5, 0.9, 0.99, 0.999] {
            let t = mmn_wait_quantile(4, 3.6, 10.0, p);
            if t > 0.0 {
                close(mmn_wait_beyond(4, 3.6, 10.0, t), 1.0 - p);
            }
        }
    }

    #[test]
    fn constant_service_halves_the_wait_and_sharing_stretches_all_alike() {
        close(mg1_mean_wait(0.5, 10.0, 0.0) * 2.0, mg1_mean_wait(0.5, 10.0, 1.0));
        close(mg1_ps_latency(0.75, 10.0), 40.0);
        close(mg_infinity_at_most(2.0, 200), 1.0);
    }
}
