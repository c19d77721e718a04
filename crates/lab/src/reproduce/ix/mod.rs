//! IX: the operating system of "The IX Operating System: Combining Low Latency, High Throughput,
//! and Efficiency in a Protected Dataplane" (TOCS'17).

pub mod connections;
pub mod fig13;
pub mod fig4;
pub mod fig5;
pub mod fig6b;
pub mod fig7;
mod points;
pub mod table3;
pub mod table5;
