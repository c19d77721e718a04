//! Figures that are in no paper.

pub mod dns_slo;
pub mod foreign_batch;
