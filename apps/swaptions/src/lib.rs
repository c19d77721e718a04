//! Monte Carlo pricing of swaptions as a batch job
