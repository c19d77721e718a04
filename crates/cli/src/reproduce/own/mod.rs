//! Figures of this project's own, of what no paper measured.

pub mod dns_slo;
