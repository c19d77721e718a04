//! Open-loop load generator
