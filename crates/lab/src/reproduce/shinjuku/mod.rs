//! Shinjuku: the measured figures of "Shinjuku: Preemptive Scheduling for usecond-scale Tail
//! Latency" (NSDI'19). The simulated ones are the simulator's.

pub mod fig5;
pub mod fig8;
pub mod table1;
pub mod table2;
