//! Pure workload models: service times, arrivals, latency summaries
