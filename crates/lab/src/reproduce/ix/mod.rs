//! IX: the operating system of "The IX Operating System: Combining Low Latency, High Throughput,
//! and Efficiency in a Protected Dataplane" (TOCS'17).

pub mod connections;
pub mod fig13;
pub mod table3;
