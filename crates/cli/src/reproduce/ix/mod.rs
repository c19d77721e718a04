//! IX: A Protected Dataplane Operating System for High Throughput and Low Latency (OSDI'14).

pub mod table3;
